//! From the files on the command line to the inputs of a network.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use tilewright::import::onnx::read_tensor_pb;
use tilewright::io::{Picture, npy, picture, wav};
use tilewright::task::image::{Placement, Preparation};
use tilewright::task::{Input, TaskError, image, line_image};
use tilewright::{DType, Dim, Tensor, ValueInfo};

use super::model::Network;
use super::{Failure, embedded};

/// Extent of an axis that a network leaves open, other than the first, when nobody says.
const USUAL_EXTENT: usize = 224;

/// The inputs of a run.
pub(super) struct Inputs {
    /// Each with its name.
    pub(super) tensors: Vec<(String, Tensor)>,
    /// The picture among them, and where it lies in its input.
    pub(super) picture: Option<(Picture, Placement)>,
}

/// Whether one of the files that `run` was given is a picture.
pub(super) fn any_picture(given: &[String]) -> bool {
    given.iter().any(|text| is_picture(&extension(Path::new(text))))
}

/// The inputs that `run` was given; the embedded network reads its picture when there are none.
pub(super) fn from_files(
    network: &Network,
    given: &[String],
    range: Option<[f32; 2]>,
) -> Result<Inputs, Failure> {
    let known = network.model.inputs();
    if given.is_empty() && network.is_embedded {
        return Ok(Inputs { tensors: vec![embedded_input(network)?], picture: None });
    }
    let mut inputs = Vec::new();
    let mut picture = None;
    for text in given {
        let (info, file) = assign(known, text, "FILE")?;
        if inputs.iter().any(|(name, _)| *name == info.name) {
            return Err(Failure(format!("input `{}` is given twice", info.name)));
        }
        let (tensor, found) = read(network, info, Path::new(file), range)
            .map_err(|e| Failure::new(format!("input `{}`, file {file}", info.name), e))?;
        picture = picture.or(found);
        inputs.push((info.name.clone(), tensor));
    }
    check_all_given(known, &inputs)?;
    Ok(Inputs { tensors: inputs, picture })
}

/// The embedded picture, prepared for the embedded network.
pub(super) fn embedded_input(network: &Network) -> Result<(String, Tensor), Failure> {
    let picture = picture::read(embedded::PICTURE)?;
    let fail = |e| Failure::new(embedded::PICTURE_NAME, e);
    let info = network.model.inputs().first().ok_or(Failure("no input".into())).map_err(fail)?;
    let (tensor, _) = from_picture(network, info, &picture, None).map_err(fail)?;
    Ok((info.name.clone(), tensor))
}

/// Random f32 inputs from -1 to 1 (zeros for other types, ones for masks of attention) in the shapes given, else with
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
    let named = named_extents(known, &chosen);
    let mut seed = 1u64;
    known
        .iter()
        .zip(chosen)
        .map(|(info, dims)| {
            let dims = dims.unwrap_or_else(|| usual_dims(info, &named));
            let tensor = random_tensor(info, &dims, &mut seed)
                .map_err(|e| Failure::new(format!("input `{}`", info.name), e))?;
            Ok((info.name.clone(), tensor))
        })
        .collect()
}

/// Why there is no plan for `given`, with what [`random`] took for extents that the network leaves open.
pub(super) fn unplanned(
    network: &Network,
    given: &[(String, Tensor)],
    shapes: &[String],
    cause: tilewright::Error,
) -> Failure {
    let open = |info: &&ValueInfo| extents(info).contains(&None);
    let inputs = network.model.inputs();
    if shapes.len() >= inputs.iter().filter(open).count() {
        return cause.into();
    }
    let taken: Vec<String> = inputs
        .iter()
        .zip(given)
        .filter(|(info, _)| open(info))
        .map(|(info, (_, tensor))| format!("{} {:?}", info.name, tensor.dims()))
        .collect();
    Failure(format!(
        "{cause}; inputs with open extents were taken as {}; --shape NAME=SHAPE gives others",
        taken.join(", ")
    ))
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
) -> Result<(Tensor, Option<(Picture, Placement)>), Failure> {
    let alone = |tensor| (tensor, None);
    match extension(path).as_str() {
        "npy" | "pb" => read_array(path).map(alone),
        kind if is_picture(kind) => {
            let picture = picture::read(&read_file(path)?)?;
            let (tensor, placement) = from_picture(network, info, &picture, range)?;
            Ok((tensor, placement.map(|p| (picture, p))))
        }
        "wav" => from_sound(network, info, &wav::read(&read_file(path)?)?).map(alone),
        _ => Err(Failure("expected a .npy, .pb, .png, .jpg or .wav file".into())),
    }
}

fn is_picture(extension: &str) -> bool {
    matches!(extension, "png" | "jpg" | "jpeg")
}

fn from_picture(
    network: &Network,
    info: &ValueInfo,
    picture: &Picture,
    range: Option<[f32; 2]>,
) -> Result<(Tensor, Option<Placement>), Failure> {
    let how = match &network.task.input {
        Some(Input::LineImage { height }) => {
            let line = line_image::prepare(picture, *height);
            let dims = [1, 1, line.height, line.width];
            return Ok((Tensor::from_slice(&dims, &line.values)?, None));
        }
        Some(Input::Image(how)) => Preparation { range: range.or(how.range), ..*how },
        _ => Preparation { range, ..Preparation::default() },
    };
    let prepared = image::prepare(picture, info.dtype, &extents(info), &how)?;
    Ok((prepared.tensor, Some(prepared.placement)))
}

/// The extents that a network declares, where they are fixed; empty if it leaves the rank open.
pub(super) fn extents(info: &ValueInfo) -> Vec<Option<usize>> {
    let fixed = |d: &Dim| match d {
        Dim::Fixed(n) => Some(*n),
        _ => None,
    };
    info.dims.as_ref().map(|d| d.iter().map(fixed).collect()).unwrap_or_default()
}

