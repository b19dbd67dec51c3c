"""The detector's maps: their sizes and their meaning."""

from __future__ import annotations

import numpy as np
import paddle

from paddle_stable.models.dbnet import DbNet, FeaturePyramid
from paddle_stable.models.dbnet_backbones import MobileNetV3Backbone, PlainBackbone, ResNetBackbone

Backbone = PlainBackbone | ResNetBackbone | MobileNetV3Backbone


def detector(backbone: Backbone, steepness: float = 50.0) -> DbNet:
    return DbNet(backbone, backbone.out_channels, neck_channels=16, steepness=steepness)


def test_maps_are_as_large_as_the_image() -> None:
    paddle.seed(1)
    model = detector(PlainBackbone((8, 8, 8, 8), 1))
    image = paddle.rand([2, 3, 64, 96])
    probability, threshold, binary, logits = model(image)
    assert [tuple(one.shape) for one in (probability, threshold, binary, logits)] == [(2, 1, 64, 96)] * 4
    np.testing.assert_allclose(probability.numpy(), 1 / (1 + np.exp(-logits.numpy())), rtol=1e-5)
    steep = 1 / (1 + np.exp(-50.0 * (probability.numpy() - threshold.numpy()).astype(np.float64)))
    np.testing.assert_allclose(binary.numpy(), steep, rtol=1e-3, atol=1e-6)
    model.eval()
    alone = model(image)
    assert tuple(alone.shape) == (2, 1, 64, 96)
    assert 0.0 <= float(alone.min()) <= float(alone.max()) <= 1.0


def test_the_binary_map_neither_overflows_nor_loses_its_gradient_to_nan() -> None:
    model = detector(PlainBackbone((8, 8, 8, 8), 1), steepness=1e6)
    binary = model(paddle.rand([1, 3, 32, 32]))[2]
    binary.sum().backward()
    assert np.isfinite(binary.numpy()).all()
    assert all(np.isfinite(p.grad.numpy()).all() for p in model.parameters() if p.grad is not None)


def test_every_parameter_takes_part_in_training() -> None:
    """A parameter without a gradient would let the other processes wait for it."""
    for backbone in (PlainBackbone((8, 8, 8, 8), 2), ResNetBackbone(18, vd=True), MobileNetV3Backbone(0.5)):
        model = detector(backbone)
        probability, threshold, binary, _ = model(paddle.rand([2, 3, 32, 32]))
        (probability.sum() + threshold.sum() + binary.sum()).backward()
        assert [name for name, p in model.named_parameters() if not p.stop_gradient and p.grad is None] == []


def test_the_pyramid_adds_from_the_top_down_and_puts_all_sizes_side_by_side() -> None:
    """With weights that pass the first channel through, what is in one map can be followed by hand."""
    neck = FeaturePyramid((1, 1, 1, 1), 4)
    for name, weight in neck.named_parameters():
        values = np.zeros(weight.shape, np.float32)
        centre = weight.shape[-1] // 2
        values[0, 0, centre, centre] = 1.0
        weight.set_value(values)
        assert name.endswith("_conv.weight")
    maps = [paddle.full([1, 1, 16 // 2**level, 16 // 2**level], 10.0**level) for level in range(4)]
    fused = neck(maps)
    assert fused.shape == [1, 4, 16, 16]
    # From the coarsest to the finest, as PaddleOCR has it.
    np.testing.assert_allclose(fused.numpy()[0, :, 3, 5], [1000.0, 1100.0, 1110.0, 1111.0])
