//! What is expected of the hot loop of which kernel.
//!
//! | kernels | multiply-adds | stack | of a main tile's instructions on AArch64 |
//! |---|---|---|---|
//! | convolutions, products | a multiple of rows x pixels x vectors x unroll | nothing | 80 % multiply-adds |
//! | block-quantised weights, many columns | a multiple of a step's: see [`Step`] | nothing | 80 % of the share that loads, scales and taking apart leave |
//! | the same, one column | the same | no store | memory is the limit |
//! | attention over a cache, gates, rotations | some | no store | memory or long chains are the limit |
//!
//! What a loop reads from the stack and does not write there are constants: as good a place as any.
//!
//! Of SSE4.1 these are convolutions and products of floats: its multiply-add is a product, a sum and often a copy, and
//! elsewhere products of other kinds stand among them, and a few vectors wait on the stack.

use super::{ARM, HotLoop, Kernel};
use crate::rows::Row;

/// Least share of multiply-adds in the hot loop of a main tile on AArch64, in percent. On x86 an FMA
/// reads one operand from memory, and the decoders are wider than the FMA units: no limit there.
const ARM_SHARE: f64 = 80.0;

/// Functions without a tile that are looked at, by file.
const OTHERS: [(&str, &[&str]); 4] = [
    ("attention_decode", &["scores", "scores_q8", "values", "values_q8"]),
    ("attention_tile", &["weigh", "rescale"]),
    ("glu", &["silu", "gelu", "gelu_tanh"]),
    ("rope", &["interleaved", "half"]),
];

/// Operation, line of the table, tile and kind of a kernel, from the parts of its path.
pub(super) fn name<'a>(parts: &[&'a str]) -> Option<(&'a str, &'a str, &'a str, Option<&'a str>)> {
    let find = |names: &[&str]| parts.iter().position(|part| names.contains(part));
    if let Some(at) = find(&["conv_tile", "matmul_tile", "dot_tile"]) {
        let (row, name) = (parts.get(at + 1)?, parts.get(at + 2)?);
        let sums = name.starts_with("sums_").then_some(*name);
        return Some((parts[at], row, name.strip_prefix("tile_").or(sums)?, None));
    }
    if let [.., "block", "tile", row, _, name, _] = *parts {
        let (kind, tile) = name.strip_prefix("tile_")?.rsplit_once('_')?;
        return Some(("block", row, tile, Some(kind)));
    }
    let (file, functions) = OTHERS.iter().find(|(file, _)| parts.contains(file))?;
    let at = find(&[file])?;
    let (row, name) = (parts.get(at + 1)?, parts.get(at + 2)?);
    let known = functions.contains(name) && row.contains('_');
    known.then_some((parts[at], row, name, Some(name)))
}

/// What is wrong with a kernel.
pub(super) fn check(kernel: &Kernel<'_>, target: &str, rows: &[Row]) -> Option<String> {
    // Built for a processor that has AVX, the same instructions have other names.
    let is_counted =
        |hot: HotLoop| matches!(kernel.op, "conv_tile" | "matmul_tile") && hot.fmas > 0;
    if kernel.row.starts_with("sse41") && !kernel.hot_loop().is_some_and(is_counted) {
        return None;
    }
    let what = match kernel.kind {
        Some(kind) if kernel.op == "block" => block(kernel, kind, target),
        Some(_) => other(kernel),
        None => product(kernel, target, rows),
    };
    let kind = kernel.kind.filter(|kind| *kind != kernel.tile).map(|kind| format!("{kind} "));
    let kind = kind.unwrap_or_default();
    what.map(|what| format!("{} {} {kind}{}: {what}", kernel.op, kernel.row, kernel.tile))
}

fn product(kernel: &Kernel<'_>, target: &str, rows: &[Row]) -> Option<String> {
    let line = rows.iter().flat_map(|row| &row.lines).find(|line| line.id == kernel.row);
    let unroll = line.and_then(|line| line.number("unroll"));
    let (Some(unroll), Some(tile)) = (unroll, kernel.vectors()) else {
        return Some("not a line of the table".into());
    };
    let unroll = if kernel.single { 1 } else { unroll };
    let Some(hot) = kernel.hot_loop() else { return Some("no loop".into()) };
    let few = target == ARM && kernel.is_main(target) && hot.share() < ARM_SHARE;
    counted(hot, tile * unroll)
        .or_else(|| on_stack(hot))
        .or_else(|| few.then(|| format!("{:.1} % of the hot loop are FMA", hot.share())))
}