fn from_sound(network: &Network, info: &ValueInfo, sound: &wav::Sound) -> Result<Tensor, Failure> {
    if sound.channels != 1 {
        return Err(Failure(format!("it has {} channels, expected one", sound.channels)));
    }
    if let Some(Input::Sound(features, quantization)) = &network.task.input {
        let (values, frames) = features.compute(sound.rate, &sound.samples)?;
        let width = values.len() / frames.max(1);
        let dims = feature_dims(info, [frames, width])?;
        let quantized = quantization.and_then(|q| q.tensor(info.dtype, &dims, &values));
        return match (quantized, info.dtype) {
            (Some(tensor), _) => Ok(tensor?),
            (None, DType::F32) => Ok(Tensor::from_slice(&dims, &values)?),
            (None, other) => Err(TaskError::UnsupportedInput(format!(
                "features of a sound do not fit an input of type {other} without a scale and zero \
                 point (tilewright.input.quantization)"
            ))
            .into()),
        };
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

/// Shape of an input that holds `frames` rows of `width` features: the network's, where it is
/// fixed and holds as many.
fn feature_dims(info: &ValueInfo, [frames, width]: [usize; 2]) -> Result<Vec<usize>, Failure> {
    let declared = extents(info);
    let fixed: usize = declared.iter().flatten().product();
    let open = declared.iter().skip(1).filter(|d| d.is_none()).count();
    let count = frames * width;
    // The first extent is the batch; one other may be the number of frames.
    let filled = |fill: usize| -> Vec<usize> {
        let extent = |(i, d): (usize, &Option<usize>)| match d {
            Some(n) => *n,
            None if i == 0 => 1,
            None => fill,
        };
        declared.iter().enumerate().map(extent).collect()
    };
    match open {
        _ if declared.is_empty() => Ok(vec![1, frames, width]),
        0 if fixed == count => Ok(filled(1)),
        1 if fixed > 0 && count.is_multiple_of(fixed) => Ok(filled(count / fixed)),
        _ => Err(Failure(format!(
            "{frames} frames of {width} features do not fit {} {}",
            info.dtype,
            info.shape_text()
        ))),
    }
}

/// Extents by name, as `chosen` shapes have them; 1 for those that are the first of an input.
fn named_extents<'a>(
    known: &'a [ValueInfo],
    chosen: &[Option<Vec<usize>>],
) -> HashMap<&'a str, usize> {
    let mut named = HashMap::new();
    let inputs = known.iter().zip(chosen);
    let given = inputs.clone().filter_map(|(info, chosen)| Some((info, chosen.as_deref()?)));
    let others = inputs.filter(|(_, chosen)| chosen.is_none()).map(|(info, _)| (info, &[1][..]));
    for (info, extents) in given.chain(others) {
        for (dim, &extent) in info.dims.iter().flatten().zip(extents) {
            if let Dim::Symbol(name) = dim {
                named.entry(name.as_str()).or_insert(extent);
            }
        }
    }
    named
}

fn usual_dims(info: &ValueInfo, named: &HashMap<&str, usize>) -> Vec<usize> {
    let extent = |(axis, dim): (usize, &Dim)| match dim {
        Dim::Fixed(n) => *n,
        Dim::Symbol(name) if named.contains_key(name.as_str()) => named[name.as_str()],
        _ if axis == 0 => 1,
        _ => USUAL_EXTENT,
    };
    info.dims.as_ref().map(|d| d.iter().enumerate().map(extent).collect()).unwrap_or_default()
}

fn random_tensor(info: &ValueInfo, dims: &[usize], seed: &mut u64) -> Result<Tensor, Failure> {
    let mut zeros = Tensor::zeros(info.dtype, dims)?;
    let mut next = || {
        *seed =
            seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    // Nobody shares what has just been made. Zero is a value that every other type and every use of it (an index, a
    // flag) allows; but of zeros, transformers take no token for one, and some refuse such a text.
    let bytes = zeros.bytes_mut().unwrap_or_default();
    match info.dtype {
        DType::F32 => bytemuck::cast_slice_mut(bytes).fill_with(&mut next),
        DType::I64 if info.name == "attention_mask" => {
            bytemuck::cast_slice_mut::<u8, i64>(bytes).fill(1);
        }
        _ => {}
    }
    Ok(zeros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_extents_of_one_name_are_the_same() {
        let named = |name: &str| Dim::Symbol(name.into());
        let info = |name: &str, dims: &[Dim]| ValueInfo {
            name: name.into(),
            dtype: DType::F32,
            dims: Some(dims.to_vec()),
        };
        let known = [
            info("state", &[Dim::Fixed(2), named("batch"), Dim::Unknown]),
            info("x", &[named("batch"), named("length")]),
            info("mask", &[Dim::Unknown, named("length")]),
        ];
        let all = |chosen: [Option<Vec<usize>>; 3]| -> Vec<Vec<usize>> {
            let named = named_extents(&known, &chosen);
            known
                .iter()
                .zip(&chosen)
                .map(|(info, dims)| dims.clone().unwrap_or_else(|| usual_dims(info, &named)))
                .collect()
        };
        assert_eq!(all([None, None, None]), [vec![2, 1, 224], vec![1, 224], vec![1, 224]]);
        let given = all([None, Some(vec![3, 16]), None]);
        assert_eq!(given, [vec![2, 3, 224], vec![3, 16], vec![1, 16]]);
        let given = all([None, None, Some(vec![5, 7])]);
        assert_eq!(given, [vec![2, 1, 224], vec![1, 7], vec![5, 7]]);
    }
}
