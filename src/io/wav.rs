//! Sound files (`.wav`): integer PCM of 8 to 32 bits, and 32-bit float.

use core::fmt;
use std::io::Cursor;

/// A decoded sound.
#[derive(Clone, Debug, PartialEq)]
pub struct Sound {
    /// Samples per second and channel.
    pub rate: u32,
    /// Channels.
    pub channels: usize,
    /// Samples from -1 to 1, those of one moment side by side. Integers are divided by the
    /// magnitude of their most negative value.
    pub samples: Vec<f32>,
}

/// Why bytes are not a readable sound.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WavError {
    /// The file is damaged or not a RIFF/WAVE file.
    InvalidData(String),
    /// A coding other than PCM.
    UnsupportedCoding(String),
}

impl fmt::Display for WavError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidData(why) => write!(f, "not a readable .wav sound: {why}"),
            Self::UnsupportedCoding(why) => write!(f, "this .wav coding is not supported: {why}"),
        }
    }
}

impl core::error::Error for WavError {}

/// Decodes a `.wav` file.
///
/// # Errors
/// Every [`WavError`]; the memory used is bounded by the number of bytes given.
pub fn read(bytes: &[u8]) -> Result<Sound, WavError> {
    let reader = hound::WavReader::new(Cursor::new(bytes)).map_err(explain)?;
    let spec = reader.spec();
    if spec.channels == 0 {
        return Err(WavError::InvalidData("it has no channels".into()));
    }
    let samples: Result<Vec<f32>, hound::Error> = match spec.sample_format {
        hound::SampleFormat::Float => collect(reader.into_samples::<f32>(), bytes.len(), |s| s),
        hound::SampleFormat::Int => {
            let scale = (-f32::from(spec.bits_per_sample.saturating_sub(1).min(31))).exp2();
            collect(reader.into_samples::<i32>(), bytes.len(), |s| s as f32 * scale)
        }
    };
    let samples = samples.map_err(explain)?;
    Ok(Sound { rate: spec.sample_rate, channels: usize::from(spec.channels), samples })
}

/// Collects without trusting the header's count, which may exceed what the file holds.
fn collect<S>(
    samples: impl Iterator<Item = Result<S, hound::Error>>,
    file_bytes: usize,
    convert: impl Fn(S) -> f32,
) -> Result<Vec<f32>, hound::Error> {
    let mut out = Vec::new();
    for sample in samples.take(file_bytes) {
        out.push(convert(sample?));
    }
    Ok(out)
}

fn explain(error: hound::Error) -> WavError {
    match error {
        hound::Error::Unsupported | hound::Error::InvalidSampleFormat | hound::Error::TooWide => {
            WavError::UnsupportedCoding(error.to_string())
        }
        other => WavError::InvalidData(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wav(bits: u16, format: hound::SampleFormat, write: impl Fn(&mut Writer<'_>)) -> Vec<u8> {
        let spec = hound::WavSpec {
            channels: 1,
            sample_rate: 16_000,
            bits_per_sample: bits,
            sample_format: format,
        };
        let mut out = Cursor::new(Vec::new());
        let mut writer = hound::WavWriter::new(&mut out, spec).unwrap();
        write(&mut writer);
        writer.finalize().unwrap();
        out.into_inner()
    }

    type Writer<'a> = hound::WavWriter<&'a mut Cursor<Vec<u8>>>;

    #[test]
    fn integers_are_scaled_to_one() {
        for (bits, lowest) in [(8, -128), (16, -32768), (24, -8_388_608)] {
            let file = wav(bits, hound::SampleFormat::Int, |w| {
                w.write_sample(lowest).unwrap();
                w.write_sample(-lowest / 2).unwrap();
            });
            let sound = read(&file).unwrap();
            assert_eq!((sound.rate, sound.channels), (16_000, 1));
            assert_eq!(sound.samples, [-1.0, 0.5], "{bits} bits");
        }
        let file = wav(32, hound::SampleFormat::Float, |w| w.write_sample(0.25f32).unwrap());
        assert_eq!(read(&file).unwrap().samples, [0.25]);
    }

    #[test]
    fn damaged_files_are_errors() {
        let good = wav(16, hound::SampleFormat::Int, |w| {
            for i in 0..20 {
                w.write_sample(i).unwrap();
            }
        });
        for end in 0..good.len() {
            assert!(read(&good[..end]).is_err(), "cut at {end}");
        }
        for at in 0..44 {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let _ = read(&bad);
            }
        }
    }
}
