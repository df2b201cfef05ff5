"""Operators of `ai.onnx.ml`: by themselves, and in models that scikit-learn's converter makes, if it is installed."""

import itertools

import numpy as np

from onnx_cases import RNG, case, floats, ints, number

DOMAIN = "ai.onnx.ml"


def ml(op, operands, outputs=1, name=None, **more):
    return case(op, operands, outputs, domain=DOMAIN, name=name or op, **more)


def forest(trees, depth, features, columns, prefix, weights):
    """Attributes of full trees with random questions; `columns` are those that each leaf has weights for."""
    modes = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
    a = {f"nodes_{k}": [] for k in ("nodeids", "treeids", "featureids", "values", "modes", "truenodeids", "falsenodeids",
                                    "missing_value_tracks_true")}
    w = {f"{prefix}_{k}": [] for k in ("ids", "nodeids", "treeids", "weights")}
    inner = 2 ** depth - 1
    for tree, node in itertools.product(range(trees), range(2 * inner + 1)):
        leaf = node >= inner
        values = (node, tree, int(RNG.integers(features)), float(np.float32(RNG.standard_normal())),
                  "LEAF" if leaf else modes[int(RNG.integers(6 if tree else 4))], 0 if leaf else 2 * node + 1,
                  0 if leaf else 2 * node + 2, int(RNG.integers(2)))
        for key, value in zip(a, values):
            a[key].append(value)
        for column in columns if leaf else []:
            for key, value in zip(w, (column, node, tree, float(np.float32(weights())))):
                w[key].append(value)
    return {**a, **w}


def trees():
    x = floats(40, 6)
    holes = np.where(RNG.random(x.shape) < 0.2, np.nan, x).astype(np.float32)
    normal = lambda: RNG.standard_normal()
    for how in ("SUM", "AVERAGE", "MIN", "MAX"):
        for targets in (1, 3):
            yield ml("TreeEnsembleRegressor", [holes], n_targets=targets, aggregate_function=how,
                     base_values=[0.5] * targets, **forest(5, 3, 6, range(targets), "target", normal),
                     name=f"TreeEnsembleRegressor {how} {targets}")
    yield ml("TreeEnsembleRegressor", [x.astype(np.float64)], n_targets=2, post_transform="SOFTMAX",
             **forest(5, 3, 6, range(2), "target", normal), name="TreeEnsembleRegressor of doubles")
    op, labels = "TreeEnsembleClassifier", [7, -3, 4]
    for post in ("NONE", "LOGISTIC", "SOFTMAX"):
        yield ml(op, [x], 2, classlabels_int64s=labels, post_transform=post, **forest(5, 3, 6, range(3), "class", normal),
                 name=f"{op} {post}")
        for kind, weights in (("shares", lambda: RNG.random() / 5), ("scores", normal)):
            for column, more in ((0, {}), (0, dict(base_values=[0.3])), (1, {})):
                yield ml(op, [x], 2, classlabels_int64s=labels[:2], post_transform=post, **more,
                         **forest(5, 3, 6, [column], "class", weights),
                         name=f"{op} of two {post} {kind} {column} {len(more)}")


