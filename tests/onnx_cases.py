"""Operators as nodes of their own, which the tests of operators compare with other runtimes."""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def octets(*shape, dtype=np.uint8):
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def narrow(*shape):
    """Signed weights of 7 bits, pairs of whose products with bytes 16 bits hold: for nodes in which the other runtime
    saturates in spite of its option."""
    return octets(*shape, dtype=np.int8) // 2


def number(value, dtype=np.float32):
    return np.array(value, dtype)


def case(op, operands, outputs=1, domain="com.microsoft", inputs=1, name=None, order=None, beside=None,
         want=None, **attributes):
    """One node: its first `inputs` operands are inputs of the network, the others constants. `order` is that in
    which the node has them, with None for what it lacks. `outputs` is their number, of which those between the
    first and the last are left out, or a list of names. `beside` is another node, whose results these must be; `want`
    are the results themselves, of what the other runtime lacks on the CPU. An operand may be a pair of an array and the
    type that it has in the file, if NumPy lacks that."""
    return dict(op=op, operands=operands, outputs=outputs, domain=domain, inputs=inputs, beside=beside, want=want,
                name=name or op, order=order or range(len(operands)), attributes=attributes)


def ints(values, dtype=np.int32):
    return np.array(values, dtype)


def model(given):
    """A model of one node; outputs that a runtime may leave out are left out."""
    names = [f"x{i}" for i in range(len(given["operands"]))]
    operands = [o if isinstance(o, tuple) else (o, None) for o in given["operands"]]
    given = {**given, "operands": [a for a, _ in operands]}
    kinds = {a.dtype: helper.np_dtype_to_tensor_dtype(a.dtype) for a in given["operands"]}
    info = [helper.make_tensor_value_info(n, kinds[a.dtype], a.shape)
            for n, a in zip(names, given["operands"])]
    outputs = given["outputs"]
    if isinstance(outputs, int):
        outputs = ["y"] + [""] * (outputs - 2) + ["z"] * (outputs > 1)
    inputs = ["" if i is None else names[i] for i in given["order"]]
    node = helper.make_node(given["op"], inputs, outputs, domain=given["domain"], **given["attributes"])
    constants = [helper.make_tensor(n, kind, a.shape, a.flatten()) if kind else numpy_helper.from_array(a, n)
                 for n, (a, kind) in zip(names, operands)]
    count = given["inputs"]
    results = [helper.make_empty_tensor_value_info(n) for n in outputs if n]
    if given["op"] == "ZipMap":
        key = TensorProto.INT64 if "classlabels_int64s" in given["attributes"] else TensorProto.STRING
        entry = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
        results = [helper.make_value_info("y", helper.make_sequence_type_proto(entry))]
    graph = helper.make_graph([node], "case", info[:count], results, constants[count:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1),
              helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def results(given, feeds=None):
    """What the other runtime computes."""
    if feeds is None:
        feeds = {f"x{i}": a for i, a in enumerate(given["operands"][:given["inputs"]])}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # Without instructions for products of bytes it would add up pairs of them in 16 bits, which saturate.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(model(given).SerializeToString(), options,
                                           providers=["CPUExecutionProvider"])
    # Maps, one per row, are columns in the order of the labels here.
    labels = next((v for k, v in given["attributes"].items() if k.startswith("classlabels_")), [])
    rows = lambda y: np.array([[row[label] for label in labels] for row in y], np.float32)
    return [rows(y) if isinstance(y, list) else y for y in session.run(None, feeds)]
