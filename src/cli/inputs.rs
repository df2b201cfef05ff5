//! From the files on the command line to the inputs of a network.

use std::fs;
use std::path::Path;

use tilewright::import::onnx::read_tensor_pb;
use tilewright::io::{Picture, npy, picture, wav};
use tilewright::task::{Input, image, line_image};
use tilewright::{DType, Dim, Tensor, ValueInfo};

use super::model::Network;
use super::{Failure, embedded};

/// Extent of an axis that a network leaves open, other than the first, when nobody says.
const USUAL_EXTENT: usize = 224;

/// The inputs that `run` was given; the embedded network reads its picture when there are none.
pub(super) fn from_files(
    network: &Network,
    given: &[String],
    range: Option<[f32; 2]>,
) -> Result<Vec<(String, Tensor)>, Failure> {
    let known = network.model.inputs();
    if given.is_empty() && network.is_embedded {
        return Ok(vec![embedded_input(network)?]);
    }
    let mut inputs = Vec::new();
    for text in given {
        let (info, file) = assign(known, text, "FILE")?;
        if inputs.iter().any(|(name, _)| *name == info.name) {
            return Err(Failure(format!("input `{}` is given twice", info.name)));
        }
        let tensor = read(network, info, Path::new(file), range)
            .map_err(|e| Failure::new(format!("input `{}`, file {file}", info.name), e))?;
        inputs.push((info.name.clone(), tensor));
    }
    check_all_given(known, &inputs)?;
    Ok(inputs)
}

/// The embedded picture, prepared for the embedded network.
pub(super) fn embedded_input(network: &Network) -> Result<(String, Tensor), Failure> {
    let picture = picture::read(embedded::PICTURE)?;
    let fail = |e| Failure::new(embedded::PICTURE_NAME, e);
    let info = network.model.inputs().first().ok_or(Failure("no input".into())).map_err(fail)?;
    let tensor = from_picture(network, info, &picture, None).map_err(fail)?;
    Ok((info.name.clone(), tensor))
}

/// Random f32 inputs from -1 to 1 (zeros for other types) in the shapes given, else with
/// the usual extents where the network leaves them open.
pub(super) fn random(
    network: &Network,
    shapes: &[String],
) -> Result<Vec<(String, Tensor)>, Failure> {
    let known = network.model.inputs();
    let mut chosen: Vec<Option<Vec<usize>>> = vec![None; known.len()];
    for text in shapes {
        let (info, shape) = assign(known, text, "SHAPE")?;
        let dims: Result<Vec<usize>, _> =
            shape.split([',', 'x']).map(|d| d.trim().parse()).collect();
        let dims =
            dims.map_err(|_| Failure(format!("`{shape}` is not a shape such as 1,3,8,8")))?;
        let index = known.iter().position(|k| k.name == info.name).unwrap_or(0);
        chosen[index] = Some(dims);
    }
    let mut seed = 1u64;
    known
        .iter()
        .zip(chosen)
        .map(|(info, dims)| {
            let dims = dims.unwrap_or_else(|| usual_dims(info));
            let tensor = random_tensor(info.dtype, &dims, &mut seed)
                .map_err(|e| Failure::new(format!("input `{}`", info.name), e))?;
            Ok((info.name.clone(), tensor))
        })
        .collect()
}

/// A file that holds an array: `.npy`, or a `.pb` with an ONNX TensorProto.
pub(super) fn read_array(path: &Path) -> Result<Tensor, Failure> {
    match extension(path).as_str() {
        "npy" => Ok(npy::read(&read_file(path)?)?),
        "pb" => Ok(read_tensor_pb(path)?.1),
        _ => Err(Failure("expected a .npy or .pb file".into())),
    }
}

/// The input that `NAME=FILE` means, and the rest of it. `FILE` alone is enough for one input.
fn assign<'a, 'b>(
    known: &'a [ValueInfo],
    text: &'b str,
    what: &str,
) -> Result<(&'a ValueInfo, &'b str), Failure> {
    // Names may contain `=`, and so may files: a name that exists decides.
    let named = text
        .match_indices('=')
        .find_map(|(i, _)| Some((known.iter().find(|k| k.name == text[..i])?, &text[i + 1..])));
    if let Some(found) = named {
        return Ok(found);
    }
    match (known, text.split_once('=')) {
        ([only], None) => Ok((only, text)),
        ([only], Some(_)) if Path::new(text).exists() => Ok((only, text)),
        (_, Some((name, _))) => Err(Failure(format!(
            "the model has no input `{name}`; its inputs are: {}",
            names(known)
        ))),
        ([], None) => Err(Failure("the model has no inputs".into())),
        (_, None) => Err(Failure(format!(
            "`{text}` does not say which input it is for; write NAME={what} with one of: {}",
            names(known)
        ))),
    }
}

