//! The library as a program meets it: opened at run time, its symbols looked up by name. Each test
//! opens a copy of its own, which has settings of its own.
#![allow(unsafe_code, reason = "the interface is one of C")]

use half::f16;
use libloading::Symbol;
use rknnrt::{Instance, IoAttr, MatmulInfo, QuantParams, Shape, TensorAttr, TensorMem, Version};

/// A copy of the library, and its functions.
struct Emulator(Instance);

impl Emulator {
    fn new(settings: &str) -> Self {
        Self::of_version(settings, None)
    }

    fn of_version(settings: &str, version: Option<Version>) -> Self {
        Self(Instance::new(settings, version).unwrap())
    }

    fn has(&self, name: &str) -> bool {
        // SAFETY: the symbol is not used.
        unsafe { self.0.library().get::<*const u8>(name) }.is_ok()
    }

    fn call<F: Copy, R>(&self, f: impl FnOnce(F) -> R, name: &str) -> R {
        // SAFETY: callers name functions of the type that they use.
        let symbol: Symbol<'_, F> = unsafe { self.0.library().get(name) }.unwrap();
        f(*symbol)
    }

    fn counter(&self, which: i32) -> i64 {
        self.0.counter(which)
    }

    fn create(&self, info: &MatmulInfo) -> Result<(u64, IoAttr), i32> {
        let (mut ctx, mut info, mut io) = (0, *info, io());
        // SAFETY: three valid records.
        let rc = self.call(
            |f: Create| unsafe { f(&raw mut ctx, &raw mut info, &raw mut io) },
            "rknn_matmul_create",
        );
        if rc == 0 { Ok((ctx, io)) } else { Err(rc) }
    }

    fn memory(&self, ctx: u64, bytes: u32) -> *mut TensorMem {
        self.call(|f: extern "C" fn(u64, u32) -> *mut TensorMem| f(ctx, bytes), "rknn_create_mem")
    }

    fn bind(&self, ctx: u64, mem: *mut TensorMem, attr: &TensorAttr) -> i32 {
        let mut attr = *attr;
        self.call(
            |f: extern "C" fn(u64, *mut TensorMem, *mut TensorAttr) -> i32| {
                f(ctx, mem, &raw mut attr)
            },
            "rknn_matmul_set_io_mem",
        )
    }

    fn sync(&self, mem: *mut TensorMem, mode: i32) -> i32 {
        self.call(
            |f: extern "C" fn(u64, *mut TensorMem, i32) -> i32| f(0, mem, mode),
            "rknn_mem_sync",
        )
    }

    fn with_ctx(&self, name: &str, ctx: u64) -> i32 {
        self.call(|f: extern "C" fn(u64) -> i32| f(ctx), name)
    }

    fn mask(&self, ctx: u64, mask: u32) -> i32 {
        self.call(|f: extern "C" fn(u64, u32) -> i32| f(ctx, mask), "rknn_matmul_set_core_mask")
    }

    fn free(&self, mem: *mut TensorMem) -> i32 {
        self.call(|f: extern "C" fn(u64, *mut TensorMem) -> i32| f(0, mem), "rknn_destroy_mem")
    }

    /// Writes, binds and synchronises bytes as one matrix.
    fn give(&self, ctx: u64, attr: &TensorAttr, data: &[u8]) -> *mut TensorMem {
        assert_eq!(data.len(), attr.size as usize);
        let mem = self.memory(ctx, attr.size);
        write(mem, data);
        assert_eq!((self.bind(ctx, mem, attr), self.sync(mem, 1)), (0, 0));
        mem
    }

    /// A product with operands that lie as the context wants them; bytes of C.
    fn product(&self, ctx: u64, io: &IoAttr, a: &[u8], b: &[u8]) -> Result<Vec<u8>, i32> {
        let a = self.give(ctx, &io.a, a);
        let b = self.give(ctx, &io.b, b);
        let c = self.memory(ctx, io.c.size);
        assert_eq!(self.bind(ctx, c, &io.c), 0);
        let rc = self.with_ctx("rknn_matmul_run", ctx);
        self.sync(c, 2);
        let result = read(c, io.c.size as usize);
        for mem in [a, b, c] {
            assert_eq!(self.free(mem), 0);
        }
        if rc == 0 { Ok(result) } else { Err(rc) }
    }
}

type Create = unsafe extern "C" fn(*mut u64, *mut MatmulInfo, *mut IoAttr) -> i32;

