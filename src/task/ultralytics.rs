//! What Ultralytics' exporters write into the metadata of a network, in our own entries.
//!
//! Their files name the classes (`names`, a dictionary in Python's notation), the `stride` and, save those of YOLOv5's
//! own repository, the `task`; preparation, layout of outputs and thresholds are those that the package's `predict`
//! has for files of that kind (<https://docs.ultralytics.com/modes/export/>).

use std::collections::BTreeMap;

use super::keys;

/// Numbers of a box, and of the score and class that a chosen one has.
const BOX: usize = 4;
const CHOSEN: usize = BOX + 2;

/// Our entries for those of a file from there; none for other files, and for files that have entries of ours. `outputs`
/// are the shapes of the outputs, slowest axis first, `None` where the network leaves an extent open.
pub fn entries(
    metadata: &BTreeMap<String, String>,
    outputs: &[Vec<Option<usize>>],
) -> BTreeMap<String, String> {
    let get = |key: &str| metadata.get(key).map(String::as_str);
    let has_own = keys::ALL.iter().any(|key| metadata.contains_key(*key));
    let names = get("names").and_then(names).filter(|_| get("stride").is_some() && !has_own);
    let (Some(names), Some(first)) = (names, outputs.first()) else { return BTreeMap::new() };
    let mut found = vec![(keys::INPUT, "image"), (keys::INPUT_RANGE, "0..1")];
    let made = |found: &[(&str, &str)]| {
        // One by one: `collect` would sort them first, 4 KB of code for each type.
        let mut entries = BTreeMap::new();
        for &(key, value) in found {
            entries.insert(key.to_owned(), value.to_owned());
        }
        entries
    };
    let size = get("imgsz").and_then(list);
    found.extend(size.as_deref().map(|size| (keys::INPUT_SIZE, size)));
    let labels = names.join("\n");
    let task = get("task");
    // YOLOv5's classifiers say as much as its detectors.
    if task == Some("classify") || task.is_none() && first.len() == 2 {
        found.extend([(keys::INPUT_FIT, "crop:1"), (keys::LABELS, &labels)]);
        if task.is_none() {
            let (mean, std) = ("0.485,0.456,0.406", "0.229,0.224,0.225");
            found.extend([(keys::INPUT_MEAN, mean), (keys::INPUT_STD, std)]);
            found.push((keys::SCORES, "logits"));
        }
        return made(&found);
    }
    let says = |key: &str| get(key).unwrap_or_default().to_ascii_lowercase();
    let is_transformer =
        says("head").starts_with("rtdetr") || says("description").contains("rtdetr");
    if !is_transformer {
        found.push((keys::INPUT_FIT, "pad:114"));
    }
    let shape = get("kpt_shape").and_then(list).unwrap_or_else(|| "17x3".to_owned());
    let keypoints = format!("keypoints:{shape}");
    // What stands behind box and class, and how many numbers that is.
    let (more, numbers) = match task {
        Some("detect") => (None, 0),
        // Old files have each grid as it was before, too.
        None if outputs.get(1).is_none_or(|dims| dims.len() != 4) => (None, 0),
        None | Some("segment") => {
            let planes = outputs.get(1).and_then(|dims| *dims.get(1)?);
            (Some("mask"), planes.unwrap_or(32))
        }
        Some("obb") => (Some("angle"), 1),
        Some("pose") => {
            let extents = shape.split('x').filter_map(|n| n.parse::<usize>().ok());
            (Some(keypoints.as_str()), extents.fold(1, usize::saturating_mul))
        }
        // What pixels of whole pictures are.
        Some(_) => return made(&found),
    };
    found.extend(more.map(|more| (keys::DETECT_MORE, more)));
    let axis = |i: usize| first.get(i).copied().flatten();
    let all = numbers.saturating_add(names.len()).saturating_add(BOX);
    // Neither YOLOv5's own exporter nor that of the first transformers chooses among boxes; those of one or two classes
    // have as many numbers as if it did.
    let may_choose = if is_transformer { get("head").is_some() } else { task.is_some() };
    let chosen =
        may_choose && axis(2) == Some(numbers.saturating_add(CHOSEN)) && axis(1) != Some(all);
    let (form, overlap) = match (chosen, task) {
        (true, _) => ("box-score-class", "1"),
        (_, None) => ("yolo-confidence", "0.45"),
        _ if is_transformer => ("yolo", "1"),
        _ => ("yolo", "0.7"),
    };
    let has_edges = chosen && !is_transformer && task != Some("obb");
    found.extend([
        (keys::TASK, "detect"),
        (keys::DETECT_FORM, form),
        (keys::DETECT_OVERLAP, overlap),
        (keys::DETECT_THRESHOLD, "0.25"),
        (keys::DETECT_BOX, if has_edges { "edges" } else { "middle" }),
        (keys::DETECT_UNIT, if is_transformer { "fraction" } else { "pixel" }),
        (keys::LABELS, &labels),
    ]);
    made(&found)
}

