"""The detector's backbones: what they give to the pyramid."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from paddle_stable.models.dbnet_backbones import MobileNetV3Backbone, PlainBackbone, ResNetBackbone


@pytest.mark.parametrize(
    ("backbone", "channels"),
    [
        (lambda: PlainBackbone((8, 16, 24, 32), 1), (8, 16, 24, 32)),
        (lambda: ResNetBackbone(18, vd=False), (64, 128, 256, 512)),
        (lambda: ResNetBackbone(18, vd=True), (64, 128, 256, 512)),
        (lambda: ResNetBackbone(50, vd=False), (256, 512, 1024, 2048)),
        (lambda: ResNetBackbone(50, vd=True), (256, 512, 1024, 2048)),
        (lambda: MobileNetV3Backbone(0.5), (16, 24, 56, 480)),
    ],
    ids=["plain", "resnet18", "resnet18_vd", "resnet50", "resnet50_vd", "mobilenet_v3_large"],
)
def test_a_backbone_gives_four_maps_each_half_as_large(backbone, channels: tuple[int, ...]) -> None:  # type: ignore[no-untyped-def]
    built = backbone()
    features = built(paddle.rand([1, 3, 64, 96]))
    assert built.out_channels == channels
    assert [tuple(one.shape) for one in features] == [
        (1, width, 64 // stride, 96 // stride) for width, stride in zip(channels, (4, 8, 16, 32), strict=True)
    ]


def test_a_vd_shortcut_averages_before_it_strides() -> None:
    block = ResNetBackbone(18, vd=True).layer2[0]
    block.eval()
    x = paddle.rand([1, 64, 8, 8])
    convolution, norm = block.downsample[1], block.downsample[2]
    averaged = (x[:, :, ::2, ::2] + x[:, :, 1::2, ::2] + x[:, :, ::2, 1::2] + x[:, :, 1::2, 1::2]) / 4
    np.testing.assert_allclose(block.downsample(x).numpy(), norm(convolution(averaged)).numpy(), rtol=1e-4, atol=1e-5)
