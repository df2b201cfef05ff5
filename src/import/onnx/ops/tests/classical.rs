//! Operators of `ai.onnx.ml` in sizes that do not fit; `tests/onnx_contrib.py` compares what fits.

use super::*;

fn ml(op: &str, attrs: &[(&str, A<'_>)], x: Tensor) -> Result<Vec<Tensor>, ImportError> {
    run_of("ai.onnx.ml", op, 3, attrs, &[Some(x)], 1)
}

/// A tree of one question and two leaves, with some lists replaced.
fn tree<'a>(changes: &[(&'a str, &'a [i64])]) -> Vec<(&'a str, A<'a>)> {
    let mut attrs = vec![
        ("nodes_nodeids", A::Is(&[0, 1, 2])),
        ("nodes_treeids", A::Is(&[0, 0, 0])),
        ("nodes_featureids", A::Is(&[1, 0, 0])),
        ("nodes_truenodeids", A::Is(&[1, 0, 0])),
        ("nodes_falsenodeids", A::Is(&[2, 0, 0])),
        ("nodes_values", A::Fs(&[0.5, 0.0, 0.0])),
        ("nodes_modes", A::Ss(&["BRANCH_LEQ", "LEAF", "LEAF"])),
        ("target_ids", A::Is(&[0, 0])),
        ("target_nodeids", A::Is(&[1, 2])),
        ("target_treeids", A::Is(&[0, 0])),
        ("target_weights", A::Fs(&[3.0, 4.0])),
    ];
    for &(name, list) in changes {
        match attrs.iter_mut().find(|(n, _)| *n == name) {
            Some(attr) => attr.1 = A::Is(list),
            None => attrs.push((name, A::Is(list))),
        }
    }
    attrs
}

#[test]
fn trees() {
    let op = "TreeEnsembleRegressor";
    let x = || f32s(&[2, 2], &[0.0, 0.25, 0.0, 0.75]);
    let y = ml(op, &tree(&[]), x()).unwrap().remove(0);
    assert_eq!(parts(&y), (vec![2, 1], vec![3.0, 4.0]));
    for bad in [
        ("nodes_nodeids", &[0, 1][..]),
        ("nodes_nodeids", &[0, 1, 1]),
        ("nodes_treeids", &[0, 0, 1]),
        ("nodes_featureids", &[2, 0, 0]),
        ("nodes_featureids", &[-1, 0, 0]),
        ("nodes_truenodeids", &[0, 0, 0]),
        ("nodes_truenodeids", &[2, 0, 0]),
        ("nodes_truenodeids", &[7, 0, 0]),
        ("nodes_missing_value_tracks_true", &[0, 0, 0, 0]),
        ("target_ids", &[0, 1]),
        ("target_ids", &[0, -1]),
        ("target_nodeids", &[1]),
    ] {
        assert!(ml(op, &tree(&[bad]), x()).is_err(), "{bad:?}");
    }
    let more = |name, value| {
        let mut attrs = tree(&[]);
        attrs.push((name, value));
        ml(op, &attrs, x())
    };
    assert!(more("n_targets", A::I(-1)).is_err() && more("n_targets", A::I(0)).is_err());
    assert!(more("base_values", A::Fs(&[1.0, 2.0])).is_err());
    assert!(
        ml(op, &tree(&[]), count(&[2])).is_ok() && ml(op, &tree(&[]), count(&[1, 1, 2])).is_err()
    );
}

#[test]
fn classes() {
    let op = "TreeEnsembleClassifier";
    let run = |ids: &[i64], labels: &[i64]| {
        let mut attrs = tree(&[]);
        for (name, _) in &mut attrs {
            let class = match *name {
                "target_ids" => "class_ids",
                "target_nodeids" => "class_nodeids",
                "target_treeids" => "class_treeids",
                "target_weights" => "class_weights",
                other => other,
            };
            *name = class;
        }
        attrs.iter_mut().filter(|a| a.0 == "class_ids").for_each(|a| a.1 = A::Is(ids));
        attrs.push(("classlabels_int64s", A::Is(labels)));
        ml(op, &attrs, f32s(&[2, 2], &[0.0, 0.25, 0.0, 0.75]))
    };
    assert_eq!(ints(&run(&[2, 1], &[7, 8, 9]).unwrap()[0]), [9, 8]);
    assert_eq!(ints(&run(&[1, 1], &[7, 8]).unwrap()[0]), [8, 8]);
    assert_eq!(ints(&run(&[0, 1], &[7, 8]).unwrap()[0]), [7, 8]);
    assert!(run(&[0, 3], &[7, 8, 9]).is_err());
    assert!(run(&[0, 0], &[]).is_err());
}

#[test]
fn one_logit_of_two_classes() {
    let attrs = [
        ("coefficients", A::Fs(&[1.0, 0.0, -1.0])),
        ("intercepts", A::Fs(&[0.5])),
        ("classlabels_ints", A::Is(&[7, 8])),
    ];
    let run = |post| {
        let attrs: Vec<_> = attrs.iter().cloned().chain([("post_transform", A::S(post))]).collect();
        let x = Some(count(&[1, 3]));
        run_of("ai.onnx.ml", "LinearClassifier", 3, &attrs, &[x], 2).unwrap()
    };
    let r = run("LOGISTIC");
    assert_eq!(ints(&r[0]), [7]);
    close(&r[1], &[1, 2], &[0.817_574_5, 0.182_425_5]);
    close(&run("NONE")[1], &[1, 2], &[2.5, -1.5]);
}

#[test]
fn lists_that_do_not_fit() {
    let x = || count(&[2, 3]);
    let two: &[f32] = &[1.0, 2.0];
    assert!(ml("Scaler", &[("scale", A::Fs(two))], x()).is_err());
    assert!(ml("Imputer", &[("imputed_value_floats", A::Fs(two))], x()).is_err());
    assert!(ml("Imputer", &[], x()).is_err());
    assert!(ml("LinearRegressor", &[("coefficients", A::Fs(two))], x()).is_err());
    let huge = [("coefficients", A::Fs(two)), ("targets", A::I(i64::MAX))];
    assert!(ml("LinearRegressor", &huge, x()).is_err());
    let one = [("coefficients", A::Fs(&[1.0; 3])), ("classlabels_ints", A::Is(&[1, 2, 3]))];
    assert!(ml("LinearClassifier", &one, x()).is_err());
    assert!(ml("FeatureVectorizer", &[("inputdimensions", A::Is(&[2]))], x()).is_err());
    let keys = [("keys_floats", A::Fs(two)), ("values_int64s", A::Is(&[1]))];
    assert!(ml("LabelEncoder", &keys, x()).is_err() && ml("LabelEncoder", &[], x()).is_err());
    let svm = |n| {
        let kernel = ("kernel_type", A::S("RBF"));
        let vectors = ("support_vectors", A::Fs(&[1.0; 6]));
        let more = [("coefficients", A::Fs(two)), ("rho", A::Fs(&[0.5])), ("n_supports", A::I(n))];
        let params = ("kernel_params", A::Fs(&[0.5, 0.0, 0.0]));
        ml(
            "SVMRegressor",
            &more.into_iter().chain([kernel, vectors, params]).collect::<Vec<_>>(),
            x(),
        )
    };
    assert!(svm(2).is_ok());
    assert!(svm(1).is_err() && svm(3).is_err() && svm(-1).is_err() && svm(i64::MAX).is_err());
}

#[test]
fn machines_of_two_classes() {
    let run = |of: &'static [i64], rho: &'static [f32], labels: &'static [i64]| {
        let attrs = [
            ("vectors_per_class", A::Is(of)),
            ("rho", A::Fs(rho)),
            ("classlabels_ints", A::Is(labels)),
            ("coefficients", A::Fs(&[1.0, -1.0, -2.0])),
            ("support_vectors", A::Fs(&[1.0, 0.0, 0.0, 1.0, 1.0, 1.0])),
        ];
        ml("SVMClassifier", &attrs, f32s(&[2, 2], &[4.0, 0.0, 0.0, 4.0]))
    };
    // 4 - 2 * 4 + 5, and -4 - 2 * 4 + 5.
    assert_eq!(ints(&run(&[1, 2], &[5.0], &[7, 8]).unwrap()[0]), [7, 8]);
    assert!(run(&[1, 2], &[5.0, 1.0], &[7, 8]).is_err());
    assert!(run(&[1, 2], &[5.0], &[7]).is_err() && run(&[1, 2], &[5.0], &[7, 8, 9]).is_err());
    assert!(run(&[1, 1], &[5.0], &[7, 8]).is_err() && run(&[4, -1], &[5.0], &[7, 8]).is_err());
    assert!(run(&[i64::MAX, i64::MAX], &[5.0], &[7, 8]).is_err());
    assert!(run(&[3], &[], &[7]).is_err() && run(&[], &[], &[]).is_err());
    assert!(run(&[1, 1, 1], &[5.0; 3], &[7, 8, 9]).is_err());
}

