//! SHA-256 (FIPS 180-4), by which people tell versions of the vendor's library apart.

use std::io::{self, Read};

/// Bits of the square roots of the first eight primes behind the point.
const START: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// Bits of the cube roots of the first 64 primes behind the point.
fn constants() -> [u32; 64] {
    let is_prime = |n: &u64| (2..*n).take_while(|d| d * d <= *n).all(|d| n % d != 0);
    let mut primes = (2..).filter(is_prime);
    core::array::from_fn(|_| {
        let prime = u128::from(primes.next().unwrap_or_default());
        // The largest whole number whose cube is at most the prime times 2^96.
        let mut root = 0u128;
        for bit in (0..36).rev() {
            let more = root | 1 << bit;
            if more * more * more <= prime << 96 {
                root = more;
            }
        }
        root as u32
    })
}

fn block(state: &mut [u32; 8], bytes: &[u8; 64], constants: &[u32; 64]) {
    let mut w = [0u32; 64];
    let (words, _) = bytes.as_chunks::<4>();
    w.iter_mut().zip(words).for_each(|(w, b)| *w = u32::from_be_bytes(*b));
    for i in 16..64 {
        let (early, late) = (w[i - 15], w[i - 2]);
        let s0 = early.rotate_right(7) ^ early.rotate_right(18) ^ early >> 3;
        let s1 = late.rotate_right(17) ^ late.rotate_right(19) ^ late >> 10;
        w[i] = w[i - 16].wrapping_add(s0).wrapping_add(w[i - 7]).wrapping_add(s1);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for (w, k) in w.iter().zip(constants) {
        let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = e & f ^ !e & g;
        let t1 = h.wrapping_add(s1).wrapping_add(choice).wrapping_add(*k).wrapping_add(*w);
        let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let t2 = s0.wrapping_add(a & b ^ a & c ^ b & c);
        (h, g, f, e) = (g, f, e, d.wrapping_add(t1));
        (d, c, b, a) = (c, b, a, t1.wrapping_add(t2));
    }
    let now = [a, b, c, d, e, f, g, h];
    state.iter_mut().zip(now).for_each(|(to, more)| *to = to.wrapping_add(more));
}

/// The digest of all that is left to read, in hexadecimal digits.
pub(super) fn sha256(mut from: impl Read) -> io::Result<String> {
    let mut all = Vec::new();
    let length = from.read_to_end(&mut all)? as u64 * 8;
    all.push(0x80);
    all.resize((all.len() + 8).next_multiple_of(64), 0);
    let end = all.len() - 8;
    all[end..].copy_from_slice(&length.to_be_bytes());
    let (mut state, constants) = (START, constants());
    let (blocks, _) = all.as_chunks::<64>();
    blocks.iter().for_each(|bytes| block(&mut state, bytes, &constants));
    Ok(state.iter().map(|word| format!("{word:08x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the standard, and lengths around that of a block.
    #[test]
    fn digests_are_those_of_the_standard() {
        let nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256(&b""[..]).unwrap(), nothing);
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(&b"abc"[..]).unwrap(), abc);
        let text = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        let long = "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1";
        assert_eq!(sha256(&text[..]).unwrap(), long);
        let many = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
        assert_eq!(sha256(&vec![b'a'; 1_000_000][..]).unwrap(), many);
    }
}