def plain():
    x = floats(5, 4)
    for name, dtype in (("", np.int64), (" of floats", np.float32)):
        yield ml("OneHotEncoder", [ints([[4, 7], [-3, 5]], dtype)], cats_int64s=[7, -3, 4], zeros=1, name=f"OneHotEncoder{name}")
    yield ml("OneHotEncoder", [ints([[4, 7], [-3, 4]], np.int64)], cats_int64s=[7, -3, 4], zeros=0,
             name="OneHotEncoder of known values")
    yield ml("ZipMap", [x], classlabels_int64s=[7, -3, 4, 0])
    yield ml("Scaler", [x], offset=[0.5, 1, -1, 2], scale=[2.0, 0.5, 1, 3])
    yield ml("Scaler", [x.astype(np.int64)], offset=[0.5], scale=[2.0], name="Scaler of integers")
    rows = np.concatenate([x, np.zeros((1, 4), np.float32), -abs(x[:1])])
    for norm in ("MAX", "L1", "L2"):
        yield ml("Normalizer", [rows], norm=norm, name=f"Normalizer {norm}")
    yield ml("ArrayFeatureExtractor", [x, ints([[2, 0]], np.int64)])
    yield ml("ArrayFeatureExtractor", [x[0], ints([3], np.int64)], name="ArrayFeatureExtractor of a row")
    yield ml("Binarizer", [x], threshold=0.25)
    yield ml("FeatureVectorizer", [x, floats(5, 2)], inputs=2, inputdimensions=[4, 2])
    holes = np.where(RNG.random(x.shape) < 0.4, np.nan, x).astype(np.float32)
    yield ml("Imputer", [holes], imputed_value_floats=[1.0, 2, 3, 4], replaced_value_float=float("nan"))
    yield ml("Imputer", [ints([[1, 2], [2, 3]], np.int64)], imputed_value_int64s=[9], replaced_value_int64=2,
             name="Imputer of integers")
    keys = ints([[5, 7], [1, 5]], np.int64)
    yield ml("LabelEncoder", [keys], keys_int64s=[5, 7], values_int64s=[50, 70], default_int64=-9)
    yield ml("LabelEncoder", [keys], keys_int64s=[5, 7], values_floats=[0.5, 0.7], default_float=-1.0,
             name="LabelEncoder to floats")
    yield ml("LabelEncoder", [floats(3).round()], keys_floats=[0.0, 1.0, -1.0], values_int64s=[3, 4, 5],
             name="LabelEncoder of floats")
    weights = lambda *shape: [float(v) for v in floats(*shape).flatten()]
    for post in ("NONE", "LOGISTIC", "SOFTMAX"):
        for targets in (1, 3):
            yield ml("LinearRegressor", [x], coefficients=weights(targets, 4), intercepts=weights(targets),
                     targets=targets, post_transform=post if targets > 1 else "NONE", name=f"LinearRegressor {post} {targets}")
        for classes in (2, 3):
            yield ml("LinearClassifier", [x], 2, coefficients=weights(classes, 4), intercepts=weights(classes),
                     classlabels_ints=[4, 2, 9][:classes], post_transform=post, name=f"LinearClassifier {post} {classes}")
    yield ml("LinearClassifier", [x], 2, coefficients=weights(1, 4), intercepts=weights(1), classlabels_ints=[4, 2],
             name="LinearClassifier of one score")
    for classes, prob in ((2, 0), (2, 1), (4, 0), (4, 1)):
        pairs, of = classes * (classes - 1) // 2, [3, 1, 4, 2][:classes]
        more = dict(prob_a=[-abs(v) for v in weights(pairs)], prob_b=weights(pairs)) if prob else {}
        yield ml("SVMClassifier", [floats(30, 4)], 2, coefficients=weights(classes - 1, sum(of)), rho=weights(pairs),
                 support_vectors=weights(sum(of), 4), vectors_per_class=of, classlabels_ints=[4, 2, 9, 7][:classes],
                 kernel_type="RBF", kernel_params=[0.5, 0.0, 0.0], **more, name=f"SVMClassifier {classes} {prob}")
    for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        for one_class in (0, 1):
            yield ml("SVMRegressor", [x], coefficients=weights(6), support_vectors=weights(6, 4), n_supports=6, rho=[0.25],
                     kernel_type=kernel, kernel_params=[0.5, 0.1, 3.0], one_class=one_class,
                     name=f"SVMRegressor {kernel} {one_class}")


def labels():
    """Texts, which only come out."""
    x, op, normal = floats(40, 6), "TreeEnsembleClassifier", RNG.standard_normal
    names = ["setosa", "", "größer"]
    for classes in (2, 3):
        yield ml(op, [x], 2, classlabels_strings=names[:classes],
                 **forest(5, 3, 6, range(classes) if classes > 2 else [0], "class", normal),
                 name=f"{op} of {classes} texts")
        yield ml("LinearClassifier", [x], 2, coefficients=[float(v) for v in floats(classes * 6)],
                 intercepts=[0.5, 0, -0.5][:classes], classlabels_strings=names[:classes],
                 name=f"LinearClassifier of {classes} texts")
    yield ml("LinearClassifier", [x], 2, coefficients=[float(v) for v in floats(6)], intercepts=[0.5],
             classlabels_strings=["no", "yes"], name="LinearClassifier of one score and texts")
    yield ml("SVMClassifier", [floats(30, 4)], 2, coefficients=[float(v) for v in floats(2 * 6)], rho=[0.1, 0.2, 0.3],
             support_vectors=[float(v) for v in floats(24)], vectors_per_class=[2, 3, 1], classlabels_strings=names,
             kernel_type="RBF", kernel_params=[0.5, 0.0, 0.0], name="SVMClassifier of texts")
    keys = ints([[5, 7], [1, 5]], np.int64)
    for name, more in (("", {}), (" and a default", dict(default_string="?"))):
        yield ml("LabelEncoder", [keys], keys_int64s=[5, 7], values_strings=["five", "seven"], **more,
                 name=f"LabelEncoder to texts{name}")
    yield ml("LabelEncoder", [floats(3).round()], keys_floats=[0.0, 1.0, -1.0], values_strings=["a", "b", "a"],
             name="LabelEncoder of floats to texts")
    yield ml("ArrayFeatureExtractor", [ints([[2, 0, 2]], np.int64), np.array(names, object)], order=[1, 0],
             name="ArrayFeatureExtractor of texts")
    yield case("Gather", [ints([[2, 0], [1, 1]], np.int64), np.array(names, object)], domain="", order=[1, 0],
               name="Gather of texts")
    yield ml("ZipMap", [floats(5, 3)], classlabels_strings=names, name="ZipMap of texts")


def cases():
    yield from trees()
    yield from plain()
    yield from labels()
