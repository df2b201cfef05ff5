//! Sound files (`.wav`): integer PCM of 8 to 32 bits, and 32-bit float.

use core::fmt;
use std::io::Read;

/// The tag of formats that say more (WAVE_FORMAT_EXTENSIBLE).
const EXTENSIBLE: u16 = 0xfffe;

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

/// Decodes a `.wav` file. What programs write that cannot go back to the beginning of a file, 0 or
/// the largest number instead of the samples' size, means all that is there.
///
/// # Errors
/// Every [`WavError`]; the memory used is bounded by the number of bytes given.
pub fn read(bytes: &[u8]) -> Result<Sound, WavError> {
    let Chunks { format, data } = Chunks::find(bytes)?;
    check_coding(format)?;
    let format = &whole_containers(format)[..];
    let (format_size, data_size) = (size_field(format.len())?, size_field(data.len())?);
    let riff_size = size_field(bytes.len())?;
    // What decoders disagree about stays here; this one gets the simplest of files.
    let parts = [b"RIFF", &riff_size[..], b"WAVEfmt ", &format_size, format, b"data", &data_size];
    let header = parts.concat();
    let reader = hound::WavReader::new(header.chain(data)).map_err(explain)?;
    let spec = reader.spec();
    if spec.channels == 0 {
        return Err(WavError::InvalidData("it has no channels".into()));
    }
    let channels = usize::from(spec.channels);
    let samples = match spec.sample_format {
        hound::SampleFormat::Float => collect(reader.into_samples::<f32>(), bytes.len(), |s| s),
        hound::SampleFormat::Int => {
            let scale = (-f32::from(spec.bits_per_sample.saturating_sub(1).min(31))).exp2();
            collect(reader.into_samples::<i32>(), bytes.len(), |s| s as f32 * scale)
        }
    };
    let samples = samples.map_err(explain)?;
    if let Some(at) = samples.iter().position(|s| !s.is_finite()) {
        let (frame, channel, value) = (at / channels, at % channels, samples[at]);
        let what = format!("sample {frame} of channel {channel}, counted from 0, is {value}");
        return Err(WavError::InvalidData(what));
    }
    Ok(Sound { rate: spec.sample_rate, channels, samples })
}

/// A format by which all bits of a sample count: of an extensible one the valid bits are the upper ones of their
/// container, the others 0, where the decoder takes them for the lower ones.
fn whole_containers(format: &[u8]) -> Vec<u8> {
    let mut format = format.to_vec();
    if word(&format, 0) == EXTENSIBLE && format.len() >= 20 {
        format.copy_within(14..16, 18);
    }
    format
}

/// The two parts of a file that matter.
struct Chunks<'a> {
    format: &'a [u8],
    data: &'a [u8],
}

impl<'a> Chunks<'a> {
    fn find(bytes: &'a [u8]) -> Result<Self, WavError> {
        let invalid = |what: &str| Err(WavError::InvalidData(what.into()));
        match (bytes.get(..4), bytes.get(8..12)) {
            (Some(b"RIFF"), Some(b"WAVE")) => {}
            (Some(b"RF64" | b"BW64"), _) => {
                return Err(WavError::UnsupportedCoding("sizes of 64 bits (RF64)".into()));
            }
            _ => return invalid("it does not begin with RIFF and WAVE"),
        }
        let mut rest = &bytes[12..];
        let mut format = None;
        while let Some((id, size, behind)) = chunk(rest) {
            let content = behind.get(..size);
            match (&id, content) {
                (b"fmt ", Some(found)) if found.len() >= 16 => format = Some(found),
                (b"data", _) => {
                    let Some(format) = format else {
                        return invalid("its samples come before their format");
                    };
                    let unknown = size == u32::MAX as usize || (size == 0 && !is_chunks(behind));
                    let data = match content {
                        _ if unknown => {
                            let frame = usize::from(word(format, 12)).max(1);
                            &behind[..behind.len() - behind.len() % frame]
                        }
                        Some(data) => data,
                        None => {
                            let there = behind.len();
                            let what = format!("it ends after {there} of {size} bytes of samples");
                            return Err(WavError::InvalidData(what));
                        }
                    };
                    return Ok(Self { format, data });
                }
                (_, None) => return invalid("it ends within a part before its samples"),
                (b"fmt ", _) => return invalid("its format is too short"),
                _ => {}
            }
            rest = next(behind, size);
        }
        invalid("it ends before its samples")
    }
}

/// Name and size of the part that bytes begin with, and what is behind these.
fn chunk(bytes: &[u8]) -> Option<([u8; 4], usize, &[u8])> {
    let (id, rest) = bytes.split_first_chunk::<4>()?;
    let (size, behind) = rest.split_first_chunk::<4>()?;
    Some((*id, usize::try_from(u32::from_le_bytes(*size)).ok()?, behind))
}

