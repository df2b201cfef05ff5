"""Writes the trained network as an ONNX file, the description in its metadata.

    python export.py --weights RUN/average.pt --out textline.onnx

The graph is built by hand: batch normalisation folded into the convolutions,
weights kept as f16 initialisers with a Cast to f32 (folded when the file is
loaded), batch and width symbolic.  The file is checked against PyTorch.
"""
import argparse

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

from charset import CHARSET, CLASSES
from model import TextLine

METADATA = {
    "tilewright.name": "textline",
    "tilewright.task": "ctc",
    "tilewright.input": "line-image",
    "tilewright.input.height": "32",
    "tilewright.ctc.blank": "0",
    "tilewright.ctc.charset": CHARSET,
    "tilewright.ctc.decoder": "greedy",
    "tilewright.license": "MIT OR Apache-2.0",
    "tilewright.description": "Reads one line of printed Western European text (ASCII, Latin-1, "
                              "typographic quotes, dashes, ellipsis, bullet, euro sign).",
}


class Graph:
    """Collects nodes and f16 initialisers."""

    def __init__(self):
        self.nodes, self.initialisers, self.count = [], [], 0

    def node(self, op, inputs, output=None, **attributes):
        self.count += 1
        output = output or f"{op.lower()}_{self.count}"
        self.nodes.append(helper.make_node(op, inputs, [output], name=output + "_node", **attributes))
        return output

    def constant(self, array, name):
        self.initialisers.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, array, name):
        half = self.constant(array.astype(np.float16), name + ".f16")
        return self.node("Cast", [half], name, to=TensorProto.FLOAT)

    def conv(self, x, weight, bias, name, stride=(1, 1), padding=(0, 0), groups=1):
        return self.node(
            "Conv", [x, self.weight(weight, name + ".weight"), self.weight(bias, name + ".bias")], name,
            kernel_shape=list(weight.shape[2:]), strides=list(stride),
            pads=[padding[0], padding[1]] * 2, dilations=[1, 1], group=groups)

    def relu(self, x):
        return self.node("Relu", [x])


def folded(pair):
    """(weight, bias) of a convolution and the batch normalisation behind it."""
    conv, norm = pair
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    weight = conv.weight * scale[:, None, None, None]
    return weight.detach().numpy(), (norm.bias - norm.running_mean * scale).detach().numpy()


def build(model):
    g = Graph()

    def conv_bn(x, pair, name):
        conv = pair[0]
        return g.conv(x, *folded(pair), name, conv.stride, conv.padding, conv.groups)

    def plain(x, conv, name):
        return g.conv(x, conv.weight.detach().numpy(), conv.bias.detach().numpy(), name, groups=conv.groups)

    def separable(x, block, name):
        y = g.relu(conv_bn(x, block.depthwise, name + ".depthwise"))
        return g.relu(g.node("Add", [x, conv_bn(y, block.pointwise, name + ".pointwise")]))

    def gate(x, module, name):
        mean = g.node("GlobalAveragePool", [x])
        y = plain(g.relu(plain(mean, module.squeeze, name + ".squeeze")), module.excite, name + ".excite")
        return g.node("Mul", [x, g.node("Sigmoid", [y])])

    x = g.relu(conv_bn("image", model.stem, "stem"))
    x = g.relu(conv_bn(x, model.down1, "down1"))
    x = separable(x, model.fine, "fine")
    x = g.relu(conv_bn(x, model.down2, "down2"))
    for i, block in enumerate(model.coarse):
        x = separable(x, block, f"coarse{i}")
    x = g.relu(conv_bn(x, model.collapse, "collapse"))
    for i, block in enumerate(model.blocks):
        x = separable(x, block, f"block{i}")
        if str(i) in model.gates:
            x = gate(x, model.gates[str(i)], f"gate{i}")
    x = plain(x, model.head, "head")                                     # [n, 2*classes, 1, T]
    x = g.node("Squeeze", [x, g.constant(np.array([2], np.int64), "height_axis")])
    x = g.node("Transpose", [x], perm=[0, 2, 1])                         # [n, T, 2*classes]
    g.node("Reshape", [x, g.constant(np.array([0, -1, CLASSES], np.int64), "shape")], "logits")

    graph = helper.make_graph(
        g.nodes, "textline",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 1, 32, "width"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", "steps", CLASSES])],
        g.initialisers)
    onnx_model = helper.make_model(graph, producer_name="tilewright",
                                   opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(onnx_model, METADATA)
    onnx.checker.check_model(onnx_model, full_check=True)
    return onnx_model


def mean_of(paths):
    """The mean of the weights of several runs that started from one another."""
    states = [torch.load(path, map_location="cpu") for path in paths]
    return {key: sum(s[key] for s in states) / len(states) if value.dtype.is_floating_point else value
            for key, value in states[-1].items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", required=True, nargs="+",
                        help="of a run; the mean of several that started from one another")
    parser.add_argument("--out", default="textline.onnx")
    args = parser.parse_args()
    model = TextLine(CLASSES)
    model.load_state_dict(mean_of(args.weights))
    model.eval()
    data = build(model).SerializeToString()
    with open(args.out, "wb") as f:
        f.write(data)

    session = onnxruntime.InferenceSession(args.out, providers=["CPUExecutionProvider"])
    worst = 0.0
    for n, width in ((1, 64), (1, 604), (3, 252)):
        x = torch.rand(n, 1, 32, width)
        with torch.inference_mode():
            expected = model(x).numpy()
        got = session.run(None, {"image": x.numpy()})[0]
        worst = max(worst, float(np.abs(got - expected).max() / np.abs(expected).max()))
    print(f"{args.out}: {len(data)} bytes, {sum(p.numel() for p in model.parameters())} parameters, "
          f"largest difference to PyTorch {worst:.2e} of the largest logit")
    assert len(data) <= 1_500_000 and worst < 0.02


if __name__ == "__main__":
    main()
