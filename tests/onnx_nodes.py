#!/usr/bin/env python3
"""Runs the ONNX backend node tests through `tilewright batch`.

    pip install -r tests/requirements.txt
    cargo build --release
    python tests/onnx_nodes.py target/release/tilewright [--markdown docs/operators.md]

Every node test that the installed package `onnx` carries, and every model in its folders of test data, becomes
a model and its inputs in a temporary folder; the program runs it in a process of its own, and the outputs are compared with the
test's, within the test's tolerances. A test ends as one of

    pass          type, shape and values are right
    unsupported   the program says that it does not support something, and what
    ERROR         the program refuses the test for another reason
    WRONG         an output differs
    CRASH         the program dies, panics or does not end

Exit status 0: nothing is wrong, crashes or errs, at least 96 % of the tests at opset 25 or lower
whose tensors .npy files can hold pass, all models do, and each operator of ONNX is supported or left out for a
reason.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import warnings

import numpy as np
import onnx
import onnx.backend.test.case.node as node_cases
import onnx.backend.test.runner

# Folders of models in the package: written for operator set 6 and before by the exporter of torch, and the networks of
# its zoo with weights that are all the same.
FOLDERS = ("simple", "pytorch-converted", "pytorch-operator", "light")

FLOOR = 0.96
NEWEST = 25
SECONDS = 60

# Tests of random numbers: what they record is one generator's, so only type and shape are compared.
RANDOM = ("test_bernoulli", "test_randomnormal", "test_randomuniform", "test_multinomial")

# Tests whose recorded values are rounded in f32 where the exact value is 0.
NOISY = {"test_dft_inverse": 1e-6, "test_dft_inverse_opset19": 1e-6}

# Why a test does not count towards the floor.
NPY_TYPES = "tensors of types that .npy files cannot hold"
NO_TENSORS = "inputs or outputs that are optionals or maps, or sequences of such"
STRINGS = "tensors of strings"
TRAINING = "training"
NEWER = f"operator sets after {NEWEST}"
ML = "domain ai.onnx.ml (classical machine learning)"
EXCLUDED = (NPY_TYPES, NO_TENSORS, STRINGS, TRAINING, ML, NEWER)

# Why operators are left out on purpose.
OPTIONAL = "optional values: no value of a graph is one"
TEXT = "strings: the only text here is that of labels"
REASONS = {
    "FlexAttention": "domain ai.onnx.preview, which may still change",
    "ImageDecoder": "the program decodes pictures before the network, see `run`",
    "Optional": OPTIONAL,
    "RegexFullMatch": TEXT,
    "StringConcat": TEXT,
    "StringNormalizer": TEXT,
    "StringSplit": TEXT,
}

HOLDS = {"bool", "float16", "float32", "float64"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


class Case:
    """One test: its operator and what the package gives; of a model the folder that it is in."""

    def __init__(self, test, operator, folder=None):
        self.test, self.operator, self.name, self.folder = test, operator, test.name, folder
        opsets = {o.domain: o.version for o in test.model.opset_import}
        self.opset = opsets.get("", opsets.get("ai.onnx", 0))
        self.excluded = self.exclusion(opsets)
        self.result, self.message = None, ""
        self.data = [(flat(inputs), flat(outputs)) for inputs, outputs in test.data_sets]
        self.model = test.model
        if self.runs and any(isinstance(v, list) for sets in test.data_sets for values in sets for v in values):
            self.model = of_tensors(test.model, *test.data_sets[0])

    def exclusion(self, opsets):
        """Why the test does not count; None if it does."""
        graph = self.test.model.graph
        values = list(graph.input) + list(graph.output)
        if "ai.onnx.preview.training" in opsets or self.operator in ("Gradient", "Momentum"):
            return TRAINING
        if "training" in self.name or "_train" in self.name:
            return TRAINING
        if "ai.onnx.ml" in opsets:
            return ML
        types = [element_type(v.type) for v in values]
        if None in types:
            return NO_TENSORS
        if onnx.TensorProto.STRING in types:
            return STRINGS
        if not all(str(onnx.helper.tensor_dtype_to_np_dtype(t)) in HOLDS for t in types):
            return NPY_TYPES
        return NEWER if self.opset > NEWEST else None

    @property
    def counts(self):
        """Whether the test counts towards the floor."""
        return self.excluded is None and self.folder is None

    @property
    def runs(self):
        """Whether the program can be given the test."""
        return self.excluded in (None, NEWER) or (self.excluded == TRAINING and self.opset > 0)


def element_type(kind):
    """The number of the element type of a tensor, or of the tensors of a sequence; None for what is neither."""
    if kind.WhichOneof("value") == "sequence_type":
        kind = kind.sequence_type.elem_type
    return kind.tensor_type.elem_type if kind.WhichOneof("value") == "tensor_type" else None


def flat(values):
    """Values, with the members of a sequence in place of it."""
    return [one for value in values for one in (value if isinstance(value, list) else [value])]


def of_tensors(model, inputs, outputs):
    """The model with a tensor for each member of a sequence that goes in or comes out."""
    old, new = model.graph, onnx.ModelProto()
    new.CopyFrom(model)
    graph, before, after = new.graph, [], []
    del graph.input[:], graph.output[:]
    make, tensor = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    for value, members in zip(old.input, inputs):
        if not isinstance(members, list):
            graph.input.append(value)
            continue
        kind, names = element_type(value.type), [f"{value.name} {i}" for i in range(len(members))]
        graph.input.extend(tensor(n, kind, np.shape(m)) for n, m in zip(names, members))
        before.append(make("SequenceConstruct", names, [value.name]) if names
                      else make("SequenceEmpty", [], [value.name], dtype=kind))
    for value, members in zip(old.output, outputs):
        if not isinstance(members, list):
            graph.output.append(value)
            continue
        for i, member in enumerate(members):
            name, at = f"{value.name} {i}", f"{value.name} at {i}"
            graph.output.append(tensor(name, element_type(value.type), np.shape(member)))
            graph.initializer.append(onnx.numpy_helper.from_array(np.array(i), at))
            after.append(make("SequenceAt", [value.name, at], [name]))
    nodes = [*before, *old.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    return new


def collect():
    """All node tests with the operators they are about, by name."""
    operators, plain = {}, node_cases.expect

    def expect(node, *args, **kwargs):
        before = len(node_cases._NodeTestCases)
        plain(node, *args, **kwargs)
        for test in node_cases._NodeTestCases[before:]:
            operators[test.name] = node.op_type

    node_cases.expect = expect
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.random.seed(0)
        tests = node_cases.collect_testcases()
    cases = [Case(t, operators.get(t.name, t.model.graph.node[0].op_type)) for t in tests]
    return sorted(cases, key=lambda c: c.name)


def models():
    """The models in the folders of the package, with their data."""
    root = pathlib.Path(onnx.__file__).parent / "backend" / "test" / "data"
    for folder in FOLDERS:
        for path in sorted([*(root / folder).glob("*/model.onnx"), *(root / folder).glob("*.onnx")]):
            model, name = onnx.load(path), path.stem if folder == "light" else path.parent.name
            if folder == "light":
                made = onnx.backend.test.runner.Runner.generate_dummy_data
                known = {i.name for i in model.graph.initializer}
                inputs = [made(x, name=name) for x in model.graph.input if x.name not in known]
                sets = [(inputs, [read(path.with_name(f"{name}_output_0.pb"), model.graph.output[0])])]
            else:
                sets = [tuple([read(file, value) for file, value in zip(
                    sorted(data.glob(f"{kind}_*.pb"), key=lambda f: int(f.stem.split("_")[-1])), values)]
                    for kind, values in (("input", fed(model.graph)), ("output", model.graph.output)))
                    for data in sorted(path.parent.glob("test_data_set_*"))]
            test = types.SimpleNamespace(name=f"{folder}/{name}", model=model, data_sets=sets, rtol=1e-3, atol=1e-5)
            yield Case(test, model.graph.node[0].op_type, folder)


def fed(graph):
    """The inputs that data is given for: those without a value come first."""
    known = {i.name for i in graph.initializer}
    return [x for x in graph.input if x.name not in known] + [x for x in graph.input if x.name in known]


def read(path, value):
    """A tensor or a sequence of the test data."""
    if value.type.WhichOneof("value") == "sequence_type":
        message = onnx.SequenceProto()
        message.ParseFromString(path.read_bytes())
        return onnx.numpy_helper.to_list(message)
    message = onnx.TensorProto()
    message.ParseFromString(path.read_bytes())
    return onnx.numpy_helper.to_array(message)


def plain_array(value):
    """A test's tensor as NumPy has it."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value)


