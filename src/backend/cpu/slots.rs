//! Where results lie: in memory of their own, in that of an operand which nobody needs any more, or where they end
//! up as a part of another result.

use super::ahead::Ahead;
use super::lower::Lowered;
use super::memory::{ALIGN, Span, bound, place};
use crate::graph::{Context, GraphError, Op, PerRecord, Step, TensorId};
use crate::tensor::ShapeError;

/// About how many records are looked at to find which results can lie where they end up: some 20 ms.
const WORK: usize = 100_000;

/// The record whose memory a view is one of, and the bytes from its start.
pub(super) fn viewed(cx: &Context, mut id: TensorId) -> (TensorId, usize) {
    let mut offset = 0;
    while let Some(more) = cx.record(id).view_offset() {
        offset += more;
        id = cx.record(id).src()[0];
    }
    (id, offset)
}

/// What a plan is made of.
#[derive(Clone, Copy)]
pub(super) struct Made<'a> {
    pub(super) cx: &'a Context,
    pub(super) ahead: &'a Ahead,
    pub(super) lowered: &'a PerRecord<Lowered>,
    pub(super) outputs: &'a [TensorId],
    /// Results that are written where the caller gets them.
    pub(super) direct: &'a PerRecord<usize>,
}

/// Results that are computed where another one has them as a part: joining tensors then copies nothing.
#[derive(Default)]
pub(super) struct Homes(PerRecord<Part>);

impl Homes {
    /// As many as there can be without a larger arena, of as many as are tried.
    pub(super) fn new(made: Made<'_>) -> Result<Self, GraphError> {
        let all = made.joined();
        let mut homes = Self::default();
        if !made.ahead.order.iter().any(|&id| all.0.contains(id)) {
            return Ok(homes);
        }
        let limit = Spans::new(made, &homes)?.bound();
        if Spans::new(made, &all)?.bound() <= limit {
            return Ok(all);
        }
        // What is computed last takes up room for the shortest time.
        let order = &made.ahead.order;
        let parts = order.iter().rev().filter_map(|&id| Some((id, *all.0.get(id)?)));
        for (id, part) in parts.take(WORK / order.len()) {
            homes.0.insert(id, part);
            if Spans::new(made, &homes)?.bound() > limit {
                homes.0.remove(id);
            }
        }
        Ok(homes)
    }

    /// The record in whose memory a tensor lies, and the bytes from its start.
    pub(super) fn of(&self, cx: &Context, id: TensorId) -> (TensorId, usize) {
        let (mut root, mut offset) = viewed(cx, id);
        while let Some(&(whole, at)) = self.0.get(root) {
            (root, offset) = (whole, offset + at);
        }
        (root, offset)
    }

    /// Whether all that a step would copy into its result lies there.
    pub(super) fn done(&self, cx: &Context, id: TensorId, step: &dyn Step) -> bool {
        let (whole, start) = self.of(cx, id);
        let lies = |(i, &s): (usize, &TensorId)| {
            step.part(i).is_some_and(|at| self.of(cx, s) == (whole, start + at))
        };
        cx.record(id).src().iter().enumerate().all(lies)
    }
}

/// What a result is a part of, and bytes from the start of that.
type Part = (TensorId, usize);

impl Made<'_> {
    /// All that could be computed where a step puts its operands together.
    fn joined(self) -> Homes {
        let Self { cx, lowered, .. } = self;
        let ends: PerRecord<()> = self.outputs.iter().map(|&id| (viewed(cx, id).0, ())).collect();
        let mut homes = Homes::default();
        // Of what is put together: where it would lie, and the bytes that are among the operands.
        let mut parts: PerRecord<(Option<usize>, usize)> = PerRecord::default();
        for &id in &self.ahead.order {
            let Some(step) = lowered.get(id).map(|l| &*l.step) else { continue };
            // Operands that are parts of one record (views of it, or what is put together there) must have all of it
            // among them, in its order.
            let mut roots = Vec::new();
            for (i, &s) in cx.record(id).src().iter().enumerate() {
                let Some(at) = step.part(i) else { continue };
                let bytes = cx.record(s).info().stored_bytes().unwrap_or(0);
                let (root, offset) = homes.of(cx, s);
                let start = at.checked_sub(offset);
                match parts.slot(root) {
                    Some((other, sum)) if *other == start => *sum += bytes,
                    Some((other, _)) => *other = None,
                    none => {
                        *none = Some((start, bytes));
                        roots.push(root);
                    }
                }
            }
            for root in roots {
                if let Some((Some(start), bytes)) = parts.remove(root)
                    && start.is_multiple_of(ALIGN)
                    && lowered.contains(root)
                    && !ends.contains(root)
                    && cx.record(root).info().stored_bytes() == Some(bytes)
                {
                    homes.0.insert(root, (id, start));
                }
            }
        }
        homes
    }
}