fn io() -> IoAttr {
    let attr = TensorAttr::default();
    IoAttr { a: attr, b: attr, c: attr }
}

fn info(kind: i32, [m, k, n]: [i32; 3], b_layout: i16, ac_layout: i16) -> MatmulInfo {
    let shape = Shape { m, k, n };
    MatmulInfo {
        shape,
        kind,
        b_layout,
        b_quant: 0,
        ac_layout,
        ac_quant: 0,
        domain: 0,
        group: 0,
        reserved: [0; 34],
    }
}

fn write(mem: *mut TensorMem, data: &[u8]) {
    // SAFETY: the memory has at least as many bytes as its caller asked for.
    unsafe { (*mem).virt_addr.cast::<u8>().copy_from(data.as_ptr(), data.len()) };
}

fn read(mem: *mut TensorMem, bytes: usize) -> Vec<u8> {
    // SAFETY: as in `write`.
    unsafe { core::slice::from_raw_parts((*mem).virt_addr.cast::<u8>(), bytes) }.to_vec()
}

fn dims(attr: &TensorAttr) -> Vec<u32> {
    attr.dims[..attr.n_dims as usize].to_vec()
}

/// Small whole numbers that differ.
fn value(i: usize) -> i8 {
    (i * 37 % 23) as i8 - 11
}