def write(case, folder):
    """Model and inputs as the program wants them."""
    (folder / "cases").mkdir(parents=True)
    (folder / "model.onnx").write_bytes(case.model.SerializeToString())
    for i, (inputs, _) in enumerate(case.data):
        data = folder / "cases" / f"{i}"
        data.mkdir()
        for j, value in enumerate(inputs):
            np.save(data / f"input_{j}.npy", plain_array(value), allow_pickle=False)


def compare(case, outputs):
    """What is wrong with the outputs of one data set; None if nothing is."""
    for i, (want, have) in enumerate(outputs):
        want = plain_array(want)
        if have is None:
            return f"output {i} is missing"
        if (want.dtype, want.shape) != (have.dtype, have.shape):
            return f"output {i} is {have.dtype}{have.shape}, not {want.dtype}{want.shape}"
        if case.name.startswith(RANDOM):
            continue
        rtol, atol = case.test.rtol, max(case.test.atol, NOISY.get(case.name, 0))
        wide = np.float64 if want.dtype == np.float16 else want.dtype
        near = np.isclose(have.astype(wide), want.astype(wide), rtol, atol, equal_nan=True)
        if not near.all():
            at = tuple(int(k) for k in np.argwhere(~near)[0])
            count = int((~near).sum())
            return f"output {i}{list(at)} is {have[at]}, not {want[at]} ({count} of {near.size} differ)"
    return None