/// What is behind a part: those of odd size are padded.
fn next(behind: &[u8], size: usize) -> &[u8] {
    behind.get(size.saturating_add(size % 2)..).unwrap_or_default()
}

/// Whether bytes are parts of a file up to their end.
fn is_chunks(mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match chunk(bytes) {
            Some((id, size, behind)) if size <= behind.len() && id.is_ascii() => {
                // Silence would be a part without name and size.
                if id.iter().any(u8::is_ascii_control) {
                    return false;
                }
                bytes = next(behind, size);
            }
            _ => return false,
        }
    }
    true
}

/// Two bytes of a format that has at least 16.
fn word(format: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([format[at], format[at + 1]])
}

fn size_field(size: usize) -> Result<[u8; 4], WavError> {
    let size = u32::try_from(size).map(u32::to_le_bytes);
    size.map_err(|_| WavError::InvalidData("it has more than 4 GiB".into()))
}

/// Refuses floats that are not f32, which the decoder calls damaged.
fn check_coding(format: &[u8]) -> Result<(), WavError> {
    const FLOAT: u16 = 3;
    let tag = match word(format, 0) {
        EXTENSIBLE if format.len() >= 26 => word(format, 24),
        tag => tag,
    };
    match (tag, word(format, 14)) {
        (FLOAT, bits) if bits != 32 => {
            Err(WavError::UnsupportedCoding(format!("floats of {bits} bits, only 32 are")))
        }
        _ => Ok(()),
    }
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
    use std::io::Cursor;

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

    /// Of an extensible format the valid bits are the upper ones of their container.
    #[test]
    fn valid_bits_lie_above_the_others() {
        let (channels, rate, container) = (1u16, 16_000u32, 4u16);
        for valid in [20u16, 24, 32] {
            let guid = *b"\x01\0\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71";
            let mut format = 0xfffe_u16.to_le_bytes().to_vec();
            format.extend(channels.to_le_bytes());
            format.extend(rate.to_le_bytes());
            format.extend((rate * u32::from(container)).to_le_bytes());
            format.extend([container, 8 * container, 22, valid].map(u16::to_le_bytes).concat());
            format.extend([[4, 0, 0, 0].as_slice(), &guid].concat());
            let samples = [i32::MIN, 1 << 30, -(1 << 29)].map(i32::to_le_bytes).concat();
            let size = |part: &[u8]| (part.len() as u32).to_le_bytes();
            let parts =
                [&b"WAVEfmt "[..], &size(&format), &format, b"data", &size(&samples), &samples];
            let parts = parts.concat();
            let file = [&b"RIFF"[..], &size(&parts), &parts].concat();
            assert_eq!(read(&file).unwrap().samples, [-1.0, 0.5, -0.25], "{valid} bits");
        }
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

    /// A header of 44 bytes and six samples of 16 bits.
    fn six() -> Vec<u8> {
        wav(16, hound::SampleFormat::Int, |w| (0..6).for_each(|i| w.write_sample(i).unwrap()))
    }

    #[test]
    fn parts_of_odd_size_are_padded() {
        let (good, list) = (six(), b"LIST\x05\0\0\0INFOx\0");
        let file = [&good[..36], list, &good[36..], list].concat();
        assert_eq!(read(&file).unwrap(), read(&good).unwrap());
    }

    #[test]
    fn sizes_that_a_pipe_leaves_mean_the_rest() {
        let good = six();
        let expected = read(&good).unwrap();
        for size in [0, u32::MAX] {
            let mut file = [&good[..], &[7]].concat();
            file[40..44].copy_from_slice(&size.to_le_bytes());
            assert_eq!(read(&file).unwrap(), expected, "{size}");
        }
        // Without samples, but with something else behind them.
        let empty = [&good[..40], &[0; 4], b"LIST\x04\0\0\0INFO"].concat();
        assert!(read(&empty).unwrap().samples.is_empty());
        let mut long = good.clone();
        long[40..44].copy_from_slice(&13u32.to_le_bytes());
        assert!(read(&long).unwrap_err().to_string().contains("12 of 13 bytes"));
    }

    #[test]
    fn floats_that_are_no_samples_are_named() {
        let file = wav(32, hound::SampleFormat::Float, |w| {
            w.write_sample(0.5f32).unwrap();
            w.write_sample(f32::NAN).unwrap();
        });
        assert!(read(&file).unwrap_err().to_string().contains("sample 1 of channel 0"));
        let at = file.windows(4).position(|w| w == b"fmt ").unwrap() + 8;
        let mut double = file.clone();
        double[at + 12..at + 16].copy_from_slice(&[8, 0, 64, 0]);
        let error = read(&double).unwrap_err();
        assert!(matches!(&error, WavError::UnsupportedCoding(_)), "{error}");
        assert!(error.to_string().contains("64 bits"), "{error}");
    }
}
