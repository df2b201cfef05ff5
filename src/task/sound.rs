//! From a sound to the features that audio networks take: log-mel energies and MFCCs.
//!
//! Frames of the sound are windowed (periodic Hann), transformed, and their spectra summed into
//! bands that are equally wide on the mel scale; the logarithms of the sums are the log-mel
//! energies, and their discrete cosine transform (DCT-II) the cepstral coefficients (MFCC).
//! The same names and defaults as `tf.signal` (`linear_to_mel_weight_matrix`,
//! `mfccs_from_log_mel_spectrograms`) and HTK's mel scale, `2595 log10(1 + f / 700)`.

use super::TaskError;
use rustfft::num_complex::Complex;

/// Most samples, frames or bands; anything larger is taken for a mistake.
const MOST: usize = 1 << 22;

/// How a sound becomes features.
#[derive(Clone, Debug, PartialEq)]
pub struct Features {
    /// Samples per second.
    pub rate: u32,
    /// Samples of the sound: a shorter one is followed by zeros, a longer one cut off. `None` to
    /// take it as it is.
    pub length: Option<usize>,
    /// Divide by the greatest sample first.
    pub normalize: bool,
    /// Samples of a frame.
    pub frame: usize,
    /// Samples from one frame to the next.
    pub step: usize,
    /// Samples of the transform; those behind the frame are zeros.
    pub fft: usize,
    /// Square the magnitudes of the spectrum.
    pub power: bool,
    /// Bands.
    pub mels: usize,
    /// Lower and upper edge of the bands, in Hz.
    pub band: [f32; 2],
    /// What is added to an energy before its logarithm.
    pub floor: f32,
    /// Ten times the decimal logarithm, instead of the natural one.
    pub decibel: bool,
    /// Cepstral coefficients to give instead of log-mel energies, lowest first.
    pub coefficients: Option<usize>,
}

impl Features {
    /// The features of a sound of one channel, `[frames, bands or coefficients]`, slowest first,
    /// and the number of frames.
    ///
    /// # Errors
    /// [`TaskError::UnsupportedInput`] for another rate than the network's, a sound shorter than a
    /// frame, and sizes that make no sense.
    pub fn compute(&self, rate: u32, samples: &[f32]) -> Result<(Vec<f32>, usize), TaskError> {
        let refuse = |why: String| Err(TaskError::UnsupportedInput(why));
        if rate != self.rate {
            return refuse(format!(
                "the sound has {rate} samples per second, the network wants {}; convert it first",
                self.rate
            ));
        }
        let length = self.length.unwrap_or(samples.len());
        let sizes = [self.frame, self.step, self.fft, self.mels];
        let bins = self.fft / 2 + 1;
        if sizes.contains(&0)
            || sizes.iter().chain([&length]).any(|&n| n > MOST)
            || self.frame > self.fft
            || !self.fft.is_multiple_of(2)
            || self.mels * bins > MOST
            || self.coefficients.is_some_and(|n| n > self.mels)
        {
            return refuse(format!(
                "features of frames of {} samples every {}, an even transform of {}, {} bands and \
                 {} coefficients make no sense",
                self.frame,
                self.step,
                self.fft,
                self.mels,
                self.coefficients.unwrap_or(0)
            ));
        }
        if length < self.frame {
            return refuse(format!(
                "the sound has {length} samples, fewer than one frame of {}",
                self.frame
            ));
        }
        let frames = (length - self.frame) / self.step + 1;
        let width = self.coefficients.unwrap_or(self.mels);
        if frames.saturating_mul(width) > MOST {
            return refuse(format!("a sound of {length} samples is too long for one input"));
        }
        let peak = samples.iter().copied().fold(0.0, f32::max);
        let scale = if self.normalize && peak > 0.0 { 1.0 / peak } else { 1.0 };
        let window: Vec<f32> = (0..self.frame)
            .map(|i| {
                let angle = core::f64::consts::TAU * i as f64 / self.frame as f64;
                (0.5 - 0.5 * angle.cos()) as f32
            })
            .collect();
        let bands = self.bands();
        let transform = crate::fft::plan(self.fft, false);
        let mut scratch = vec![Complex::default(); transform.get_inplace_scratch_len()];
        let mut buffer = vec![Complex::default(); self.fft];
        let mut out = Vec::with_capacity(frames * width);
        for frame in 0..frames {
            buffer.fill(Complex::default());
            for (i, (slot, w)) in buffer.iter_mut().zip(&window).enumerate() {
                let sample = samples.get(frame * self.step + i).copied().unwrap_or(0.0);
                slot.re = sample * scale * w;
            }
            transform.process_with_scratch(&mut buffer, &mut scratch);
            let magnitudes: Vec<f32> = buffer[..bins]
                .iter()
                .map(|c| if self.power { c.norm_sqr() } else { c.norm_sqr().sqrt() })
                .collect();
            let energies: Vec<f64> = bands
                .iter()
                .map(|(first, weights)| {
                    let terms = weights.iter().zip(&magnitudes[*first..]);
                    let sum: f64 = terms.map(|(w, m)| f64::from(w * m)).sum();
                    let energy = sum + f64::from(self.floor);
                    if self.decibel { 10.0 * energy.log10() } else { energy.ln() }
                })
                .collect();
            match self.coefficients {
                None => out.extend(energies.iter().map(|e| *e as f32)),
                Some(count) => out.extend((0..count).map(|k| cosine(&energies, k))),
            }
        }
        Ok((out, frames))
    }

