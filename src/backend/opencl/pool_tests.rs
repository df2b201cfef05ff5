//! The pool against a model of a device, which notices parts that overlap and memory that leaks.

use super::super::allocation::Request;
use super::*;
use core::sync::atomic::{AtomicUsize, Ordering};
use proptest::prelude::*;

const ALIGN: usize = 128;

/// What a device knows: bytes of its slabs, parts in existence.
#[derive(Default)]
struct Model {
    slabs: AtomicUsize,
    bytes: AtomicUsize,
    parts: Mutex<BTreeMap<(usize, usize), usize>>,
    /// Slabs that it refuses to make beyond so many bytes; 0 for none.
    most: AtomicUsize,
    next: AtomicUsize,
}

struct ModelSlab {
    model: Arc<Model>,
    id: usize,
    bytes: usize,
}

struct ModelPart {
    model: Arc<Model>,
    key: (usize, usize),
}

impl Drop for ModelSlab {
    fn drop(&mut self) {
        self.model.slabs.fetch_sub(1, Ordering::Relaxed);
        self.model.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        let parts = self.model.parts.lock().unwrap();
        assert!(!parts.keys().any(|(slab, _)| *slab == self.id), "a part outlives its slab");
    }
}

impl Drop for ModelPart {
    fn drop(&mut self) {
        assert!(self.model.parts.lock().unwrap().remove(&self.key).is_some());
    }
}

impl Source for Arc<Model> {
    type Slab = ModelSlab;
    type Part = ModelPart;

    fn slab(&self, bytes: usize) -> Result<ModelSlab, OpenClError> {
        let most = self.most.load(Ordering::Relaxed);
        if most > 0 && self.bytes.load(Ordering::Relaxed) + bytes > most {
            return Err(OpenClError::Call { call: "clCreateBuffer", code: -4 });
        }
        self.slabs.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(ModelSlab { model: self.clone(), id: self.next.fetch_add(1, Ordering::Relaxed), bytes })
    }

    fn part(&self, slab: &ModelSlab, at: usize, bytes: usize) -> Result<ModelPart, OpenClError> {
        assert!(at.is_multiple_of(ALIGN) && bytes > 0 && at + bytes <= slab.bytes);
        let mut parts = self.parts.lock().unwrap();
        for (&(id, other), &size) in parts.iter() {
            assert!(id != slab.id || other + size <= at || at + bytes <= other, "parts overlap");
        }
        parts.insert((slab.id, at), bytes);
        Ok(ModelPart { model: self.clone(), key: (slab.id, at) })
    }
}

fn pool(limit: usize) -> (Arc<Model>, Arc<Pool<Arc<Model>>>) {
    let model = Arc::new(Model::default());
    (model.clone(), Pool::new(model, ALIGN, 64 << 20, limit))
}

#[test]
fn classes_waste_at_most_an_eighth() {
    for bytes in (1..5000).chain([1 << 20, (1 << 20) + 1, (3 << 20) - 7, 123_456_789]) {
        let found = class(bytes, ALIGN).unwrap();
        let size = found.bytes;
        assert!(size >= bytes && size.is_multiple_of(ALIGN));
        assert!(size - bytes < ALIGN || (size - bytes) * 8 <= bytes, "{bytes} {size}");
        assert_eq!(class(size, ALIGN), Some(found), "parts of a bin have one size");
        assert_ne!(class(size + 1, ALIGN).unwrap().number, found.number, "{size}");
    }
    assert_eq!(class(usize::MAX - 3, ALIGN), None);
}

#[test]
fn a_part_that_came_back_is_given_out_again() {
    let (model, pool) = pool(usize::MAX);
    let first = pool.take(1000).unwrap();
    let key = first.memory().key;
    drop(first);
    let again = pool.take(1001).unwrap();
    assert_eq!(again.memory().key, key);
    assert_eq!(pool.stats().hits, 1);
    assert_eq!(again.bytes(), 1001);
    drop(again);
    assert_eq!(pool.trim(), LEAST_SLAB);
    assert_eq!((model.slabs.load(Ordering::Relaxed), pool.stats().reserved), (0, 0));
}

#[test]
fn neighbours_are_joined_before_the_device_is_asked_for_more() {
    let (model, pool) = pool(usize::MAX);
    let parts: Vec<_> = (0..8).map(|_| pool.take(LEAST_SLAB / 8).unwrap()).collect();
    assert_eq!(model.slabs.load(Ordering::Relaxed), 1);
    drop(parts);
    let _half = pool.take(LEAST_SLAB / 2).unwrap();
    assert_eq!(model.slabs.load(Ordering::Relaxed), 1);
}

#[test]
fn the_limit_holds_and_unused_slabs_make_room() {
    let (model, pool) = pool(4 << 20);
    let large = pool.take(3 << 20).unwrap();
    assert_eq!(
        pool.take(2 << 20).unwrap_err(),
        OpenClError::Memory { needed: 2 << 20, used: 3 << 20, limit: 4 << 20 }
    );
    drop(large);
    // Of another class: the slab before must go back first.
    let _other = pool.take((4 << 20) - (512 << 10)).unwrap();
    assert!(model.bytes.load(Ordering::Relaxed) <= 4 << 20);
    assert!(pool.take(usize::MAX).is_err());
}

#[test]
fn a_device_that_has_no_more_is_an_error_that_changes_nothing() {
    let (model, pool) = pool(usize::MAX);
    model.most.store(1 << 20, Ordering::Relaxed);
    let one = pool.take(600 << 10).unwrap();
    let before = PoolStats { requests: 0, ..pool.stats() };
    assert!(pool.take(600 << 10).is_err());
    assert_eq!(PoolStats { requests: 0, ..pool.stats() }, before);
    drop(one);
    assert!(pool.take(900 << 10).is_ok());
}

