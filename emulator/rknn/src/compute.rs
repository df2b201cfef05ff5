//! Products of matrices in their layouts, one element after the other as the layout says.

use half::f16;

use crate::chip::{Element, Matrices, Matrix};
use crate::fault::Wrong;

/// Elements of a matrix in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Dense {
    Float(Vec<f32>),
    Int(Vec<i32>),
}

/// Half of a byte, two's complement, the even one low.
fn nibble(bytes: &[u8], i: usize) -> i32 {
    let both = bytes[i / 2];
    let half = if i.is_multiple_of(2) { both & 15 } else { both >> 4 };
    i32::from(((half << 4) as i8) >> 4)
}

fn two(bytes: &[u8], i: usize) -> [u8; 2] {
    [bytes[2 * i], bytes[2 * i + 1]]
}

/// The elements of a matrix that lies in `bytes`, as floats if `float`.
pub(crate) fn dense(matrix: &Matrix, bytes: &[u8], float: bool) -> Dense {
    let places = (0..matrix.rows)
        .flat_map(|row| (0..matrix.columns).map(move |column| matrix.index(row, column)));
    let int = |i: usize| match matrix.element {
        Element::I4 => nibble(bytes, i),
        _ => i32::from(bytes[i] as i8),
    };
    match matrix.element {
        Element::F16 => {
            Dense::Float(places.map(|i| f16::from_le_bytes(two(bytes, i)).to_f32()).collect())
        }
        _ if float => Dense::Float(places.map(|i| int(i) as f32).collect()),
        _ => Dense::Int(places.map(int).collect()),
    }
}

/// `a * b`, summed in the order of `k`: in f32, or in wrapping 32-bit integers.
pub(crate) fn product(all: &Matrices, a: &Dense, b: &Dense) -> Dense {
    let (k, n) = (all.b.rows, all.b.columns);
    match (a, b) {
        (Dense::Float(a), Dense::Float(b)) => {
            let mut c = vec![0f32; all.a.rows * n];
            for (a, c) in a.chunks_exact(k).zip(c.chunks_exact_mut(n)) {
                for (&a, b) in a.iter().zip(b.chunks_exact(n)) {
                    c.iter_mut().zip(b).for_each(|(c, &b)| *c += a * b);
                }
            }
            Dense::Float(c)
        }
        (Dense::Int(a), Dense::Int(b)) => {
            let mut c = vec![0i32; all.a.rows * n];
            for (a, c) in a.chunks_exact(k).zip(c.chunks_exact_mut(n)) {
                for (&a, b) in a.iter().zip(b.chunks_exact(n)) {
                    c.iter_mut().zip(b).for_each(|(c, &b)| *c = c.wrapping_add(a.wrapping_mul(b)));
                }
            }
            Dense::Int(c)
        }
        _ => unreachable!("both operands are read as the same kind"),
    }
}

/// Damages a result; `false` if it shall not be written at all.
pub(crate) fn damage(c: &mut Dense, columns: usize, wrong: Wrong) -> bool {
    match c {
        Dense::Float(c) => damage_of(c, columns, wrong, (0.0, f32::NAN), |x| 2.0 * x + 1.0),
        Dense::Int(c) => damage_of(c, columns, wrong, (0, i32::MAX), |x| x.wrapping_mul(2)),
    }
}

fn damage_of<T: Copy>(
    c: &mut [T],
    columns: usize,
    wrong: Wrong,
    (zero, nan): (T, T),
    other: impl Fn(T) -> T,
) -> bool {
    match wrong {
        Wrong::Zero => c.fill(zero),
        Wrong::Stale => return false,
        Wrong::Nan => c.fill(nan),
        Wrong::Flip => c[c.len() / 2] = other(c[c.len() / 2]),
        Wrong::Scale => c.iter_mut().for_each(|c| *c = other(*c)),
        Wrong::SwapRows if c.len() > columns => {
            let (first, rest) = c.split_at_mut(columns);
            first.swap_with_slice(&mut rest[..columns]);
        }
        Wrong::SwapRows => {}
    }
    true
}

/// Writes a result in its layout and type; `scale` applies to what is not a plain sum of integers.
pub(crate) fn write(matrix: &Matrix, c: &Dense, scale: f32, bytes: &mut [u8]) {
    for row in 0..matrix.rows {
        for column in 0..matrix.columns {
            let from = row * matrix.columns + column;
            let sum = match c {
                Dense::Float(c) => c[from] * scale,
                Dense::Int(c) => c[from] as f32 * scale,
            };
            let exact = match c {
                Dense::Int(c) => c[from],
                Dense::Float(c) => c[from] as i32,
            };
            let i = matrix.index(row, column);
            match matrix.element {
                Element::F32 => bytes[4 * i..][..4].copy_from_slice(&sum.to_le_bytes()),
                Element::I32 => bytes[4 * i..][..4].copy_from_slice(&exact.to_le_bytes()),
                Element::F16 => {
                    bytes[2 * i..][..2].copy_from_slice(&f16::from_f32(sum).to_le_bytes());
                }
                Element::I16 => {
                    let x = exact.clamp(i16::MIN.into(), i16::MAX.into()) as i16;
                    bytes[2 * i..][..2].copy_from_slice(&x.to_le_bytes());
                }
                Element::I8 => {
                    let x = sum.round_ties_even().clamp(-128.0, 127.0) as i8;
                    bytes[i] = x as u8;
                }
                Element::I4 => unreachable!("no result has 4 bits"),
            }
        }
    }
}
