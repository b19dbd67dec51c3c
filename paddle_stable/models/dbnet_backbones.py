"""Backbones of the text detector: an image in, features at a quarter, an eighth, a 16th and a 32nd of its size out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import paddle
from paddle import nn
from paddle.vision.models import resnet18, resnet50

# Kernel, expanded and outgoing channels, squeeze-and-excitation, activation, stride: MobileNetV3-large (Howard et al.
# 2019, table 1). A stage ends before every block of stride 2 but the first.
_MOBILENET_STAGES: tuple[tuple[tuple[int, int, int, bool, str, int], ...], ...] = (
    ((3, 16, 16, False, "relu", 1), (3, 64, 24, False, "relu", 2), (3, 72, 24, False, "relu", 1)),
    ((5, 72, 40, True, "relu", 2), (5, 120, 40, True, "relu", 1), (5, 120, 40, True, "relu", 1)),
    (
        (3, 240, 80, False, "hardswish", 2),
        (3, 200, 80, False, "hardswish", 1),
        (3, 184, 80, False, "hardswish", 1),
        (3, 184, 80, False, "hardswish", 1),
        (3, 480, 112, True, "hardswish", 1),
        (3, 672, 112, True, "hardswish", 1),
    ),
    (
        (5, 672, 160, True, "hardswish", 2),
        (5, 960, 160, True, "hardswish", 1),
        (5, 960, 160, True, "hardswish", 1),
    ),
)
_ACTIVATIONS = {"relu": nn.ReLU, "hardswish": nn.Hardswish}


@final
class PlainBackbone(nn.Layer):
    """Plain 3x3 convolutions in residual blocks. On a CPU these are fast, where depthwise ones are not."""

    def __init__(self, channels: Sequence[int], blocks: int) -> None:
        """`channels` of the four outputs; residual `blocks` in each of the four stages."""
        super().__init__()
        self.out_channels = tuple(channels)
        stem = max(channels[0] // 2, 8)
        self.stem = nn.Sequential(*_conv_bn_relu(3, stem, stride=2))
        self.stages = nn.LayerList()
        for before, width in zip((stem, *channels), channels, strict=False):
            self.stages.append(
                nn.Sequential(*_conv_bn_relu(before, width, stride=2), *(_Residual(width) for _ in range(blocks)))
            )

    def forward(self, image: paddle.Tensor) -> list[paddle.Tensor]:
        """[N, 3, H, W] → four maps [N, channels, H / stride, W / stride] for strides 4, 8, 16, 32."""
        x = self.stem(image)
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features


@final
class _Residual(nn.Layer):
    """Two 3x3 convolutions and a way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(*_conv_bn_relu(width, width))
        self.second = nn.Sequential(*_conv_bn_relu(width, width)[:2])

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return nn.functional.relu(x + self.second(self.first(x)))


