"""Weights of PaddleOCR and PaddleClas find their places, all of them, and what does not fit is named."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path

import numpy as np
import paddle
import pytest

from paddle_stable.data.dataset import Array
from paddle_stable.errors import InputError
from paddle_stable.models.dbnet import DbNet
from paddle_stable.models.dbnet_backbones import MobileNetV3Backbone, ResNetBackbone
from paddle_stable.models.dbnet_weights import load_dbnet_weights

STAGES = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
PARTS = ("weight", "bias", "_mean", "_variance")


def resnet(depth: int = 18) -> DbNet:
    paddle.seed(1)
    backbone = ResNetBackbone(depth, vd=True)
    return DbNet(backbone, backbone.out_channels, neck_channels=16, steepness=50.0)


def mobilenet() -> DbNet:
    paddle.seed(1)
    backbone = MobileNetV3Backbone(0.5)
    return DbNet(backbone, backbone.out_channels, neck_channels=16, steepness=50.0)


def unit(conv: str, norm: str, width: int, before: int, kernel: int, rng: np.random.Generator) -> dict[str, Array]:
    """A convolution and its BatchNorm, under the two names."""
    shape = (width, before, kernel, kernel)
    arrays = {f"{conv}.weight": rng.normal(0, (2 / (before * kernel**2)) ** 0.5, shape)}
    arrays |= {f"{norm}.{part}": rng.uniform(0.5, 1.5, width) for part in PARTS}
    return {name: value.astype(np.float32) for name, value in arrays.items()}


def paddleocr_resnet_vd(depth: int) -> dict[str, Array]:
    """Names and shapes as in PaddleOCR's det_resnet_vd.py: conv1_1 …, bb_<stage>_<block>.conv<n>._conv, .short."""
    rng = np.random.default_rng(depth)
    arrays: dict[str, Array] = {}

    def add(name: str, width: int, before: int, kernel: int) -> None:
        arrays.update(unit(f"{name}._conv", f"{name}._batch_norm", width, before, kernel, rng))

    for number, (width, before) in enumerate(((32, 3), (32, 32), (64, 32)), start=1):
        add(f"conv1_{number}", width, before, 3)
    before, wider = 64, 4 if depth >= 50 else 1
    for stage, blocks in enumerate(STAGES[depth]):
        inner = 64 * 2**stage
        for block in range(blocks):
            name = f"bb_{stage}_{block}"
            kernels = (1, 3, 1) if depth >= 50 else (3, 3)
            widths = (inner, inner, inner * wider)[-len(kernels) :]
            for number, (kernel, width) in enumerate(zip(kernels, widths, strict=True)):
                add(f"{name}.conv{number}", width, before if number == 0 else inner, kernel)
            if block == 0:
                add(f"{name}.short", inner * wider, before, 1)
            before = inner * wider
    return arrays


def paddleclas_resnet_vd(depth: int) -> dict[str, Array]:
    """The same network as PaddleClas's legendary_models/resnet.py names it: stem.<n>.conv, blocks.<n>.conv<n>.conv."""
    renamed: dict[str, Array] = {"fc.weight": np.zeros((512, 1000), np.float32)}
    for name, array in paddleocr_resnet_vd(depth).items():
        new = re.sub(r"^conv1_(\d)", lambda match: f"stem.{int(match[1]) - 1}", name)
        new = re.sub(
            r"^bb_(\d)_(\d)", lambda match: f"blocks.{sum(STAGES[depth][: int(match[1])]) + int(match[2])}", new
        )
        renamed[new.replace("._conv.", ".conv.").replace("._batch_norm.", ".bn.")] = array
    return renamed


def save(path: Path, arrays: dict[str, Array]) -> Path:
    """As `paddle.save` writes a state."""
    paddle.save({name: paddle.to_tensor(array) for name, array in arrays.items()}, str(path))
    return path


