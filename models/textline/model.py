"""The text-line network: a fully convolutional CTC reader.

Input  [n, 1, 32, W]  (ink = 1, paper = 0, W a multiple of 4)
Output [n, W / 2, classes], class 0 is the CTC blank.

The picture is taken down to a row of columns 4 px apart by four convolutions;
residual depthwise-separable 1xK blocks then give every column a view of about
ten characters to either side, and two squeeze-and-excite gates one of the whole
line (its scale and its style).  Every column emits two CTC steps, so that
narrow doubled letters keep a blank between them.
"""
import torch
from torch import nn

HEIGHT = 32


def conv_bn(cin, cout, kernel, stride=1, padding=None, groups=1):
    """Convolution without bias, followed by batch normalisation."""
    kernel = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    if padding is None:
        padding = (kernel[0] // 2, kernel[1] // 2)
    return nn.Sequential(
        nn.Conv2d(cin, cout, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(cout))


class Separable(nn.Module):
    """relu(x + pointwise(relu(depthwise(x)))), each convolution with BN."""

    def __init__(self, channels, kernel):
        super().__init__()
        self.depthwise = conv_bn(channels, channels, kernel, groups=channels)
        self.pointwise = conv_bn(channels, channels, 1)

    def forward(self, x):
        return torch.relu(x + self.pointwise(torch.relu(self.depthwise(x))))


class LineGate(nn.Module):
    """Squeeze-and-excite: channels scaled by what the whole line looks like."""

    def __init__(self, channels, hidden):
        super().__init__()
        self.squeeze = nn.Conv2d(channels, hidden, 1)
        self.excite = nn.Conv2d(hidden, channels, 1)

    def forward(self, x, mask=None):
        """`mask` [n,1,1,T] leaves the padding of a batch out of the mean."""
        if mask is None:
            mean = x.mean(dim=(2, 3), keepdim=True)
        else:
            mean = (x * mask).sum(dim=3, keepdim=True) / mask.sum(dim=3, keepdim=True)
        return x * torch.sigmoid(self.excite(torch.relu(self.squeeze(mean))))


class TextLine(nn.Module):
    def __init__(self, classes, c1=16, c2=48, c3=96, width=256, hidden=48,
                 kernels=(7, 9, 9, 11, 11, 9)):
        super().__init__()
        self.classes = classes
        self.stem = conv_bn(1, c1, 3, stride=2)                   # 16 x W/2
        self.down1 = conv_bn(c1, c2, 3, stride=(2, 1))            # 8 x W/2
        self.fine = Separable(c2, 3)
        self.down2 = conv_bn(c2, c3, 3, stride=2)                 # 4 x W/4
        self.coarse = nn.ModuleList([Separable(c3, 3) for _ in range(2)])
        self.collapse = conv_bn(c3, width, (4, 1), padding=(0, 0))   # 1 x W/4
        self.blocks = nn.ModuleList([Separable(width, (1, k)) for k in kernels])
        self.gates = nn.ModuleDict({"0": LineGate(width, hidden),
                                    str(len(kernels) // 2): LineGate(width, hidden)})
        self.head = nn.Conv2d(width, 2 * classes, 1, groups=2)

    def forward(self, x, mask=None):
        x = torch.relu(self.stem(x))
        x = torch.relu(self.down1(x))
        x = self.fine(x)
        x = torch.relu(self.down2(x))
        for block in self.coarse:
            x = block(x)
        x = torch.relu(self.collapse(x))
        for i, block in enumerate(self.blocks):
            x = block(x)
            if str(i) in self.gates:
                x = self.gates[str(i)](x, mask)
        x = self.head(x)                            # [n, 2*classes, 1, T]
        x = x.squeeze(2).transpose(1, 2)                          # [n, T, 2*classes]
        return x.reshape(x.shape[0], -1, self.classes)            # [n, 2*T, classes]