#[test]
fn little_is_unused_when_language_models_are_loaded() {
    // What the backend asks for: weights of 12 layers as the sizes of a Llama of 110 million parameters make
    // them, caches of 1024 positions, plans of 1 to 512 tokens of which the last ones replace the first.
    for (block, bytes) in [(32, 18), (32, 34), (1, 2)] {
        let (_, pool) = pool(usize::MAX);
        let weight = |n: usize, k: usize| pool.take(n * k / block * bytes).unwrap();
        let (wide, deep, words, positions) = (768, 2048, 32000, 1024);
        let plan =
            |tokens: usize| pool.take(tokens * (6 * wide + 3 * deep) * 4 + words * 4).unwrap();
        let mut held = vec![weight(words, wide), weight(words, wide)];
        for _ in 0..12 {
            held.extend((0..4).map(|_| weight(wide, wide)));
            held.extend((0..3).map(|_| weight(deep, wide)));
            held.extend((0..2).map(|_| pool.take(wide * 4).unwrap()));
            held.extend((0..2).map(|_| pool.take(wide * positions * 2).unwrap()));
        }
        let mut plans = Vec::new();
        for tokens in [1, 9, 512, 100, 17, 300, 2, 64, 512, 40, 7, 250] {
            plans.push(plan(tokens));
            if plans.len() > 8 {
                plans.remove(0);
            }
        }
        let stats = pool.stats();
        assert!(stats.fragmentation() < 0.15, "{:.3} {stats:?}", stats.fragmentation());
    }
}

#[test]
fn eight_threads_never_share_a_part() {
    let (model, pool) = pool(usize::MAX);
    std::thread::scope(|scope| {
        for seed in 0..8u64 {
            let pool = &pool;
            scope.spawn(move || {
                let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                let mut held = Vec::new();
                for _ in 0..3000 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let draw = (state >> 33) as usize;
                    if draw.is_multiple_of(97) {
                        pool.trim();
                    } else if held.len() > 20 || draw.is_multiple_of(3) && !held.is_empty() {
                        held.swap_remove(draw % held.len());
                    } else {
                        held.push(pool.take(draw % 200_000).unwrap());
                    }
                }
            });
        }
    });
    let stats = pool.stats();
    assert_eq!((stats.used, stats.requested, stats.parts), (0, 0, 0));
    pool.trim();
    assert_eq!(model.bytes.load(Ordering::Relaxed), 0);
    assert!(model.parts.lock().unwrap().is_empty());
}

proptest! {
    #[test]
    fn the_model_agrees(
        steps in proptest::collection::vec((0usize..4, 0usize..300_000, 0usize..64), 1..200),
        limit in prop_oneof![Just(usize::MAX), Just(3usize << 20)],
    ) {
        let (model, pool) = pool(limit);
        let mut held: Vec<Region<Arc<Model>>> = Vec::new();
        for (kind, bytes, which) in steps {
            match kind {
                0 if !held.is_empty() => {
                    held.swap_remove(which % held.len());
                }
                1 if which == 0 => {
                    pool.trim();
                }
                _ => match pool.take(bytes) {
                    Ok(region) => held.push(region),
                    Err(OpenClError::Memory { .. }) => prop_assert!(limit < usize::MAX),
                    Err(e) => panic!("{e}"),
                },
            }
            let stats = pool.stats();
            prop_assert_eq!(stats.parts, held.len());
            prop_assert_eq!(stats.requested, held.iter().map(Region::bytes).sum::<usize>());
            prop_assert_eq!(stats.reserved, model.bytes.load(Ordering::Relaxed));
            prop_assert!(stats.used <= stats.reserved && stats.reserved <= limit);
            let parts = model.parts.lock().unwrap();
            for region in &held {
                prop_assert!(parts[&region.memory().key] >= region.bytes());
            }
        }
        held.clear();
        pool.trim();
        prop_assert_eq!(model.bytes.load(Ordering::Relaxed), 0);
        prop_assert_eq!(pool.stats().reserved, 0);
    }
}

#[test]
fn little_is_unused_in_a_recorded_run() {
    let requests = include_str!("../../../tests/data/opencl_pool.txt");
    let requests = Request::list(requests).expect("it is a list of requests");
    let (model, pool) = pool(usize::MAX);
    let mut held: HashMap<usize, Region<Arc<Model>>> = HashMap::new();
    for request in &requests {
        match *request {
            Request::Take(number, bytes) => {
                held.insert(number, pool.take(bytes).unwrap());
            }
            Request::Give(number) => drop(held.remove(&number)),
        }
    }
    let stats = pool.stats();
    assert!(requests.len() > 200, "{}", requests.len());
    assert!(stats.fragmentation() < 0.15, "{:.3} {stats:?}", stats.fragmentation());
    drop(held);
    pool.trim();
    assert_eq!(model.bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn lists_of_requests_are_read_or_refused() {
    let list = Request::list("# what\n+ 7 100\n- 7\n+ 7 5\n");
    let expected = [Request::Take(7, 100), Request::Give(7), Request::Take(7, 5)];
    assert_eq!(list.as_deref(), Some(&expected[..]));
    for wrong in ["- 1", "+ 1", "+ 1 x", "+ 1 2\n+ 1 2", "* 1 2", "+ 1 2 3"] {
        assert_eq!(Request::list(wrong), None, "{wrong}");
    }
}