/// `[a, b]` as `axb`.
fn list(text: &str) -> Option<String> {
    let inner = text.trim().strip_prefix(['[', '('])?.strip_suffix([']', ')'])?;
    let numbers: Option<Vec<usize>> = inner.split(',').map(|n| n.trim().parse().ok()).collect();
    Some(numbers?.iter().map(usize::to_string).collect::<Vec<_>>().join("x"))
}

/// The strings of `{0: 'a', 1: "b"}` or `['a', 'b']`, if numbers are given in order.
fn names(text: &str) -> Option<Vec<String>> {
    let mut rest = text.trim();
    let dictionary = rest.starts_with('{');
    rest = rest.strip_prefix(['{', '['])?;
    let mut found = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if matches!(rest, "}" | "]") {
            return Some(found);
        }
        if dictionary {
            let (number, after) = rest.split_once(':')?;
            if number.trim().parse() != Ok(found.len()) {
                return None;
            }
            rest = after.trim_start();
        }
        let (name, after) = string(rest)?;
        found.push(name);
        rest = after;
    }
}

/// A string literal of Python's at the beginning of a text, and what follows. Labels are lines, so that a line's end in
/// one is a space.
fn string(text: &str) -> Option<(String, &str)> {
    let mut chars = text.chars();
    let quote = chars.next().filter(|c| matches!(c, '\'' | '"'))?;
    let mut found = String::new();
    loop {
        let next = match chars.next()? {
            end if end == quote => return Some((found, chars.as_str())),
            '\\' => match chars.next()? {
                digits @ ('x' | 'u' | 'U') => {
                    let count = if digits == 'x' {
                        2
                    } else if digits == 'u' {
                        4
                    } else {
                        8
                    };
                    let (code, after) = chars.as_str().split_at_checked(count)?;
                    chars = after.chars();
                    char::from_u32(u32::from_str_radix(code, 16).ok()?)?
                }
                'n' | 'r' | 't' => ' ',
                other => other,
            },
            other => other,
        };
        found.push(if next.is_control() { ' ' } else { next });
    }
}

#[cfg(test)]
mod tests {
    use super::super::detect::{Corners, Form};
    use super::super::outline::More;
    use super::super::{Output, Task};
    use super::*;

    fn task(given: &[(&str, &str)], outputs: &[&[usize]]) -> Task {
        let common = [("stride", "32"), ("names", "{0: 'cat', 1: \"dog's\"}")];
        let metadata: BTreeMap<String, String> =
            common.iter().chain(given).map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let outputs: Vec<Vec<Option<usize>>> =
            outputs.iter().map(|dims| dims.iter().copied().map(Some).collect()).collect();
        Task::from_metadata(&entries(&metadata, &outputs)).unwrap()
    }

    #[test]
    fn names_are_read_as_python_writes_them() {
        let read = |text| names(text).map(|names| names.join("|"));
        assert_eq!(
            read(r#"{0: 'a b', 1: "it's", 2: 'q\'"', 3: 'é\xe9\u00e9\\'}"#).unwrap(),
            "a b|it's|q'\"|ééé\\"
        );
        assert_eq!(read("['x', 'y']").unwrap(), "x|y");
        assert_eq!(read("{}").unwrap(), "");
        for wrong in [
            "",
            "{",
            "{0: 'a'",
            "{1: 'a'}",
            "{0: a}",
            "{0: 'a\\",
            r"{0: '\x9'}",
            r"{0: '\ud800'}",
            "cat",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn detectors_of_each_kind_are_known() {
        for (given, outputs, form, more) in [
            (&[("task", "detect")][..], &[&[1, 6, 2100][..]][..], Form::Yolo, None),
            (&[("task", "detect")], &[&[1, 300, 6]], Form::BoxScoreClass, None),
            (
                &[("task", "segment")],
                &[&[1, 38, 2100], &[1, 32, 80, 80]],
                Form::Yolo,
                Some(More::Mask),
            ),
            (
                &[("task", "segment")],
                &[&[1, 300, 38], &[1, 32, 80, 80]],
                Form::BoxScoreClass,
                Some(More::Mask),
            ),
            (
                &[("task", "pose"), ("kpt_shape", "[5, 2]")],
                &[&[1, 16, 2100]],
                Form::Yolo,
                Some(More::Keypoints { count: 5, numbers: 2 }),
            ),
            (&[("task", "obb")], &[&[1, 7, 2100]], Form::Yolo, Some(More::Angle)),
            (&[("task", "obb")], &[&[1, 300, 7]], Form::BoxScoreClass, Some(More::Angle)),
            (&[], &[&[1, 25200, 7]], Form::YoloConfidence, None),
        ] {
            let task = task(given, outputs);
            let Some(Output::Detections(detect)) = task.output else { panic!("{given:?}") };
            assert_eq!((&detect.form, detect.more), (&form, more), "{given:?} {outputs:?}");
            assert_eq!(detect.labels, ["cat", "dog's"]);
            let chosen = form == Form::BoxScoreClass && more != Some(More::Angle);
            assert_eq!(detect.corners == Corners::Edges, chosen, "{given:?} {outputs:?}");
        }
        // One class of YOLOv5's own exporter.
        let one = task(&[("names", "['cat']")], &[&[1, 25200, 6], &[1, 3, 80, 80, 6]]);
        let Some(Output::Detections(one)) = one.output else { panic!() };
        assert_eq!((one.form, one.more, one.labels.len()), (Form::YoloConfidence, None, 1));
        let detector = task(
            &[("task", "detect"), ("description", "Ultralytics rtdetr-l model"), ("head", "x")],
            &[&[1, 300, 6]],
        );
        let Some(Output::Detections(detect)) = detector.output else { panic!() };
        assert!(detect.fractions && detect.corners == Corners::Middle);
        assert_eq!(detect.form, Form::BoxScoreClass);
        let first = [("task", "detect"), ("description", "Ultralytics rtdetr-l model")];
        let Some(Output::Detections(detect)) = task(&first, &[&[1, 300, 6]]).output else {
            panic!()
        };
        assert_eq!(detect.form, Form::Yolo);
    }

    #[test]
    fn own_entries_and_other_files_stay_as_they_are() {
        assert_eq!(task(&[("tilewright.labels", "a")], &[&[1, 6, 10]]), Task::default());
        assert_eq!(task(&[("names", "cat")], &[&[1, 6, 10]]), Task::default());
        assert_eq!(task(&[("task", "detect")], &[]), Task::default());
        let pixels = task(&[("task", "semantic")], &[&[1, 320, 320]]);
        assert!(pixels.input.is_some() && pixels.output.is_none());
        let Some(Output::Labels { labels, logits: false }) =
            task(&[("task", "classify")], &[&[1, 2]]).output
        else {
            panic!()
        };
        assert_eq!(labels.len(), 2);
        assert!(matches!(task(&[], &[&[1, 2]]).output, Some(Output::Labels { logits: true, .. })));
    }
}