@final
class ResNetBackbone(nn.Layer):
    """ResNet-18 or -50 of `paddle.vision`, or its variant "vd" with which PaddleOCR's detectors are published.

    vd (He et al. 2019, "Bag of Tricks", ResNet-D): three 3x3 convolutions in the stem instead of one 7x7, and shortcuts
    that average before they stride. The layers keep `paddle.vision`'s names.
    """

    def __init__(self, depth: int, *, vd: bool) -> None:
        """`depth` 18 or 50."""
        super().__init__()
        network = {18: resnet18, 50: resnet50}[depth](pretrained=False, num_classes=0, with_pool=False)
        self.out_channels = (64, 128, 256, 512) if depth == 18 else (256, 512, 1024, 2048)
        stages = (network.layer1, network.layer2, network.layer3, network.layer4)
        self.conv1 = _vd_stem() if vd else network.conv1
        self.bn1, self.relu, self.maxpool = network.bn1, network.relu, network.maxpool
        if vd:
            for number, (before, width, stage) in enumerate(
                zip((64, *self.out_channels), self.out_channels, stages, strict=False)
            ):
                stage[0].downsample = _vd_shortcut(before, width, halves=number > 0)
        self.layer1, self.layer2, self.layer3, self.layer4 = stages

    def forward(self, image: paddle.Tensor) -> list[paddle.Tensor]:
        """[N, 3, H, W] → four maps [N, channels, H / stride, W / stride] for strides 4, 8, 16, 32."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(image))))
        features = []
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
            features.append(x)
        return features


def _vd_stem() -> nn.Layer:
    last = nn.Conv2D(32, 64, 3, padding=1, bias_attr=False)
    return nn.Sequential(*_conv_bn_relu(3, 32, stride=2), *_conv_bn_relu(32, 32), last)


def _vd_shortcut(before: int, width: int, *, halves: bool) -> nn.Layer:
    pool = nn.AvgPool2D(2, stride=2, ceil_mode=True) if halves else nn.Identity()
    return nn.Sequential(pool, nn.Conv2D(before, width, 1, bias_attr=False), nn.BatchNorm2D(width))


@final
class MobileNetV3Backbone(nn.Layer):
    """MobileNetV3-large as PaddleOCR and PaddleClas build it, so that their weights fit.

    `paddle.vision`'s differs: no expansion where a block does not widen, other widths inside squeeze-and-excitation,
    another epsilon in BatchNorm. The layers have PaddleOCR's names.
    """

    def __init__(self, scale: float) -> None:
        """`scale` on all channels; PaddleOCR's recipe takes 0.5."""
        super().__init__()
        width = _multiple_of_8(16 * scale)
        self.conv = _Unit(3, width, 3, stride=2, activation="hardswish")
        out_channels = []
        for number, blocks in enumerate(_MOBILENET_STAGES):
            stage = nn.Sequential()
            for position, (kernel, expanded, outgoing, excite, activation, stride) in enumerate(blocks):
                inner, after = _multiple_of_8(expanded * scale), _multiple_of_8(outgoing * scale)
                block = _InvertedResidual(width, inner, after, kernel, stride, excite=excite, activation=activation)
                stage.add_sublayer(str(position), block)
                width = after
            if number == len(_MOBILENET_STAGES) - 1:
                last = _multiple_of_8(960 * scale)
                stage.add_sublayer(str(len(blocks)), _Unit(width, last, 1, activation="hardswish"))
                width = last
            self.add_sublayer(f"stage{number}", stage)
            out_channels.append(width)
        self.out_channels = tuple(out_channels)

    def forward(self, image: paddle.Tensor) -> list[paddle.Tensor]:
        """[N, 3, H, W] → four maps [N, channels, H / stride, W / stride] for strides 4, 8, 16, 32."""
        x = self.conv(image)
        features = []
        for stage in (self.stage0, self.stage1, self.stage2, self.stage3):
            x = stage(x)
            features.append(x)
        return features


@final
class _Unit(nn.Layer):
    """Convolution, BatchNorm, and an activation where one is named."""

    def __init__(
        self, before: int, after: int, kernel: int, *, stride: int = 1, groups: int = 1, activation: str | None
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2D(before, after, kernel, stride=stride, padding=kernel // 2, groups=groups, bias_attr=False)
        self.bn = nn.BatchNorm2D(after)
        self.activation = _ACTIVATIONS[activation]() if activation else nn.Identity()

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.activation(self.bn(self.conv(x)))


@final
class _InvertedResidual(nn.Layer):
    """Widen, convolve every channel by itself, weigh the channels, narrow."""

    def __init__(
        self, before: int, inner: int, after: int, kernel: int, stride: int, *, excite: bool, activation: str
    ) -> None:
        super().__init__()
        self.has_shortcut = stride == 1 and before == after
        self.expand_conv = _Unit(before, inner, 1, activation=activation)
        self.bottleneck_conv = _Unit(inner, inner, kernel, stride=stride, groups=inner, activation=activation)
        self.mid_se = _Excitation(inner) if excite else nn.Identity()
        self.linear_conv = _Unit(inner, after, 1, activation=None)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        y = self.linear_conv(self.mid_se(self.bottleneck_conv(self.expand_conv(x))))
        return x + y if self.has_shortcut else y


@final
class _Excitation(nn.Layer):
    """Squeeze and excitation: a factor for every channel, from all channels' means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2D(channels, channels // 4, 1)
        self.conv2 = nn.Conv2D(channels // 4, channels, 1)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        squeezed = nn.functional.relu(self.conv1(nn.functional.adaptive_avg_pool2d(x, 1)))
        return x * nn.functional.hardsigmoid(self.conv2(squeezed), slope=0.2, offset=0.5)


def _conv_bn_relu(before: int, after: int, *, stride: int = 1) -> list[nn.Layer]:
    convolution = nn.Conv2D(before, after, 3, stride=stride, padding=1, bias_attr=False)
    return [convolution, nn.BatchNorm2D(after), nn.ReLU()]


def _multiple_of_8(channels: float) -> int:
    """Nearest multiple of 8, at least 8, and never less than nine tenths of what was asked for."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded
