//! Where the tiles of Winograd's algorithm lie.

use super::conv_params::ConvParams;
use crate::C_BLOCK;
use crate::epilogue::TileActivation;

/// What products begin with: as many as the widest tile has columns.
pub(crate) static ZEROS: [f32; 128] = [0.0; 128];

/// Sizes of tiles and planes. Distances are in elements.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub(crate) h_in: usize,
    pub(crate) w_in: usize,
    pub(crate) h_out: usize,
    pub(crate) w_out: usize,
    /// Padding above and to the left.
    pub(crate) pads: [usize; 2],
    /// Outputs of a tile, along each axis.
    pub(crate) m: usize,
    /// Tiles per image, down and across.
    pub(crate) tiles: [usize; 2],
    /// Channel blocks of the input.
    pub(crate) c_blocks: usize,
    /// Between two images and two channel blocks of input and output.
    pub(crate) x_image: usize,
    pub(crate) x_plane: usize,
    pub(crate) y_image: usize,
    pub(crate) y_plane: usize,
    /// Between two positions and two channel blocks of transformed input and products.
    pub(crate) v_step: usize,
    pub(crate) v_plane: usize,
    pub(crate) m_step: usize,
    pub(crate) activation: TileActivation,
}

/// A tile's place: image, row and column of tiles.
pub(crate) struct TileAt {
    pub(crate) image: usize,
    pub(crate) y: usize,
    pub(crate) x: usize,
}

/// The inputs that a tile sees.
pub(crate) struct Window {
    /// Of the first one from the plane's start; may point outside.
    pub(crate) offset: isize,
    /// Bit `i` is set if row or column `i` lies in the image.
    pub(crate) rows: u32,
    pub(crate) cols: u32,
    /// Whether all do.
    pub(crate) whole: bool,
}

impl Geometry {
    /// Tiles of `m x m` outputs of a convolution of checked sizes. Positions and planes of what is transformed
    /// lie as their user says: here their distances are 0.
    pub(crate) fn new(p: &ConvParams, m: usize) -> Self {
        let (h_w, o_h_w) = (p.h_in * p.w_in, p.h_out * p.w_out);
        let c_blocks = p.c_in.div_ceil(C_BLOCK);
        Self {
            h_in: p.h_in,
            w_in: p.w_in,
            h_out: p.h_out,
            w_out: p.w_out,
            pads: [p.pads[0], p.pads[1]],
            m,
            tiles: [p.h_out.div_ceil(m), p.w_out.div_ceil(m)],
            c_blocks,
            x_image: c_blocks * h_w * C_BLOCK,
            x_plane: h_w * C_BLOCK,
            y_image: p.c_out.div_ceil(C_BLOCK) * o_h_w * C_BLOCK,
            y_plane: o_h_w * C_BLOCK,
            v_step: 0,
            v_plane: 0,
            m_step: 0,
            activation: p.epilogue.activation.in_tile().unwrap_or(TileActivation::None),
        }
    }

    #[inline(always)]
    pub(crate) fn tile(&self, tile: usize) -> TileAt {
        let [down, across] = self.tiles;
        TileAt { image: tile / across / down, y: tile / across % down, x: tile % across }
    }

    #[inline(always)]
    pub(crate) fn advance(&self, at: &mut TileAt) {
        at.x += 1;
        if at.x == self.tiles[1] {
            (at.x, at.y) = (0, at.y + 1);
            if at.y == self.tiles[0] {
                (at.y, at.image) = (0, at.image + 1);
            }
        }
    }

    /// The `a x a` inputs of a tile.
    #[inline(always)]
    pub(crate) fn window(&self, at: &TileAt, a: usize) -> Window {
        // Positions count from the first row or column of padding.
        let inside = |first: usize, pad: usize, size: usize| {
            let from = pad.saturating_sub(first).min(a);
            let to = (pad + size).saturating_sub(first).min(a);
            if from < to { (1u32 << to) - (1 << from) } else { 0 }
        };
        let (y, x) = (at.y * self.m, at.x * self.m);
        let rows = inside(y, self.pads[0], self.h_in);
        let cols = inside(x, self.pads[1], self.w_in);
        let (y, x) = (y as isize - self.pads[0] as isize, x as isize - self.pads[1] as isize);
        let all = (1 << a) - 1;
        Window {
            offset: (y * self.w_in as isize + x) * C_BLOCK as isize,
            rows,
            cols,
            whole: rows == all && cols == all,
        }
    }
}