/// What a step has computed already: by what, of what, how many bytes, and the span that they are.
type Known = (String, Vec<TensorId>, usize, usize);

/// What must exist when.
struct Spans {
    all: Vec<Span>,
    /// Per record: index of its span.
    of: Vec<Option<usize>>,
    /// Indices of the spans of what the steps of a record leave for those behind them.
    workspaces: PerRecord<Vec<usize>>,
}

impl Spans {
    fn new(made: Made<'_>, homes: &Homes) -> Result<Self, GraphError> {
        let Made { cx, ahead, lowered, outputs, direct } = made;
        let order = &ahead.order;
        // Last step (position in `order`) that reads each root.
        let mut last = vec![0; cx.len()];
        for (step, &id) in order.iter().enumerate() {
            for &s in cx.record(id).src() {
                last[homes.of(cx, s).0.index()] = step;
            }
        }
        for &output in outputs {
            last[homes.of(cx, output).0.index()] = usize::MAX;
        }
        let mut spans: Vec<Span> = Vec::new();
        let mut span = vec![None; cx.len()];
        let mut workspaces = PerRecord::default();
        let mut shared: PerRecord<Vec<Known>> = PerRecord::default();
        for (step, &id) in order.iter().enumerate() {
            let record = cx.record(id);
            if record.value().is_some() || record.view_offset().is_some() {
                continue;
            }
            let home = homes.of(cx, id).0;
            let bytes = |id| cx.record(id).info().stored_bytes().ok_or_else(|| overflow(cx, id));
            let (bytes, last) = (bytes(home)?, last[home.index()].max(step));
            let before = lowered.get(id).map_or(&[][..], |l| &l.before);
            for (i, (before, bytes)) in before.iter().enumerate() {
                let new = spans.len();
                let at = match before.shared() {
                    Some(key) => {
                        let read = record.src().iter().enumerate();
                        let read = read.filter(|(i, _)| before.reads(*i)).map(|(_, s)| *s);
                        let read: Vec<TensorId> = read.collect();
                        let first = read.first().copied().unwrap_or(id);
                        let known = shared.slot(first).get_or_insert_with(Vec::new);
                        let same =
                            known.iter().find(|k| k.0 == key && k.1 == read && k.2 == *bytes);
                        let at = same.map_or(new, |known| known.3);
                        if at == new {
                            known.push((key, read, *bytes, new));
                        }
                        at
                    }
                    None => new,
                };
                workspaces.slot(id).get_or_insert_with(Vec::new).push(at);
                if at == new {
                    let first = ahead.position(id).filter(|_| i == 0).unwrap_or(step);
                    spans.push(Span { bytes: *bytes, first, last: step });
                }
                spans[at].last = step;
            }
            if direct.contains(home) || span[home.index()].is_some() {
                continue;
            }
            let reused = lowered.get(id).filter(|_| home == id).and_then(|l| {
                reusable(cx, homes, id, &*l.step, bytes, |s| {
                    let i: usize = span[s.index()]?;
                    (spans[i].last == step && spans[i].bytes == bytes).then_some(i)
                })
            });
            span[home.index()] = Some(if let Some(i) = reused {
                spans[i].last = last;
                i
            } else {
                // The caller fills leaves before the first step.
                let first = if matches!(record.op(), Op::Leaf) { 0 } else { step };
                spans.push(Span { bytes, first, last });
                spans.len() - 1
            });
        }
        Ok(Self { all: spans, of: span, workspaces })
    }

    /// Bytes that no arena can do without; nothing if their number overflows.
    fn bound(&self) -> Option<usize> {
        bound(&self.all)
    }
}

fn overflow(cx: &Context, id: TensorId) -> GraphError {
    let source = ShapeError::Overflow(cx.dims(id));
    GraphError::Shape { op: cx.record(id).op().name(), source }
}

