//! Packed convolution weights: `[K tile][phase][channel block][filter row][filter column][channel
//! in block][output channel in tile]`.

use super::conv::{CHUNK, ConvParams, InputLayout};
use super::conv_geometry::{KTile, Phase};
use crate::C_BLOCK;

/// Packs weights of ONNX order. `dst` holds at least all K tiles.
pub(crate) fn pack_weights(
    p: &ConvParams,
    k_tiles: &[KTile],
    phases: &[Phase],
    src: &[f32],
    dst: &mut [f32],
) {
    let block = match p.input {
        InputLayout::Blocked => C_BLOCK,
        InputLayout::Interleaved => CHUNK,
    };
    let mut rest = dst;
    for tile in k_tiles {
        for phase in phases {
            for first in (0..tile.channels).step_by(block) {
                for &r in &phase.filter_rows {
                    for &s in &phase.filter_cols {
                        for c in first..tile.channels.min(first + block) {
                            let (out, after) = rest.split_at_mut(tile.width);
                            pack_vector(
                                p,
                                src,
                                tile.block * C_BLOCK,
                                tile.c_first + c,
                                [r, s],
                                out,
                            );
                            rest = after;
                        }
                    }
                }
            }
        }
    }
}

/// The weights of tap `[r, s]` between input channel `c` and the output channels from `first` on: 0
/// for those of other groups, and for those that do not exist.
fn pack_vector(
    p: &ConvParams,
    src: &[f32],
    first: usize,
    c: usize,
    [r, s]: [usize; 2],
    out: &mut [f32],
) {
    let (c_group, k_group) = (p.c_in / p.groups, p.c_out / p.groups);
    let [f_h, f_w] = p.kernel;
    let group = c / c_group;
    let from = first.max(group * k_group);
    let to = (first + out.len()).min((group + 1) * k_group);
    out.fill(0.0);
    for k in from..to {
        let at = if p.transposed {
            c * k_group + (k - group * k_group)
        } else {
            k * c_group + (c - group * c_group)
        };
        out[k - first] = src[(at * f_h + r) * f_w + s];
    }
}