@pytest.mark.parametrize(
    ("source", "depth"), [(paddleocr_resnet_vd, 18), (paddleocr_resnet_vd, 50), (paddleclas_resnet_vd, 18)]
)
def test_a_resnet_backbone_fits_completely(source, depth: int, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    model, arrays = resnet(depth), source(depth)
    report = load_dbnet_weights(model, save(tmp_path / "r.pdparams", arrays), f"resnet{depth}_vd")
    assert not report.misshapen
    assert all(not name.startswith("backbone.") for name in report.missing)
    assert report.unused == (("backbone.fc.weight",) if source is paddleclas_resnet_vd else ())
    own = {name: value.numpy() for name, value in model.backbone.state_dict().items()}
    assert len(report.matched) == len(own)
    assert sum(float(value.sum()) for value in own.values()) == pytest.approx(
        sum(float(array.sum()) for name, array in arrays.items() if name != "fc.weight"), rel=1e-5
    )


def test_every_weight_of_a_resnet_goes_where_it_belongs(tmp_path: Path) -> None:
    """A block computed from the file's arrays by hand gives what the loaded model gives."""
    model, arrays = resnet(18), paddleocr_resnet_vd(18)
    load_dbnet_weights(model, save(tmp_path / "r.pdparams", arrays), "resnet18_vd")
    model.eval()

    def layer(x: paddle.Tensor, name: str, *, stride: int = 1, pool: bool = False) -> paddle.Tensor:
        functional = paddle.nn.functional
        x = functional.avg_pool2d(x, 2, 2, ceil_mode=True) if pool else x
        weight = paddle.to_tensor(arrays[f"{name}._conv.weight"])
        x = functional.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        mean, variance, scale, shift = (
            paddle.to_tensor(arrays[f"{name}._batch_norm.{part}"]).reshape([1, -1, 1, 1])
            for part in ("_mean", "_variance", "weight", "bias")
        )
        return (x - mean) / (variance + 1e-5).sqrt() * scale + shift

    relu = paddle.nn.functional.relu
    image = paddle.rand([1, 3, 32, 32])
    x = image
    for number, stride in ((1, 2), (2, 1), (3, 1)):
        x = relu(layer(x, f"conv1_{number}", stride=stride))
    x = paddle.nn.functional.max_pool2d(x, 3, 2, 1)
    for stage, blocks in enumerate(STAGES[18]):
        for block in range(blocks):
            name, halves = f"bb_{stage}_{block}", block == 0 and stage > 0
            y = layer(relu(layer(x, f"{name}.conv0", stride=2 if halves else 1)), f"{name}.conv1")
            x = relu(y + (layer(x, f"{name}.short", pool=halves) if block == 0 else x))
    np.testing.assert_allclose(model.backbone(image)[-1].numpy(), x.numpy(), rtol=1e-3)


def paddleocr_detector() -> dict[str, Array]:
    """Backbone, neck and head, with the prefixes that PaddleOCR gives them."""
    arrays = {f"backbone.{name}": array for name, array in paddleocr_resnet_vd(18).items()}
    rng = np.random.default_rng(1)
    for number, width in zip((2, 3, 4, 5), (64, 128, 256, 512), strict=True):
        arrays[f"neck.in{number}_conv.weight"] = rng.normal(size=(16, width, 1, 1)).astype(np.float32)
        arrays[f"neck.p{number}_conv.weight"] = rng.normal(size=(4, 16, 3, 3)).astype(np.float32)
    for head in ("head.binarize", "head.thresh"):
        arrays |= unit(f"{head}.conv1", f"{head}.conv_bn1", 4, 16, 3, rng)
        arrays |= unit(f"{head}.conv2", f"{head}.conv_bn2", 4, 4, 2, rng)
        for name, shape in (("conv2.bias", (4,)), ("conv3.weight", (4, 1, 2, 2)), ("conv3.bias", (1,))):
            arrays[f"{head}.{name}"] = rng.normal(size=shape).astype(np.float32)
    return arrays


def test_a_whole_detector_of_paddleocr_fits_completely(tmp_path: Path) -> None:
    model, arrays = resnet(18), paddleocr_detector()
    report = load_dbnet_weights(model, save(tmp_path / "det.pdparams", arrays), "resnet18_vd")
    assert (report.missing, report.misshapen, report.unused) == ((), (), ())
    np.testing.assert_array_equal(model.head.thresh.conv3.bias.numpy(), arrays["head.thresh.conv3.bias"])


def test_mobilenet_of_paddleclas_fits_completely(tmp_path: Path) -> None:
    """PaddleOCR's names are this program's own; PaddleClas numbers the blocks through."""
    model = mobilenet()
    starts = (0, 3, 6, 12)

    def theirs(name: str) -> str:
        name = re.sub(r"^stage3\.3\.", "last_second_conv.", name)
        return re.sub(r"^stage(\d)\.(\d)", lambda m: f"blocks.{starts[int(m[1])] + int(m[2])}", name)

    stored = {theirs(name): value.numpy() + 0.5 for name, value in model.backbone.state_dict().items()}
    assert "blocks.14.linear_conv.bn._mean" in stored
    expected = {name: value.numpy() + 0.5 for name, value in model.backbone.state_dict().items()}
    report = load_dbnet_weights(model, save(tmp_path / "m.pdparams", stored), "mobilenet_v3_large")
    assert len(report.matched) == len(stored)
    for name, value in model.backbone.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), expected[name])