/// What a step of the reduction consists of for each vector of rows and column: dot products of four
/// bytes, scales, minima; and what is loaded, or done to take words apart, for each vector of rows.
struct Step {
    dots: usize,
    scales: usize,
    minima: usize,
    words: usize,
}

impl Step {
    fn of(kind: &str) -> Option<Self> {
        let step = |dots, scales, minima, words| Some(Self { dots, scales, minima, words });
        match kind {
            "q8_0" | "g32" => step(8, 1, 0, 8),
            // A load, two masks and a shift for two words, which many columns load twice.
            "q4_0" => step(8, 1, 0, 20),
            "g32m" => step(8, 1, 1, 8),
            "g16" => step(8, 2, 0, 8),
            "g16m" => step(8, 2, 2, 8),
            "q5_0" | "iq4_nl" | "iq4_xs" | "mxfp4" | "q1_0" | "q2_0" => step(8, 1, 0, 0),
            "q4_1" | "q5_1" => step(8, 1, 1, 0),
            // A half of a block, of which there is a loop, and quarters.
            "q4_k" | "q5_k" => step(32, 4, 4, 0),
            "q3_k" => step(32, 8, 0, 0),
            "grid" => step(8, 2, 0, 0),
            "q6_k" => step(16, 4, 0, 0),
            "q2_k" => step(16, 4, 4, 0),
            // Floats, whose products are one each.
            "u4" => step(32, 1, 1, 0),
            "f32" => step(1, 0, 0, 1),
            // A conversion each.
            "f16" | "bf16" => step(1, 0, 0, 2),
            _ => None,
        }
    }

    fn fmas(&self) -> usize {
        self.dots + self.scales + self.minima
    }

    /// Instructions for a tile of so many columns and vectors, at least, if a dot product is `dot` of
    /// them. Four columns' words are a load, where an instruction takes a lane; scales, starts and
    /// minima are one per column.
    fn instructions(&self, columns: f64, vectors: f64, dot: f64) -> f64 {
        let [dots, scales, minima] = [self.dots, self.scales, self.minima].map(|n| n as f64);
        let sums = columns * vectors * (dots * dot + 3.0 * scales + minima);
        let of_rows = vectors * (self.words as f64 + scales + minima);
        let lanes = if dot > 1.0 { 1.0 } else { 4.0 };
        let of_columns = dots * (columns / lanes).ceil() + columns * 2.0 * scales;
        sums + of_rows + of_columns
    }
}

fn block(kernel: &Kernel<'_>, kind: &str, target: &str) -> Option<String> {
    let numbers: Vec<usize> = kernel.tile.split('x').filter_map(|n| n.parse().ok()).collect();
    let (Some(step), &[columns, vectors]) = (Step::of(kind), &numbers[..]) else {
        return Some("an unknown kind".into());
    };
    let Some(hot) = kernel.hot_loop() else { return Some("no loop".into()) };
    // A matrix product counts as two dot products, of which a single column needs one.
    let matrix = if kernel.row.starts_with("i8mm") && kind.starts_with('g') { 2 } else { 1 };
    let dots = step.dots * if columns == 1 { matrix } else { 1 };
    // A single column's four bits stay in place: its four sums become one by a product each but the first.
    let joins = if columns == 1 && kind == "u4" { 3 } else { 0 };
    let wrong = counted(hot, columns * vectors * (dots + joins + step.fmas() - step.dots));
    if columns == 1 {
        return wrong.or_else(|| stored(hot));
    }
    let dot = match kernel.row {
        _ if step.scales == 0 => 1.0,
        // Two products of halves, a sum of pairs, and one that accumulates.
        "neon_block" => 4.0,
        _ => 1.0 / matrix as f64,
    };
    let [c, v] = [columns, vectors].map(|n| n as f64);
    let least = ARM_SHARE * c * v * step.fmas() as f64 / step.instructions(c, v, dot);
    let few = target == ARM && vectors > 1 && hot.share() < least;
    let few =
        few.then(|| format!("{:.1} % of the hot loop are FMA, expected {least:.1}", hot.share()));
    wrong.or_else(|| on_stack(hot)).or(few)
}

fn other(kernel: &Kernel<'_>) -> Option<String> {
    // A row that is scaled needs no loop of multiply-adds.
    let hot = kernel.hot_loop().filter(|hot| hot.fmas > 0 || kernel.tile == "rescale");
    hot.map_or(Some("no loop with FMA".into()), stored)
}

