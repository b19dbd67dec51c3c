"""DBNet, a text detector with differentiable binarisation (Liao et al. 2020): backbone, feature pyramid, two heads.

Layers of neck and head have PaddleOCR's names, so that its weights fit as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import paddle
from paddle import nn

TrainingMaps = tuple[paddle.Tensor, paddle.Tensor, paddle.Tensor, paddle.Tensor]
"""Probability P, threshold T and binary map B, and the logits that P is the sigmoid of; all float32 [N, 1, H, W]."""


@final
class DbNet(nn.Layer):
    """From an image to the probability of (shrunk) text at every pixel."""

    def __init__(
        self, backbone: nn.Layer, out_channels: Sequence[int], *, neck_channels: int, steepness: float
    ) -> None:
        """Put a detector on a backbone.

        Args:
            backbone: gives four maps at strides 4, 8, 16 and 32.
            out_channels: channels of those maps.
            neck_channels: channels of the pyramid and of the concatenated features; a multiple of 4. The paper's: 256.
            steepness: k in B = 1 / (1 + exp(-k (P - T))). The paper's: 50.
        """
        super().__init__()
        self.backbone = backbone
        self.neck = FeaturePyramid(out_channels, neck_channels)
        self.head = _Heads(neck_channels)
        self._steepness = steepness

    def forward(self, image: paddle.Tensor) -> paddle.Tensor | TrainingMaps:
        """[N, 3, H, W], sides multiples of 32 → P in evaluation, `TrainingMaps` in training."""
        features = self.neck(self.backbone(image))
        logits = self.head.binarize(features)
        threshold_logits = self.head.thresh(features) if self.training else None
        # In float32 from here on, also under half precision (O2 would cast back what is only cast): k times a rounding
        # error of half precision is not small.
        with paddle.amp.auto_cast(enable=False):
            logits = logits.astype("float32")
            probability = nn.functional.sigmoid(logits)
            if threshold_logits is None:
                return probability
            threshold = nn.functional.sigmoid(threshold_logits.astype("float32"))
            # The sigmoid neither overflows nor divides by zero, whatever k (P - T) is.
            binary = nn.functional.sigmoid(self._steepness * (probability - threshold))
        return probability, threshold, binary, logits


@final
class FeaturePyramid(nn.Layer):
    """Top-down sums over four maps, and all of them side by side at stride 4."""

    def __init__(self, in_channels: Sequence[int], channels: int) -> None:
        """`in_channels` of the maps at strides 4, 8, 16, 32; `channels` of the sums, and of the result."""
        super().__init__()
        lateral = [nn.Conv2D(width, channels, 1, bias_attr=False) for width in in_channels]
        self.in2_conv, self.in3_conv, self.in4_conv, self.in5_conv = lateral
        smooth = [nn.Conv2D(channels, channels // 4, 3, padding=1, bias_attr=False) for _ in in_channels]
        self.p2_conv, self.p3_conv, self.p4_conv, self.p5_conv = smooth

    def forward(self, features: Sequence[paddle.Tensor]) -> paddle.Tensor:
        """Maps at strides 4, 8, 16, 32 → [N, channels, H / 4, W / 4]."""
        c2, c3, c4, c5 = features
        sum5 = self.in5_conv(c5)
        sum4 = self.in4_conv(c4) + _enlarged(sum5, 2)
        sum3 = self.in3_conv(c3) + _enlarged(sum4, 2)
        sum2 = self.in2_conv(c2) + _enlarged(sum3, 2)
        p5 = _enlarged(self.p5_conv(sum5), 8)
        p4 = _enlarged(self.p4_conv(sum4), 4)
        p3 = _enlarged(self.p3_conv(sum3), 2)
        return paddle.concat([p5, p4, p3, self.p2_conv(sum2)], axis=1)


@final
class _Heads(nn.Layer):
    """One head for the probability, one for the threshold."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.binarize = _Head(channels)
        self.thresh = _Head(channels)


@final
class _Head(nn.Layer):
    """A 3x3 convolution and two transposed ones: back to the size of the image, one channel, no sigmoid."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = channels // 4
        self.conv1 = nn.Conv2D(channels, inner, 3, padding=1, bias_attr=False)
        self.conv_bn1 = nn.BatchNorm2D(inner)
        self.conv2 = nn.Conv2DTranspose(inner, inner, 2, stride=2)
        self.conv_bn2 = nn.BatchNorm2D(inner)
        self.conv3 = nn.Conv2DTranspose(inner, 1, 2, stride=2)

    def forward(self, features: paddle.Tensor) -> paddle.Tensor:
        x = nn.functional.relu(self.conv_bn1(self.conv1(features)))
        x = nn.functional.relu(self.conv_bn2(self.conv2(x)))
        return self.conv3(x)


def _enlarged(x: paddle.Tensor, factor: int) -> paddle.Tensor:
    return nn.functional.interpolate(x, scale_factor=factor, mode="nearest")