def test_what_is_missing_misshapen_and_unused_is_named(tmp_path: Path) -> None:
    arrays = paddleocr_detector()
    del arrays["neck.in2_conv.weight"]
    arrays["head.thresh.conv1.weight"] = np.zeros((4, 15, 3, 3), np.float32)
    arrays["backbone.bb_9_0.conv0._conv.weight"] = np.zeros(3, np.float32)
    text = str(load_dbnet_weights(resnet(), save(tmp_path / "r.pdparams", arrays), "resnet18_vd"))
    assert "1 missing, left as initialised: neck.in2_conv.weight" in text
    assert "head.thresh.conv1.weight (expected [4, 16, 3, 3], found [4, 15, 3, 3])" in text
    assert "1 unused: backbone.layer10.0.conv1.weight" in text


def test_the_weights_of_another_backbone_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "r.pdparams", paddleocr_resnet_vd(50))
    with pytest.raises(InputError, match=r"of the backbone's weights .*Is task\.backbone resnet18_vd right\?"):
        load_dbnet_weights(resnet(18), path, "resnet18_vd")


@pytest.mark.parametrize("shape", [None, (32, 4, 3, 3)])
def test_a_backbone_that_is_not_whole_is_refused(tmp_path: Path, shape: tuple[int, ...] | None) -> None:
    arrays = paddleocr_resnet_vd(18)
    del arrays["conv1_1._conv.weight"]
    if shape is not None:
        arrays["conv1_1._conv.weight"] = np.zeros(shape, np.float32)
    with pytest.raises(InputError, match=r"1 of the backbone's weights .*: backbone\.conv1\.0\.weight.*task\.backbone"):
        load_dbnet_weights(resnet(), save(tmp_path / "r.pdparams", arrays), "resnet18_vd")


def test_a_file_that_has_nothing_to_do_with_it_is_an_error(tmp_path: Path) -> None:
    path = save(tmp_path / "x.pdparams", {"embeddings.weight": np.zeros((3, 3), np.float32)})
    with pytest.raises(InputError, match="none of its 1 weights fits"):
        load_dbnet_weights(resnet(), path, "resnet18_vd")


def test_weights_that_are_not_finite_are_an_error(tmp_path: Path) -> None:
    arrays = paddleocr_resnet_vd(18)
    arrays["bb_1_0.short._batch_norm._variance"][3] = np.nan
    with pytest.raises(InputError, match=r"layer2.0.downsample.2._variance: expected finite numbers, found NaN"):
        load_dbnet_weights(resnet(), save(tmp_path / "r.pdparams", arrays), "resnet18_vd")


class Trap:
    """Runs a command when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._command = f"touch {file}"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self._command,)


def test_code_in_a_file_is_refused_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "r.pdparams"
    path.write_bytes(pickle.dumps({"conv1_1._conv.weight": Trap(tmp_path / "ran")}))
    with pytest.raises(InputError, match="refused"):
        load_dbnet_weights(resnet(), path, "resnet18_vd")
    assert not (tmp_path / "ran").exists()