fn counted(hot: HotLoop, each: usize) -> Option<String> {
    let wrong = hot.fmas == 0 || !hot.fmas.is_multiple_of(each);
    wrong.then(|| format!("{} FMA in the hot loop, expected {each}", hot.fmas))
}

fn on_stack(hot: HotLoop) -> Option<String> {
    (hot.stack > 0).then(|| format!("{} vector accesses to the stack in the hot loop", hot.stack))
}

fn stored(hot: HotLoop) -> Option<String> {
    (hot.stored > 0).then(|| format!("{} vectors stored on the stack in the hot loop", hot.stored))
}

#[cfg(test)]
mod tests {
    use super::super::{X86, kernels};
    use super::*;

    fn verdict(path: &str, target: &str, body: &str, end: &str) -> Option<String> {
        let text = format!("{path}:\n.LBB0_1:\n{body}\t{end}\t.LBB0_1\n.Lfunc_end0:\n");
        let kernels = kernels(&text);
        assert_eq!(kernels.len(), 1, "{path}");
        check(&kernels[0], target, &[])
    }

    fn block_kernel(row: &str, tile: &str) -> String {
        let sizes = [row.len(), tile.len()];
        format!(
            "_ZN18tilewright_kernels8template5block4tile{}{row}3ROW{}{tile}17h0123456789abcdefE",
            sizes[0], sizes[1]
        )
    }

    #[test]
    fn blocks_have_the_products_of_their_kind_and_no_spills() {
        let path = block_kernel("avxvnni_block", "tile_g32_3x2");
        let dot = "\t{vex}\tvpdpbusd\t(%rax), %ymm0, %ymm1\n";
        let spill = "\tvmovups\t32(%rsp), %ymm1\n";
        assert_eq!(verdict(&path, X86, &dot.repeat(54), "jne"), None);
        let found = verdict(&path, X86, &dot.repeat(53), "jne").unwrap();
        assert!(found.contains("avxvnni_block g32 3x2: 53 FMA"), "{found}");
        let found = verdict(&path, X86, &(dot.repeat(54) + spill), "jne").unwrap();
        assert!(found.contains("1 vector accesses"), "{found}");
        // A single column may read a constant, but not write.
        let path = block_kernel("avxvnni_block", "tile_q6_k_1x1");
        assert_eq!(verdict(&path, X86, &(dot.repeat(80) + spill), "jne"), None);
        let store = "\tvmovups\t%ymm1, 32(%rsp)\n";
        let found = verdict(&path, X86, &(dot.repeat(80) + store), "jne").unwrap();
        assert!(found.contains("1 vectors stored"), "{found}");
    }

    #[test]
    fn blocks_on_arm_need_a_share_of_what_their_kind_leaves() {
        let path = block_kernel("dotprod_block", "tile_g32_4x2");
        let (dot, other) = ("\tsdot\tv0.4s, v1.16b, v2.4b[0]\n", "\tadd\tx0, x0, #16\n");
        assert_eq!(verdict(&path, ARM, &(dot.repeat(72) + &other.repeat(60)), "b.ne"), None);
        let found = verdict(&path, ARM, &(dot.repeat(72) + &other.repeat(110)), "b.ne").unwrap();
        assert!(found.contains("% of the hot loop are FMA, expected"), "{found}");
        let path = block_kernel("i8mm_block", "tile_g32_4x2");
        let dot = "\tsmmla\tv0.4s, v1.16b, v2.16b\n".repeat(32);
        assert_eq!(
            verdict(&path, ARM, &(dot + &"\tfmla\tv0.4s, v1.4s, v2.4s\n".repeat(8)), "b.ne"),
            None
        );
    }

    #[test]
    fn kernels_without_a_tile_store_nothing_on_the_stack() {
        let path = "_ZN18tilewright_kernels8template16attention_decode8avx2_f326values17h0123456789abcdefE";
        let fma = "\tvfmadd231ps\t%ymm0, %ymm1, %ymm2\n";
        assert_eq!(verdict(path, X86, fma, "jne"), None);
        let store = format!("{fma}\tvmovups\t%ymm1, (%rsp)\n");
        assert!(
            verdict(path, X86, &store, "jne")
                .unwrap()
                .starts_with("attention_decode avx2_f32 values: ")
        );
        assert!(verdict(path, X86, "\tnop\n", "jne").unwrap().contains("no loop with FMA"));
    }
}