fn check_all_given(known: &[ValueInfo], inputs: &[(String, Tensor)]) -> Result<(), Failure> {
    match known.iter().find(|k| !inputs.iter().any(|(name, _)| *name == k.name)) {
        Some(missing) => Err(Failure(format!(
            "input `{}` ({} {}) is missing; add --input {}FILE",
            missing.name,
            missing.dtype,
            missing.shape_text(),
            if known.len() == 1 { String::new() } else { format!("{}=", missing.name) }
        ))),
        None => Ok(()),
    }
}

fn names(known: &[ValueInfo]) -> String {
    known.iter().map(|k| k.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn extension(path: &Path) -> String {
    path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase()
}

fn read_file(path: &Path) -> Result<Vec<u8>, Failure> {
    // Opening a folder succeeds on some systems and gives a poor message on others.
    if path.is_dir() {
        return Err(Failure("it is a folder".into()));
    }
    Ok(fs::read(path)?)
}

fn read(
    network: &Network,
    info: &ValueInfo,
    path: &Path,
    range: Option<[f32; 2]>,
) -> Result<Tensor, Failure> {
    match extension(path).as_str() {
        "npy" | "pb" => read_array(path),
        "png" | "jpg" | "jpeg" => {
            from_picture(network, info, &picture::read(&read_file(path)?)?, range)
        }
        "wav" => from_sound(info, wav::read(&read_file(path)?)?),
        _ => Err(Failure("expected a .npy, .pb, .png, .jpg or .wav file".into())),
    }
}

fn from_picture(
    network: &Network,
    info: &ValueInfo,
    picture: &Picture,
    range: Option<[f32; 2]>,
) -> Result<Tensor, Failure> {
    let range = match network.task.input {
        Some(Input::LineImage { height }) => {
            let line = line_image::prepare(picture, height);
            return Ok(Tensor::from_slice(&[1, 1, line.height, line.width], &line.values)?);
        }
        Some(Input::Image { range: own }) => range.or(Some(own)),
        _ => range,
    };
    let open = |d: &Dim| match d {
        Dim::Fixed(n) => Some(*n),
        _ => None,
    };
    let dims: Vec<Option<usize>> =
        info.dims.as_ref().map(|d| d.iter().map(open).collect()).unwrap_or_default();
    Ok(image::prepare(picture, info.dtype, &dims, range)?)
}

fn from_sound(info: &ValueInfo, sound: wav::Sound) -> Result<Tensor, Failure> {
    if sound.channels != 1 {
        return Err(Failure(format!("it has {} channels, expected one", sound.channels)));
    }
    let count = sound.samples.len();
    let rank = info.dims.as_ref().map_or(1, Vec::len);
    let fits = |d: &Dim, n: usize| !matches!(d, Dim::Fixed(m) if *m != n);
    let fitting = info.dims.as_ref().is_none_or(|dims| {
        dims.split_last()
            .is_some_and(|(last, first)| fits(last, count) && first.iter().all(|d| fits(d, 1)))
    });
    if info.dtype != DType::F32 || !fitting {
        return Err(Failure(format!(
            "a sound of {count} samples does not fit {} {}; give the input as a .npy file",
            info.dtype,
            info.shape_text()
        )));
    }
    let mut dims = vec![1; rank];
    dims[rank - 1] = count;
    Ok(Tensor::from_slice(&dims, &sound.samples)?)
}

fn usual_dims(info: &ValueInfo) -> Vec<usize> {
    let extent = |(axis, dim): (usize, &Dim)| match dim {
        Dim::Fixed(n) => *n,
        _ if axis == 0 => 1,
        _ => USUAL_EXTENT,
    };
    info.dims.as_ref().map(|d| d.iter().enumerate().map(extent).collect()).unwrap_or_default()
}

fn random_tensor(dtype: DType, dims: &[usize], seed: &mut u64) -> Result<Tensor, Failure> {
    let zeros = Tensor::zeros(dtype, dims)?;
    let mut next = || {
        *seed =
            seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    if dtype == DType::F32 {
        let values: Vec<f32> = (0..zeros.shape().elements()).map(|_| next()).collect();
        return Ok(Tensor::from_slice(dims, &values)?);
    }
    // Zero is a value that every other type and every use of it (an index, a flag) allows.
    Ok(zeros)
}