    /// Each band's first bin and its weights; triangles on the mel scale, bin 0 belongs to none.
    fn bands(&self) -> Vec<(usize, Vec<f32>)> {
        let mel = |hz: f64| 1127.0 * (hz / 700.0).ln_1p();
        let [low, high] = self.band.map(|hz| mel(f64::from(hz)));
        let step = (high - low) / (self.mels + 1) as f64;
        let bins = self.fft / 2 + 1;
        let of_bin = |i: usize| mel(i as f64 * f64::from(self.rate) / self.fft as f64);
        (0..self.mels)
            .map(|band| {
                let lower = low + step * band as f64;
                let weight = |i: usize| {
                    let up = (of_bin(i) - lower) / step;
                    up.min(2.0 - up).max(0.0) as f32
                };
                let first = (1..bins).find(|&i| weight(i) > 0.0).unwrap_or(bins);
                let weights = (first..bins).map(weight).take_while(|w| *w > 0.0).collect();
                (first, weights)
            })
            .collect()
    }
}

/// Coefficient `k` of the DCT-II of `x`, scaled by `sqrt(2 / n)`.
fn cosine(x: &[f64], k: usize) -> f32 {
    let n = x.len() as f64;
    let angle = |i: usize| core::f64::consts::PI * k as f64 * (i as f64 + 0.5) / n;
    let sum: f64 = x.iter().enumerate().map(|(i, v)| v * angle(i).cos()).sum();
    (sum * (2.0 / n).sqrt()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features() -> Features {
        Features {
            rate: 16_000,
            length: Some(1600),
            normalize: false,
            frame: 400,
            step: 200,
            fft: 512,
            power: false,
            mels: 20,
            band: [20.0, 4000.0],
            floor: 1e-6,
            decibel: false,
            coefficients: None,
        }
    }

    #[test]
    fn a_tone_is_loudest_in_its_band() {
        let tone: Vec<f32> = (0..1600)
            .map(|i| (i as f32 * 1000.0 / 16_000.0 * core::f32::consts::TAU).sin())
            .collect();
        let (found, frames) = features().compute(16_000, &tone).unwrap();
        assert_eq!((frames, found.len()), (7, 140));
        let best = (0..20).max_by(|&a, &b| found[a].total_cmp(&found[b])).unwrap();
        // 1000 Hz are 1000 mel; the middles of the bands are at 31.7 + 100.7 * (band + 1) mel.
        assert_eq!(best, 9);
        let (louder, _) = features().compute(16_000, &tone.map_to(2.0)).unwrap();
        assert!((louder[best] - found[best] - 2f32.ln()).abs() < 1e-3);
    }

    trait MapTo {
        fn map_to(&self, factor: f32) -> Vec<f32>;
    }

    impl MapTo for Vec<f32> {
        fn map_to(&self, factor: f32) -> Vec<f32> {
            self.iter().map(|v| v * factor).collect()
        }
    }

    #[test]
    fn cepstra_of_a_flat_spectrum_are_its_mean() {
        let flat = vec![3.0; 20];
        assert!((f64::from(cosine(&flat, 0)) - 3.0 * 40f64.sqrt()).abs() < 1e-5);
        assert!((1..20).all(|k| cosine(&flat, k).abs() < 1e-6));
    }

    #[test]
    fn impossible_sizes_and_other_rates_are_refused() {
        let good = features();
        assert!(good.compute(8_000, &[0.0; 1600]).is_err());
        for bad in [
            Features { frame: 0, ..good.clone() },
            Features { frame: 600, ..good.clone() },
            Features { fft: 513, ..good.clone() },
            Features { step: 0, ..good.clone() },
            Features { mels: usize::MAX / 2, ..good.clone() },
            Features { coefficients: Some(21), ..good.clone() },
            Features { length: Some(usize::MAX), ..good.clone() },
            Features { length: Some(399), ..good.clone() },
        ] {
            assert!(bad.compute(16_000, &[0.0; 1600]).is_err(), "{bad:?}");
        }
        // Silence is finite, short sounds are filled up.
        assert!(good.compute(16_000, &[]).unwrap().0.iter().all(|v| v.is_finite()));
    }
}
