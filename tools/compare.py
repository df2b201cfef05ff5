#!/usr/bin/env python3
"""Says whether tilewright and onnxruntime compute the same of a model.

    pip install numpy onnx onnxruntime
    tools/compare.py model.onnx
    tools/compare.py model.onnx --input image=photo.npy --shape mask=1,128 --nodes
    tools/compare.py model.onnx --program target/release/tilewright --format json

Inputs are random from a seed unless files are given: floats from a normal distribution, integers from 0
and 1, extents without a number 1. Of each output it says the type, the shape and the largest difference,
as a share of the largest value; for bytes in steps. With --nodes it does so for the result of every node:
both runtimes then get the model with all of them as outputs, so they fuse less than they usually do. The
first node that differs is where to look.

On x86 without instructions for products of bytes, onnxruntime adds up pairs of them in 16 bits, which saturate:
compare quantised models with --plain there.

Exit status 0: all agree; 1: some differ; 2: one of the two refuses the model.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

NOT_NPY = (TensorProto.STRING, TensorProto.UNDEFINED)


class Refused(Exception):
    """What one of the two says of a model that it does not take."""


def named(entries, what):
    """Pairs of options NAME=VALUE."""
    pairs = [entry.partition("=") for entry in entries]
    for name, sign, _ in pairs:
        if not sign:
            sys.exit(f"error: --{what} takes NAME=VALUE, found {name}")
    return {name: value for name, _, value in pairs}


def inputs(model, options):
    """An array for each input that no constant fills."""
    random = np.random.default_rng(options.seed)
    shapes, files = named(options.shape, "shape"), named(options.input, "input")
    constants = {c.name for c in model.graph.initializer}
    wanted = [i for i in model.graph.input if i.name not in constants]
    strangers = (set(shapes) | set(files)) - {i.name for i in wanted}
    if strangers:
        sys.exit(f"error: the model has no input {', '.join(sorted(strangers))}, but "
                 f"{', '.join(i.name for i in wanted)}")
    feeds = {}
    for value in wanted:
        if value.name in files:
            feeds[value.name] = np.load(files[value.name])
            continue
        tensor = value.type.tensor_type
        if tensor.elem_type in NOT_NPY:
            raise Refused(f"input {value.name} is no tensor of numbers: give a file")
        shape = [d.dim_value or 1 for d in tensor.shape.dim]
        if value.name in shapes:
            shape = [int(n) for n in shapes[value.name].split(",") if n]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        floats = np.issubdtype(dtype, np.floating)
        values = random.standard_normal(shape) if floats else random.integers(0, 2, shape)
        feeds[value.name] = np.asarray(values).astype(dtype)
    return feeds


def with_all_nodes(model):
    """The model with the results of all nodes, in their order, as outputs."""
    try:
        model = onnx.shape_inference.infer_shapes(model)
    except Exception as e:  # Types are then unknown, and the model stays as it is.
        raise Refused(f"its types cannot be inferred, which --nodes needs: {e}") from e
    known = {v.name: v for v in (*model.graph.value_info, *model.graph.output)}
    names = [name for node in model.graph.node for name in node.output if name]
    found = [known[n] for n in names if n in known and known[n].type.tensor_type.elem_type not in NOT_NPY]
    rest = [v for v in model.graph.output if v.name not in names]
    left_out = len(names) - len(found)
    del model.graph.output[:]
    model.graph.output.extend([*found, *rest])
    return model, left_out


def theirs(path, feeds, plain):
    """Names and arrays that onnxruntime computes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if plain:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, feeds)))
    except Exception as e:
        raise Refused(f"onnxruntime: {e}") from e


