//! Packed convolution weights: `[K tile][phase][channel block][filter row][filter column][channel
//! in block][output channel in tile]`.

use super::conv::{CHUNK, ConvParams, InputLayout};
use super::conv_geometry::{KTile, Phase};
use crate::C_BLOCK;

/// Packs weights of ONNX order. `dst` holds at least all K tiles.
pub(crate) fn pack_weights(p: &ConvParams, k_tiles: &[KTile], phases: &[Phase], src: &[f32], dst: &mut [f32]) {
    let mut out = dst.iter_mut();
    for tile in k_tiles {
        let block = match p.input {
            InputLayout::Blocked => C_BLOCK,
            InputLayout::Interleaved => CHUNK,
        };
        for phase in phases {
            let mut first = 0;
            while first < tile.channels {
                let channels = block.min(tile.channels - first);
                for &r in &phase.filter_rows {
                    for &s in &phase.filter_cols {
                        for c in 0..channels {
                            let c = tile.c_first + first + c;
                            let k = tile.block * C_BLOCK;
                            for (k, out) in (k..k + tile.width).zip(&mut out) {
                                *out = weight(p, src, k, c, r, s);
                            }
                        }
                    }
                }
                first += channels;
            }
        }
    }
}

/// The weight between output channel `k` and input channel `c`: 0 if they are of different groups,
/// or if there is no such output channel.
fn weight(p: &ConvParams, src: &[f32], k: usize, c: usize, r: usize, s: usize) -> f32 {
    let (c_group, k_group) = (p.c_in / p.groups, p.c_out / p.groups);
    if k >= p.c_out || c / c_group != k / k_group {
        return 0.0;
    }
    let (outer, inner, inner_len) =
        if p.transposed { (c, k % k_group, k_group) } else { (k, c % c_group, c_group) };
    src[((outer * inner_len + inner) * p.kernel[0] + r) * p.kernel[1] + s]
}