/// Where the results of a graph lie.
pub(super) struct Slots {
    spans: Spans,
    offsets: Vec<usize>,
    pub(super) arena_bytes: usize,
    pub(super) arena_bound: usize,
}

impl Slots {
    pub(super) fn new(made: Made<'_>, homes: &Homes) -> Result<Self, GraphError> {
        let spans = Spans::new(made, homes)?;
        let too_large = || overflow(made.cx, *made.ahead.order.last().expect("spans"));
        let arena_bound = spans.bound().ok_or_else(too_large)?;
        let (offsets, arena_bytes) = place(&spans.all).ok_or_else(too_large)?;
        Ok(Self { spans, offsets, arena_bytes, arena_bound })
    }

    /// The number of pieces of memory.
    pub(super) fn spans(&self) -> usize {
        self.offsets.len()
    }

    /// Where step `i` before the one of record `id` leaves its result: number and offset of the span.
    pub(super) fn workspace(&self, id: TensorId, i: usize) -> (usize, usize) {
        let span = self.spans.workspaces[id][i];
        (span, self.offsets[span])
    }

    pub(super) fn offset(&self, root: TensorId) -> usize {
        self.offsets[self.spans.of[root.index()].expect("every result has a span")]
    }
}

/// The span of an operand that the step may write its result into. `dying` gives the span of a
/// record that is needed by nobody after this step.
fn reusable(
    cx: &Context,
    homes: &Homes,
    id: TensorId,
    step: &dyn Step,
    bytes: usize,
    dying: impl Fn(TensorId) -> Option<usize>,
) -> Option<usize> {
    let record = cx.record(id);
    record.src().iter().enumerate().find_map(|(i, &s)| {
        let (root, offset) = homes.of(cx, s);
        let whole = offset == 0
            && cx.record(s).info().stored_bytes() == Some(bytes)
            && cx.record(s).layout() == record.layout();
        // Another operand may be a part of the same memory that the kernel reads later.
        let alone = record
            .src()
            .iter()
            .enumerate()
            .all(|(j, &t)| i == j || s == t || homes.of(cx, t).0 != root);
        (step.may_overwrite(i) && whole && alone).then(|| dying(root)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::super::Executor;
    use crate::graph::ops::concat::Concat;
    use crate::graph::ops::unary::{Unary, UnaryOp};
    use crate::graph::{Context, TensorId};
    use crate::tensor::{DType, Tensor};
    use tilewright_kernels::Isa;

    const ROW: [usize; 2] = [1, 32];

    fn relu(cx: &mut Context, x: TensorId) -> TensorId {
        cx.op(Unary::new(UnaryOp::Relu), &[x]).unwrap()
    }

    fn join(cx: &mut Context, parts: &[TensorId]) -> TensorId {
        cx.op(Concat { axis: 0 }, parts).unwrap()
    }

    /// So many rows, beginning with `first`.
    fn rows(cx: &mut Context, x: TensorId, first: usize, rows: usize) -> TensorId {
        cx.view(x, &[rows, 32], &[32, 1], first * 128).unwrap()
    }

    /// Computes what `build` makes of two rows by a plan, on one thread and on two, and at once; gives the steps of
    /// the plan that join something, and the bytes of its arena.
    fn check(build: impl Fn(&mut Context, [TensorId; 2]) -> Vec<TensorId>) -> (usize, usize) {
        let input = |seed: usize| {
            let values: Vec<f32> = (0..32).map(|i| ((i * seed) % 19) as f32 - 7.0).collect();
            Tensor::from_slice(&ROW, &values).unwrap()
        };
        let given = [input(5), input(11)];
        let mut cx = Context::new();
        let known = given.clone().map(|row| cx.constant(row).unwrap());
        let wanted = build(&mut cx, known);
        let mut found = (0, 0);
        for threads in [1, 2] {
            let mut unknown = Context::new();
            let inputs = ["a", "b"].map(|name| unknown.input(name, DType::F32, &ROW).unwrap());
            let outputs = build(&mut unknown, inputs);
            let mut executor = Executor::new(Isa::Scalar, threads).unwrap();
            let plan = executor.plan(&mut unknown, &outputs).unwrap();
            let got = executor.run(&plan, &[&given[0], &given[1]], None).unwrap();
            for (got, wanted) in got.iter().zip(&wanted) {
                assert_eq!(got.bytes(), cx.constant_value(*wanted).unwrap().bytes());
            }
            assert!(plan.arena_bytes() >= plan.arena_bound());
            found = (plan.nodes().filter(|n| n.kernel == "concat").count(), plan.arena_bytes());
        }
        found
    }

    #[test]
    fn what_is_joined_is_computed_there() {
        // Where the caller gets it, and in the arena.
        let plain = |cx: &mut Context, two: [TensorId; 2]| {
            let two = two.map(|x| relu(cx, x));
            vec![join(cx, &two)]
        };
        assert_eq!(check(plain).0, 0);
        let read = |cx: &mut Context, two: [TensorId; 2]| {
            let y = plain(cx, two)[0];
            vec![relu(cx, y)]
        };
        assert_eq!(check(read).0, 0);
        // Ever longer lists of the same, one of which goes on in the next.
        let growing = |cx: &mut Context, two: [TensorId; 2]| {
            let mut parts = two.map(|x| relu(cx, x)).to_vec();
            for _ in 0..3 {
                let all = join(cx, &parts);
                let new = rows(cx, all, 1, 1);
                parts.push(relu(cx, new));
            }
            vec![join(cx, &parts)]
        };
        assert_eq!(check(growing).0, 0);
        // Two parts of one result, and something else.
        let parts = |cx: &mut Context, two: [TensorId; 2]| {
            let whole = read(cx, two)[0];
            let [a, b] = [0, 1].map(|i| rows(cx, whole, i, 1));
            let more = relu(cx, b);
            vec![join(cx, &[a, b, more])]
        };
        assert_eq!(check(parts).0, 0);
    }

    #[test]
    fn joins_of_joins_of_joins() {
        let nested = |cx: &mut Context, [a, b]: [TensorId; 2]| {
            let mut all = relu(cx, a);
            for _ in 0..600 {
                let more = relu(cx, b);
                all = join(cx, &[all, more]);
            }
            vec![all]
        };
        // Now and then one is listed, so that the lists of what is read stay short.
        assert_eq!(check(nested).0, 2);
    }

    #[test]
    fn what_cannot_lie_there_is_copied() {
        // An input.
        let input = |cx: &mut Context, [a, b]: [TensorId; 2]| {
            let b = relu(cx, b);
            vec![join(cx, &[a, b])]
        };
        assert_eq!(check(input).0, 1);
        // A part that is a result itself.
        let result = |cx: &mut Context, [a, b]: [TensorId; 2]| {
            let two = [a, b].map(|x| relu(cx, x));
            vec![join(cx, &two), two[1]]
        };
        assert_eq!(check(result).0, 1);
        // One that is there twice, and others that are in two.
        let twice = |cx: &mut Context, [a, b]: [TensorId; 2]| {
            let [a, b] = [a, b].map(|x| relu(cx, x));
            vec![join(cx, &[a, b, a]), join(cx, &[b, a])]
        };
        assert_eq!(check(twice).0, 2);
        // Parts of one result in another order, and some of them.
        for order in [[1, 0], [0, 0], [1, 2]] {
            let others = |cx: &mut Context, [a, b]: [TensorId; 2]| {
                let whole = join(cx, &[a, b, a]);
                let whole = relu(cx, whole);
                let two = order.map(|i| rows(cx, whole, i, 1));
                vec![join(cx, &two)]
            };
            check(others);
        }
        // Where no tensor may begin.
        let odd = |cx: &mut Context, [a, b]: [TensorId; 2]| {
            let two = [a, b].map(|x| relu(cx, x));
            let two = two.map(|x| cx.view(x, &[1, 31], &[32, 1], 0).unwrap());
            let two = two.map(|x| relu(cx, x));
            vec![join(cx, &two)]
        };
        assert_eq!(check(odd).0, 1);
    }

    #[test]
    fn nothing_lies_there_at_the_cost_of_a_larger_arena() {
        let (joins, arena) = check(|cx, [a, b]| {
            let early = relu(cx, a);
            let many = join(cx, &[b; 8]);
            let many = relu(cx, many);
            let more = join(cx, &[many, many]);
            let more = relu(cx, more);
            let part = rows(cx, more, 0, 8);
            let late = relu(cx, part);
            let all = join(cx, &[early, late]);
            vec![relu(cx, all)]
        });
        // The first row, eight and sixteen: there are nine in what the first ends up in.
        assert_eq!((joins, arena), (3, (1 + 8 + 16) * 128));
    }
}