def one_line(text):
    """A message without colours, line ends and prefixes."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text).strip()
    return re.sub(r"\s+", " ", text).removeprefix("error: ")[:240]


def run(case, program, root):
    """Runs a case and judges it."""
    folder = root / case.name
    write(case, folder)
    command = [program, "batch", folder / "model.onnx", "--cases", folder / "cases"]
    command += ["--format", "json", "--threads", "1"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        case.result, case.message = "CRASH", f"no end after {SECONDS} s"
        return
    out, err = (s.decode(errors="replace") for s in (done.stdout, done.stderr))
    if done.returncode not in (0, 1) or "panicked at" in err:
        case.result, case.message = "CRASH", f"status {done.returncode}: {one_line(err)}"
        return
    reports = json.loads(out)["cases"] if out.strip() else []
    bad = next((r for r in reports if r["status"] != "ok"), None)
    message = bad["message"] if bad else err
    message = one_line(message).replace(str(folder) + "/", "").removeprefix("model.onnx: ")
    if done.returncode == 1:
        unsupported = bad["status"] == "unsupported" if bad else "not supported" in message
        case.result, case.message = "unsupported" if unsupported else "ERROR", message
        return
    for i, (_, want) in enumerate(case.data):
        files = [folder / "cases" / f"{i}" / f"output_{j}.npy" for j in range(len(want))]
        have = [np.load(f, allow_pickle=False) if f.exists() else None for f in files]
        if problem := compare(case, zip(want, have)):
            case.result, case.message = "WRONG", problem
            return
    case.result = "pass"


def lacking():
    """Operators of ONNX that neither the README lists as supported nor this script as left out."""
    readme = (pathlib.Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    listed = readme.split("<!-- operators:")[1].split("-->\n", 1)[1].split("<!-- end")[0]
    known = set(re.split(r"[,\s]+", listed.strip()))
    schemas = [s for s in onnx.defs.get_all_schemas() if s.domain == "" and not s.deprecated]
    return sorted({s.name for s in schemas} - known - REASONS.keys())


def short(message):
    """The part of a message that says what is not supported."""
    message = message.removeprefix("the model needs what is not supported: ")
    message = re.sub(r" \(\d+x: [^)]*\)?", "", message)
    return re.sub(r'^\w+ node "[^"]*": ', "", message)


def groups_of(cases):
    """The tests that ran, by operator and opset."""
    groups = collections.defaultdict(list)
    for case in cases:
        if case.runs and case.folder is None:
            groups[case.operator, case.opset].append(case)
    return sorted(groups.items(), key=lambda g: (g[0][0].lower(), g[0][1]))


def counts_of_folders(cases):
    """Of each folder of the package's models: its name, how many of its models pass, how many run."""
    for folder in FOLDERS:
        group = [c for c in cases if c.folder == folder and c.excluded is None]
        yield folder, sum(c.result == "pass" for c in group), len(group)


def models_text(cases):
    """What became of the models in the package's folders."""
    counts = [f"{passed} of {count} in `{folder}`" for folder, passed, count in counts_of_folders(cases)]
    return [
        "Of the models in the package's folders of test data that neither train nor read strings, most of them of opset 6,",
        "pass " + ", ".join(counts) + ".",
    ]