def ours(program, path, feeds, folder):
    """Names and arrays that tilewright computes."""
    command = [program, "run", path, "--format", "json", "--output-dir", os.path.join(folder, "out")]
    for i, (name, array) in enumerate(feeds.items()):
        file = os.path.join(folder, f"in{i}.npy")
        np.save(file, array)
        command += ["--input", f"{name}={file}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"tilewright: {done.stderr.strip().removeprefix('error: ')}")
    return {o["name"]: np.load(o["file"]) for o in json.loads(done.stdout)["outputs"]}


def judged(name, a, b, options):
    """What is to be said of one output, ours and theirs."""
    row = {"name": name, "dtype": str(b.dtype), "shape": list(b.shape), "off": None, "agrees": False}
    if a is None or a.shape != b.shape or a.dtype != b.dtype:
        found = "nothing" if a is None else f"{a.dtype} {list(a.shape)}"
        return {**row, "why": f"tilewright gives {found}"}
    same = a == b
    if np.issubdtype(b.dtype, np.floating):
        same = same | (np.isnan(a) & np.isnan(b))
    if same.all():
        return {**row, "off": 0.0, "agrees": True}
    a, b = a[~same].astype(np.float64), b[~same].astype(np.float64)
    off = float(np.abs(a - b).max())
    if row["dtype"] in ("int8", "uint8"):
        return {**row, "off": off, "steps": True, "agrees": off <= options.steps}
    if not np.issubdtype(np.dtype(row["dtype"]), np.floating):
        return {**row, "off": off, "why": "integers differ"}
    return {**row, "off": off, "agrees": False, "least": float(np.abs(b).max())}


def compared(got, wanted, options):
    rows = []
    for name, b in wanted.items():
        row = judged(name, got.get(name), b, options)
        if "least" in row:
            del row["least"]
            finite = np.abs(b[np.isfinite(b)].astype(np.float64))
            row["off"] /= max(float(finite.max(initial=0.0)), 1e-30)
            # Of few bits rounding alone is more. NaN where the other has a number is never right.
            row["agrees"] = row["off"] <= max(options.bound, 4 * float(ml_dtypes.finfo(b.dtype).eps))
        rows.append(row)
    return rows


def compare(model, options, folder, peer=None):
    """A row per output. `peer` is a model for onnxruntime if it shall not be the same."""
    feeds = inputs(model, options)
    left_out = 0
    if options.nodes:
        model, left_out = with_all_nodes(model)
    path = os.path.join(folder, "model.onnx")
    onnx.save(model, path, save_as_external_data=model.ByteSize() > 1 << 30, location="weights.bin")
    got = ours(options.program, path, feeds, folder)
    if peer is not None:
        path = os.path.join(folder, "peer.onnx")
        onnx.save(peer, path)
    return compared(got, theirs(path, feeds, options.plain), options), left_out


def report(rows, left_out, options):
    if options.format == "json":
        print(json.dumps({"outputs": rows, "left_out": left_out}, indent=1))
        return
    width = max(len(row["name"]) for row in rows) if rows else 0
    for row in rows:
        unit = " steps" if row.get("steps") else ""
        off = "" if row["off"] is None else f"off by {row['off']:.1e}{unit}"
        verdict = "agree" if row["agrees"] else "DIFFER"
        print(f"{verdict:6} {row['name']:{width}} {row['dtype']:8} {row['shape']!s:20} {off} {row.get('why', '')}".rstrip())
    if left_out:
        print(f"{left_out} results whose types are not known were left out")
    wrong = [row["name"] for row in rows if not row["agrees"]]
    first = f"; the first that differs: {wrong[0]}" if wrong else ""
    print(f"{len(rows) - len(wrong)} of {len(rows)} agree{first}")


def self_test(options):
    """A small net agrees, and one whose peer has another weight is said to differ, from that node on."""
    def net(weight):
        value, of = helper.make_tensor_value_info, TensorProto.FLOAT
        nodes = [helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["b"]),
                 helper.make_node("ArgMax", ["b"], ["y"], axis=1)]
        constant = helper.make_tensor("w", of, [4], weight)
        graph = helper.make_graph(nodes, "g", [value("x", of, [2, "n"])],
                                  [value("y", TensorProto.INT64, None), value("b", of, None)], [constant])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
        model.ir_version = 8
        return model

    options.shape, options.input, options.nodes = ["x=2,4"], [], True
    one = net([1.0, -2.0, 3.0, 0.5])
    for peer, agree in ((None, True), (net([1.0, -2.0, 3.1, 0.5]), False)):
        with tempfile.TemporaryDirectory() as folder:
            peer = with_all_nodes(peer)[0] if peer is not None else None
            rows, _ = compare(one, options, folder, peer)
        if len(rows) != 3 or rows[0]["name"] != "a" or rows[0]["agrees"] != agree:
            sys.exit(f"self-test failed: {rows}")
    print("self-test passed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="ONNX file")
    built = pathlib.Path(__file__).resolve().parent.parent / "target" / "release" / "tilewright"
    found = str(built) if built.exists() else shutil.which("tilewright") or "tilewright"
    parser.add_argument("--program", default=found, help="the program (%(default)s)")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=FILE", help=".npy file for an input")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=N,N", help="shape of a random input")
    parser.add_argument("--seed", type=int, default=0, help="of random inputs (%(default)s)")
    parser.add_argument("--nodes", action="store_true", help="compare the result of every node")
    parser.add_argument("--plain", action="store_true",
                        help="onnxruntime without its graph optimisations, which are not always right")
    parser.add_argument("--bound", type=float, default=1e-4,
                        help="largest difference of floats, as a share of the largest value (%(default)s;"
                        " four units of the last place for half precision)")
    parser.add_argument("--steps", type=int, default=1, help="largest difference of bytes (%(default)s)")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    parser.add_argument("--self-test", action="store_true", help="check this script with a model of its own")
    options = parser.parse_args()
    if not options.self_test and options.model is None:
        parser.error("a model is needed")
    try:
        if options.self_test:
            return self_test(options)
        with tempfile.TemporaryDirectory() as folder:
            rows, left_out = compare(onnx.load(options.model), options, folder)
    except Refused as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(2)
    report(rows, left_out, options)
    sys.exit(0 if rows and all(row["agrees"] for row in rows) else 1)


if __name__ == "__main__":
    main()