#[test]
fn maps_stay_matrices() {
    let labels = |list| ml("ZipMap", &[("classlabels_int64s", A::Is(list))], count(&[3, 2]));
    assert_eq!(parts(&labels(&[7, 9]).unwrap()[0]), parts(&count(&[3, 2])));
    assert!(labels(&[7]).is_err() && labels(&[]).is_err());
    let texts = |list| ml("ZipMap", &[("classlabels_strings", A::Ss(list))], count(&[1, 2]));
    assert_eq!(parts(&texts(&["a", "b"]).unwrap()[0]), parts(&count(&[1, 2])));
    assert!(texts(&["a"]).is_err());
}

#[test]
fn categories_that_must_be_known() {
    let encode = |zeros, x: &[i64]| {
        ml("OneHotEncoder", &[("cats_int64s", A::Is(&[5, -2])), ("zeros", A::I(zeros))], i64s(x))
    };
    for zeros in [0, 1] {
        let y = encode(zeros, &[-2, 5]).unwrap().remove(0);
        assert_eq!(parts(&y), (vec![2, 2], vec![0.0, 1.0, 1.0, 0.0]));
    }
    assert_eq!(parts(&encode(1, &[3]).unwrap()[0]).1, [0.0, 0.0]);
    let e = encode(0, &[-2, 3]).unwrap_err().to_string();
    assert!(e.contains("OneHotEncoder") && e.contains("index 1 is outside"), "{e}");
}