fn halves(n: usize, at: impl Fn(usize) -> usize) -> Vec<u8> {
    let mut bytes = vec![0; 2 * n];
    for i in 0..n {
        let x = f16::from_f32(value(i).into());
        bytes[2 * at(i)..][..2].copy_from_slice(&x.to_le_bytes());
    }
    bytes
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn ints(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// The sum of products of row-major operands, whose elements are `value` of their numbers.
fn expected([m, k, n]: [usize; 3]) -> Vec<i32> {
    let sum = |i: usize| -> i32 {
        let (row, column) = (i / n, i % n);
        let term = |x: usize| i32::from(value(row * k + x)) * i32::from(value(x * n + column));
        (0..k).map(term).sum()
    };
    (0..m * n).map(sum).collect()
}

const SHAPE: [usize; 3] = [3, 64, 96];
const SIZES: [i32; 3] = [3, 64, 96];

#[test]
fn shapes_are_told_per_chip_and_layout() {
    for (soc, kind, a, b, c) in [
        ("rk3588", 1, [8, 3, 8], [6, 2, 16, 32], [24, 3, 4]),
        ("rk3588", 2, [4, 3, 16], [3, 2, 32, 32], [24, 3, 4]),
        ("rk3588", 3, [4, 3, 16], [3, 2, 32, 32], [6, 3, 16]),
        ("rk3588", 4, [8, 3, 8], [6, 2, 16, 32], [12, 3, 8]),
        ("rk3576", 7, [8, 3, 8], [6, 2, 16, 32], [24, 3, 4]),
        ("rk3562", 1, [8, 3, 8], [12, 2, 8, 32], [24, 3, 4]),
        ("rk3568", 1, [16, 3, 4], [12, 4, 8, 16], [24, 3, 4]),
        ("rk3566", 2, [8, 3, 8], [6, 2, 16, 32], [24, 3, 4]),
    ] {
        let emulator = Emulator::new(&format!("RKNN_EMU_SOC={soc}"));
        let (_, io) = emulator.create(&info(kind, SIZES, 1, 1)).unwrap();
        assert_eq!((dims(&io.a), dims(&io.b), dims(&io.c)), (a.into(), b.into(), c.into()));
        assert_eq!((io.a.name[0], io.b.name[0], io.c.name[0]), (b'A', b'B', b'C'));
    }
    let emulator = Emulator::new("");
    let (_, io) = emulator.create(&info(1, SIZES, 2, 0)).unwrap();
    assert_eq!((dims(&io.a), dims(&io.b), dims(&io.c)), (vec![3, 64], vec![96, 64], vec![3, 96]));
    assert_eq!((io.a.size, io.b.size, io.c.size), (3 * 64 * 2, 96 * 64 * 2, 3 * 96 * 4));
    assert_eq!((io.a.kind, io.b.kind, io.c.kind), (1, 1, 0));
}

#[test]
fn what_a_chip_does_not_compute_is_refused() {
    for (soc, kind, sizes, b_layout, rc) in [
        ("rk3588", 5, SIZES, 1, -5),
        ("rk3588", 12, SIZES, 1, -5),
        ("rk3576", 3, SIZES, 1, -5),
        ("rk3576", 10, [1, 64, 64], 1, -5),
        ("rk3562", 4, SIZES, 1, -5),
        ("rk3588", 1, [3, 48, 96], 1, -5),
        ("rk3588", 1, [3, 64, 48], 1, -5),
        ("rk3588", 1, [0, 64, 96], 1, -5),
        ("rk3588", 1, [-1, 64, 96], 1, -5),
        ("rk3588", 10, [1, 64, 96], 1, -5),
        ("rk3588", 10, [1, 64, 64], 0, -5),
        ("rk3568", 1, [1, 10272, 16], 1, -5),
        ("rk3568", 1, SIZES, 2, -5),
        ("rk3588", 1, SIZES, 3, -5),
    ] {
        let emulator = Emulator::new(&format!("RKNN_EMU_SOC={soc}"));
        let outcome = emulator.create(&info(kind, sizes, b_layout, 1));
        assert_eq!(outcome.map(|_| ()), Err(rc), "{soc} {kind} {sizes:?}");
    }
    let strict = Emulator::new("RKNN_EMU_RELAX_N=0");
    assert!(strict.create(&info(1, [1, 32, 4096], 1, 1)).is_ok());
    assert_eq!(strict.create(&info(1, [1, 32, 4128], 1, 1)).map(|_| ()), Err(-5));
    let mut odd = info(1, SIZES, 1, 1);
    odd.ac_quant = 1;
    assert_eq!(strict.create(&odd).map(|_| ()), Err(-5));
    odd = MatmulInfo { domain: 16, ..info(1, SIZES, 1, 1) };
    assert_eq!(strict.create(&odd).map(|_| ()), Err(-5));
}

#[test]
fn products_in_normal_order_are_exact() {
    let emulator = Emulator::new("");
    let [m, k, n] = SHAPE;
    let (ctx, io) = emulator.create(&info(1, SIZES, 0, 0)).unwrap();
    assert!(ctx > u64::from(u32::MAX));
    let c = emulator.product(ctx, &io, &halves(m * k, |i| i), &halves(k * n, |i| i)).unwrap();
    let sums: Vec<f32> = expected(SHAPE).iter().map(|&x| x as f32).collect();
    assert_eq!(floats(&c), sums);
    let (ctx, io) = emulator.create(&info(2, SIZES, 0, 0)).unwrap();
    let bytes = |n: usize| (0..n).map(|i| value(i) as u8).collect::<Vec<_>>();
    let c = emulator.product(ctx, &io, &bytes(m * k), &bytes(k * n)).unwrap();
    assert_eq!(ints(&c), expected(SHAPE));
    let (ctx, io) = emulator.create(&info(1, SIZES, 2, 0)).unwrap();
    let b = halves(k * n, |i| (i % n) * k + i / n);
    let c = emulator.product(ctx, &io, &halves(m * k, |i| i), &b).unwrap();
    assert_eq!(floats(&c), sums);
}

/// With native operands the numbers are right in the native order, and wrong in any other.
#[test]
fn a_wrong_layout_gives_wrong_results() {
    let emulator = Emulator::new("");
    let [m, k, n] = SHAPE;
    let (ctx, io) = emulator.create(&info(1, SIZES, 1, 1)).unwrap();
    let a = halves(m * k, |i| (i % k) / 8 * m * 8 + i / k * 8 + i % k % 8);
    let native = |sn: usize, sk: usize| {
        halves(k * n, move |i| {
            let (row, column) = (i / n, i % n);
            ((column / sn * (k / sk) + row / sk) * sn + column % sn) * sk + row % sk
        })
    };
    let result = |a: &[u8], b: &[u8]| {
        let c = floats(&emulator.product(ctx, &io, a, b).unwrap());
        let at = |i: usize| i % n / 4 * m * 4 + i / n * 4 + i % n % 4;
        (0..m * n).map(|i| c[at(i)]).collect::<Vec<f32>>()
    };
    let sums: Vec<f32> = expected(SHAPE).iter().map(|&x| x as f32).collect();
    assert_eq!(result(&a, &native(16, 32)), sums);
    assert_ne!(result(&a, &native(32, 16)), sums);
    assert_ne!(result(&a, &halves(k * n, |i| i)), sums);
    assert_ne!(result(&halves(m * k, |i| i), &native(16, 32)), sums);
}

#[test]
fn four_bits_multiply_into_sixteen() {
    let emulator = Emulator::new("");
    let (ctx, io) = emulator.create(&info(10, [1, 32, 64], 1, 1)).unwrap();
    assert_eq!((io.a.size, io.b.size, io.c.size), (16, 1024, 128));
    let mut a = vec![0; 16];
    // Element 3, the high half of byte 1, is -2.
    a[1] = 0xE0;
    let mut b = vec![0; 1024];
    // Row 3 of column 5, in one block of 64 by 32: element 163, the high half of byte 81, is 7.
    b[81] = 0x70;
    let c = emulator.product(ctx, &io, &a, &b).unwrap();
    let c: Vec<i16> = c.chunks_exact(2).map(|b| i16::from_le_bytes([b[0], b[1]])).collect();
    assert_eq!(c[5], -14);
    assert_eq!(c.iter().filter(|&&x| x != 0).count(), 1);
}

#[test]
fn order_of_calls_is_checked() {
    let emulator = Emulator::new("");
    let (ctx, io) = emulator.create(&info(1, SIZES, 0, 0)).unwrap();
    let run = || emulator.with_ctx("rknn_matmul_run", ctx);
    assert_eq!(run(), -8);
    let memory = [io.a, io.b, io.c].map(|attr| emulator.memory(ctx, attr.size));
    assert_eq!(emulator.bind(ctx, memory[0], &io.a), 0);
    assert_eq!(emulator.bind(ctx, memory[1], &io.b), 0);
    assert_eq!(run(), -9);
    assert_eq!(emulator.bind(ctx, memory[0], &io.c), -5, "too small");
    assert_eq!(emulator.bind(ctx, memory[2], &io.c), 0);
    assert_eq!(run(), 0);
    let odd = TensorAttr { size: io.a.size + 2, ..io.a };
    assert_eq!(emulator.bind(ctx, memory[0], &odd), -5);
    assert_eq!((emulator.counter(0), emulator.counter(1), emulator.counter(3)), (1, 3, 1));
    assert_eq!(emulator.free(memory[0]), 0);
    assert_eq!(emulator.free(memory[0]), -5, "twice");
    assert_eq!(emulator.counter(4), 0);
    assert_eq!(run(), -1, "memory that is gone");
    assert_eq!(emulator.counter(4), 1);
    assert_eq!(emulator.with_ctx("rknn_matmul_destroy", ctx), 0);
    assert_eq!(emulator.with_ctx("rknn_matmul_destroy", ctx), -7);
    assert_eq!(run(), -7);
    assert!(emulator.memory(ctx, 64).is_null());
    // Another domain's memory.
    let (one, io) = emulator.create(&info(1, SIZES, 0, 0)).unwrap();
    let other = MatmulInfo { domain: 3, ..info(1, SIZES, 0, 0) };
    let (other, _) = emulator.create(&other).unwrap();
    let foreign = emulator.memory(other, io.a.size);
    assert_eq!(emulator.bind(one, foreign, &io.a), -1);
}

#[test]
fn data_move_when_the_setting_says() {
    let fill = |x: f32, n: usize| f16::from_f32(x).to_le_bytes().repeat(n);
    for (settings, changed) in [
        // A copy is made when A is bound: what is written later is not seen.
        ("RKNN_EMU_SNAPSHOT=always", [1.0, 1.0]),
        ("RKNN_EMU_SNAPSHOT=norm", [1.0, 1.0]),
        ("RKNN_EMU_SNAPSHOT=never", [1.0, 2.0]),
        ("RKNN_EMU_SNAPSHOT=never\nRKNN_EMU_SYNC=lenient", [2.0, 2.0]),
        ("RKNN_EMU_SNAPSHOT=never\nRKNN_EMU_SYNC=bind", [1.0, 2.0]),
    ] {
        let emulator = Emulator::new(settings);
        let (ctx, io) = emulator.create(&info(1, [1, 32, 32], 0, 0)).unwrap();
        let a = emulator.give(ctx, &io.a, &fill(1.0, 32));
        emulator.give(ctx, &io.b, &fill(1.0, 32 * 32));
        let c = emulator.memory(ctx, io.c.size);
        assert_eq!(emulator.bind(ctx, c, &io.c), 0);
        write(a, &fill(2.0, 32));
        for (i, expected) in changed.into_iter().enumerate() {
            if i == 1 {
                emulator.sync(a, 1);
            }
            assert_eq!(emulator.with_ctx("rknn_matmul_run", ctx), 0);
            emulator.sync(c, 2);
            assert_eq!(floats(&read(c, 128)), [32.0 * expected; 32], "{settings} {i}");
        }
    }
}

#[test]
fn cores_are_chosen_one_by_one() {
    let emulator = Emulator::new("");
    let (ctx, _) = emulator.create(&info(1, SIZES, 0, 0)).unwrap();
    let masks = [0, 1, 2, 4, 3, 7, 8].map(|mask| emulator.mask(ctx, mask));
    assert_eq!(masks, [0, 0, 0, 0, -1, -1, -1]);
    let single = Emulator::new("RKNN_EMU_SOC=rk3562");
    let (ctx, _) = single.create(&info(1, SIZES, 0, 0)).unwrap();
    assert_eq!(single.mask(ctx, 1), -1);
}

#[test]
fn memory_has_limits() {
    let emulator = Emulator::new("RKNN_EMU_MEM_MB=1\nRKNN_EMU_FD_LIMIT=2");
    let (ctx, _) = emulator.create(&info(1, SIZES, 0, 0)).unwrap();
    assert!(emulator.memory(ctx, 0).is_null());
    assert!(emulator.memory(ctx, (1 << 20) + 1).is_null());
    let first = emulator.memory(ctx, 4096);
    assert_eq!(read(first, 4096), [0xA5; 4096]);
    assert!(!emulator.memory(ctx, 4096).is_null());
    assert!(emulator.memory(ctx, 4096).is_null(), "two file descriptors are taken");
    // SAFETY: the memory lives; the byte behind it is in the emulator's guard.
    unsafe { (*first).virt_addr.cast::<u8>().add(4096).write(0) };
    assert_eq!((emulator.free(first), emulator.counter(4)), (0, 1));
    assert_eq!(emulator.counter(2), 4096);
}

#[test]
fn faults_strike_where_they_are_said_to() {
    let emulator = Emulator::new(
        "RKNN_EMU_FAULT=create:nth=2:rc=-4;run:nth=1:rc=-2;run:nth=2:wrong=zero;\
         run:nth=3:wrong=nan;run:nth=4:wrong=flip1;run:nth=5:wrong=swaprows;create_mem:nth=16:null",
    );
    let (ctx, io) = emulator.create(&info(1, SIZES, 0, 0)).unwrap();
    assert_eq!(emulator.create(&info(1, SIZES, 0, 0)).map(|_| ()), Err(-4));
    let [m, k, n] = SHAPE;
    let (a, b) = (halves(m * k, |i| i), halves(k * n, |i| i));
    let run = || emulator.product(ctx, &io, &a, &b).map(|c| floats(&c));
    let sums: Vec<f32> = expected(SHAPE).iter().map(|&x| x as f32).collect();
    assert_eq!(run(), Err(-2));
    assert_eq!(run().unwrap(), [0.0; 288]);
    assert!(run().unwrap().iter().all(|x| x.is_nan()));
    let flipped = run().unwrap();
    assert_eq!(flipped.iter().zip(&sums).filter(|(a, b)| a != b).count(), 1);
    let swapped = run().unwrap();
    assert_eq!((&swapped[..n], &swapped[n..2 * n]), (&sums[n..2 * n], &sums[..n]));
    assert!(emulator.memory(ctx, 64).is_null());
    let dead = Emulator::new("RKNN_EMU_FAULT=create:nth=2:dead");
    let outcomes = [(); 3].map(|()| dead.create(&info(1, SIZES, 0, 0)).map(|_| ()));
    assert_eq!(outcomes, [Ok(()), Err(-3), Err(-3)]);
    let gone = Emulator::new("RKNN_EMU_NO_DEVICE=1");
    assert_eq!(gone.create(&info(1, SIZES, 0, 0)).map(|_| ()), Err(-3));
}

#[test]
fn results_that_quirks_lose_are_zero() {
    for (settings, zero) in [("", true), ("RKNN_EMU_QUIRKS=0", false)] {
        let emulator = Emulator::new(settings);
        let per_channel = MatmulInfo { b_quant: 2, ..info(2, [1, 32, 32], 0, 0) };
        let (ctx, io) = emulator.create(&per_channel).unwrap();
        let c = emulator.product(ctx, &io, &[1; 32], &[1; 1024]).unwrap();
        assert_eq!(ints(&c) == [0; 32], zero);
        let nine = MatmulInfo { kind: 9, ..per_channel };
        assert_eq!(emulator.create(&nine).map(|_| ()), Err(-5));
    }
}

#[test]
fn scales_apply_to_results_of_bytes() {
    let emulator = Emulator::new("");
    let (ctx, io) = emulator.create(&info(3, [1, 32, 32], 0, 0)).unwrap();
    let scale = 0.25f32;
    let mut params = QuantParams {
        name: io.b.name,
        scale: &raw const scale,
        scale_len: 1,
        zero: core::ptr::null(),
        zero_len: 0,
    };
    let rc = emulator.call(
        |f: extern "C" fn(u64, *mut QuantParams) -> i32| f(ctx, &raw mut params),
        "rknn_matmul_set_quant_params",
    );
    assert_eq!(rc, 0);
    assert_eq!(emulator.product(ctx, &io, &[2; 32], &[1; 1024]).unwrap(), [16; 32]);
}

#[test]
fn one_context_has_several_numbers_of_rows() {
    let emulator = Emulator::new("");
    let mut shapes = [1, 4].map(|m| Shape { m, k: 32, n: 32 });
    let (mut ctx, mut description, mut io) = (0, info(2, [4, 32, 32], 0, 0), [io(), io()]);
    type Dynamic = extern "C" fn(*mut u64, *mut MatmulInfo, i32, *mut Shape, *mut IoAttr) -> i32;
    let rc = emulator.call(
        |f: Dynamic| f(&raw mut ctx, &raw mut description, 2, &raw mut shapes[0], &raw mut io[0]),
        "rknn_matmul_create_dynamic_shape",
    );
    assert_eq!((rc, io[0].a.size, io[1].a.size), (0, 32, 128));
    type SetShape = extern "C" fn(u64, *mut Shape) -> i32;
    let choose = |mut shape: Shape| {
        emulator.call(|f: SetShape| f(ctx, &raw mut shape), "rknn_matmul_set_dynamic_shape")
    };
    assert_eq!(choose(Shape { m: 2, k: 32, n: 32 }), -5);
    for (shape, io) in shapes.into_iter().zip(&io) {
        assert_eq!(choose(shape), 0);
        let rows = shape.m as usize;
        let c = emulator.product(ctx, io, &vec![1; 32 * rows], &[3; 1024]).unwrap();
        assert_eq!(ints(&c), vec![96; 32 * rows]);
    }
}

#[test]
fn older_versions_lack_symbols_and_read_less() {
    let old = Emulator::of_version("RKNN_EMU_VERSION=1.6.0", Some(Version::V1_6));
    assert!(old.has("rknn_matmul_create") && !old.has("rknn_matmul_create_dynamic_shape"));
    assert!(!old.has("rknn_create_mem2") && !old.has("rknn_matmul_set_quant_params"));
    let mut beyond = info(1, SIZES, 1, 1);
    beyond.domain = 99;
    assert!(old.create(&beyond).is_ok(), "24 bytes are read");
    assert_eq!(old.create(&info(4, SIZES, 1, 1)).map(|_| ()), Err(-5));
    let middle = Emulator::of_version("RKNN_EMU_VERSION=2.0.0b0", Some(Version::V2_0));
    assert!(middle.has("rknn_matmul_create_dyn_shape"));
    assert!(!middle.has("rknn_matmul_create_dynamic_shape"));
    assert_eq!(middle.create(&info(1, SIZES, 2, 0)).map(|_| ()), Err(-5));
    let new = Emulator::of_version("", Some(Version::V2_1));
    assert!(new.has("rknn_matmul_create_dynamic_shape"));
    assert!(!new.has("rknn_matmul_create_dyn_shape"));
}

#[test]
fn versions_are_told() {
    let emulator = Emulator::new("RKNN_EMU_VERSION=2.3.2\nRKNN_EMU_DRIVER=0.9.6");
    let (ctx, _) = emulator.create(&info(1, SIZES, 1, 1)).unwrap();
    let mut answer = [0u8; 512];
    let mut ask = |size: u32| {
        emulator.call(
            |f: extern "C" fn(u64, i32, *mut u8, u32) -> i32| f(ctx, 5, &raw mut answer[0], size),
            "rknn_query",
        )
    };
    assert_eq!((ask(511), ask(512)), (-5, 0));
    assert!(answer.starts_with(b"2.3.2 (emulator)\0") && answer[256..].starts_with(b"0.9.6\0"));
}