def markdown(cases):
    """The page of the documentation."""
    counted = [c for c in cases if c.counts]
    passed = sum(c.result == "pass" for c in counted)
    lines = [
        "# ONNX operators",
        "",
        "Written by `tests/onnx_nodes.py --markdown`; not to be edited. It runs the node tests of the",
        f"Python package `onnx` {onnx.__version__} through `tilewright batch`.",
        "",
        f"Of the tests at opset {NEWEST} or lower whose tensors `.npy` files can hold, {passed} of"
        f" {len(counted)} pass",
        f"({100 * passed / max(len(counted), 1):.1f} %), and no test has a wrong result. What is not"
        " supported is an error that names it.",
        "",
        *models_text(cases),
        "",
        "## By operator and opset",
        "",
        "The tests of an operator are at the opset that changed it last. Tests in which an operator is",
        "written in simpler ones count with it, so `If` may be missing for another operator.",
        "",
        "| operator | opset | pass | unsupported | why |",
        "|---|--:|--:|--:|---|",
    ]
    for (name, opset), group in groups_of(cases):
        good = sum(c.result == "pass" for c in group)
        messages = sorted({short(c.message) for c in group if c.result != "pass"})
        why = [REASONS[name]] if messages and name in REASONS else messages
        if messages and all(c.excluded == TRAINING for c in group if c.result != "pass"):
            why = [TRAINING]
        why = "; ".join(why[:3]).replace("|", "\\|")
        lines.append(f"| {name} | {opset} | {good} | {len(group) - good or ''} | {why} |")
    lines += [
        "",
        "## Left out",
        "",
        "Operators of ONNX that are not supported on purpose; all others are, in every operator set:",
        "",
        "| operator | why |",
        "|---|---|",
    ]
    lines += [f"| {name} | {why} |" for name, why in sorted(REASONS.items())]
    lines += ["", "Tests that do not run:", "", "| why | tests | of operators |", "|---|--:|---|"]
    for why in EXCLUDED:
        group = [c for c in cases if c.excluded == why and not c.runs and c.folder is None]
        if group:
            names = ", ".join(sorted({c.operator for c in group}, key=str.lower))
            lines.append(f"| {why} | {len(group)} | {names} |")
    return "\n".join(lines) + "\n"


def report(cases):
    """Prints the table and the counts; gives the share of the counted tests that pass."""
    for (name, opset), group in groups_of(cases):
        bad = collections.Counter(c.result for c in group if c.result != "pass")
        text = ", ".join(f"{n} {result}" for result, n in sorted(bad.items()))
        good = sum(c.result == "pass" for c in group)
        print(f"{name:28} {opset:3} {good:4} pass  {text}".rstrip())
    for case in cases:
        if case.runs and case.result != "pass":
            print(f"{case.result:12} {case.name} (opset {case.opset}): {case.message}")
    for why in EXCLUDED:
        group = [c for c in cases if c.excluded == why and c.folder is None]
        passed = sum(c.result == "pass" for c in group)
        if group:
            print(f"not counted: {len(group):4} of {why}, {passed} pass")
    for folder, passed, count in counts_of_folders(cases):
        print(f"models of the folder {folder}: {passed} of {count} pass")
    counted = collections.Counter(c.result for c in cases if c.counts)
    total = sum(counted.values())
    share = counted["pass"] / max(total, 1)
    parts = ", ".join(f"{n} {result}" for result, n in sorted(counted.items()))
    print(f"counted: {total} at opset {NEWEST} or lower: {parts}; {100 * share:.1f} % pass")
    return share


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the program tilewright")
    parser.add_argument("--filter", default="", help="only tests whose name matches")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the page of the docs")
    parser.add_argument("--keep", type=pathlib.Path, help="keep models and data in this folder")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    args = parser.parse_args()
    cases = [c for c in [*collect(), *models()] if re.search(args.filter, c.name)]
    with tempfile.TemporaryDirectory() as temporary:
        root = args.keep or pathlib.Path(temporary)
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            program = pathlib.Path(args.program).resolve()
            list(pool.map(lambda c: run(c, program, root), [c for c in cases if c.runs]))
    share = report(cases)
    if args.markdown:
        args.markdown.write_text(markdown(cases), encoding="utf-8")
    bad = [c for c in cases if c.result in ("WRONG", "CRASH", "ERROR")]
    bad += [c for c in cases if c.folder and c.result == "unsupported" and c.excluded is None]
    if unknown := lacking():
        print(f"onnx node tests: FAILED: neither supported nor left out: {', '.join(unknown)}")
        return 1
    if bad or share < FLOOR:
        print(f"onnx node tests: FAILED: {len(bad)} wrong, crashed or in error, {100 * share:.1f} % pass")
        return 1
    print(f"onnx node tests: ok: {100 * share:.1f} % pass, nothing is wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
