"""Weights for DBNet from PaddleOCR's and PaddleClas's files, under whatever names those gave them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import paddle

from paddle_stable.data.dataset import Array
from paddle_stable.errors import InputError, Problem
from paddle_stable.models.weights import WeightReport, fill, listed, read_weights

BACKBONE = "backbone."
_RESNET_BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
_MOBILENET_BLOCKS = (3, 3, 6, 3)
_NORM = r"(?:_batch_norm|bn)"
_CONV = r"(?:_conv|conv)"


def load_dbnet_weights(model: paddle.nn.Layer, path: Path, architecture: str) -> WeightReport:
    """Put what fits of a `.pdparams` or `.safetensors` file into a `DbNet`; the rest stays as initialised.

    The file may hold a detector of PaddleOCR or of this program, or a classifier of PaddleClas or `paddle.vision`, of
    which the backbone is taken.

    Args:
        model: the detector.
        path: the file.
        architecture: `task.backbone` of the recipe.

    Raises:
        InputError: when nothing in the file fits, the backbone is another one, or a weight is not finite.
    """
    stored = read_weights(path)
    if not any(name.startswith((BACKBONE, "neck.", "head.")) for name in stored):
        stored = {BACKBONE + name: array for name, array in stored.items()}
    report, problems = fill(model, renamed(stored, architecture), str(path))
    unlike = [name for name in (*report.missing, *report.misshapen) if name.startswith(BACKBONE)]
    if report.matched and unlike:
        # Half a backbone of another network would train, and no figure would say why it trains badly.
        message = f"{len(unlike)} of the backbone's weights are missing or of another shape: {listed(unlike)}. "
        problems.append(Problem(str(path), 0, f"{message}Is task.backbone {architecture} right?"))
    if problems:
        raise InputError(f"These weights cannot be used ({report}):", problems)
    if not report.matched:
        message = f"task.init_from: none of its {len(stored)} weights fits task.backbone {architecture} ({report})."
        raise InputError.single(str(path), message)
    return report


def renamed(stored: Mapping[str, Array], architecture: str) -> dict[str, Array]:
    """The arrays under this program's names; those that have them already, and all others, keep theirs."""
    rename: Callable[[str], str]
    if architecture.startswith("resnet"):
        depth, vd = int(architecture.removeprefix("resnet").removesuffix("_vd")), architecture.endswith("_vd")

        def rename(name: str) -> str:
            return _resnet_name(name, _RESNET_BLOCKS[depth], vd=vd)
    elif architecture.startswith("mobilenet"):
        rename = _mobilenet_name
    else:
        return dict(stored)
    return {
        BACKBONE + rename(name.removeprefix(BACKBONE)) if name.startswith(BACKBONE) else name: array
        for name, array in stored.items()
    }


def _resnet_name(name: str, blocks: tuple[int, ...], *, vd: bool) -> str:
    """`bb_1_0.conv0._conv.weight` (PaddleOCR), `blocks.3.conv0.conv.weight` (PaddleClas) → `layer2.0.conv1.weight`."""
    stem = re.fullmatch(rf"(?:conv1_|stem\.)(\d)\.({_CONV}|{_NORM})\.(\w+)", name)
    if stem is None:
        stem = re.fullmatch(rf"conv1?()\.({_CONV}|{_NORM})\.(\w+)", name)
    if stem is not None:
        number = int(stem[1] or 0) - name.startswith("conv1_")  # PaddleOCR counts from 1
        return _stem_name(number, is_norm=stem[2] in ("_batch_norm", "bn"), tensor=stem[3], vd=vd)
    block = re.fullmatch(rf"(?:bb_(\d+)_(\d+)|blocks\.(\d+))\.(conv\d|short)\.({_CONV}|{_NORM})\.(\w+)", name)
    if block is None:
        return name
    stage, position = _place(int(block[3]), blocks) if block[3] else (int(block[1]), int(block[2]))
    is_norm, tensor = block[5] in ("_batch_norm", "bn"), block[6]
    if block[4] == "short":
        return f"layer{stage + 1}.{position}.downsample.{int(vd) + int(is_norm)}.{tensor}"
    number = int(block[4].removeprefix("conv")) + 1
    return f"layer{stage + 1}.{position}.{'bn' if is_norm else 'conv'}{number}.{tensor}"


def _stem_name(number: int, *, is_norm: bool, tensor: str, vd: bool) -> str:
    """The n-th convolution of the stem, or its BatchNorm; behind the last one stands `bn1`."""
    if is_norm and number == (2 if vd else 0):
        return f"bn1.{tensor}"
    return f"conv1.{3 * number + int(is_norm)}.{tensor}" if vd else f"conv1.{tensor}"


def _mobilenet_name(name: str) -> str:
    """`blocks.3.expand_conv.conv.weight` (PaddleClas) → `stage1.0.expand_conv.conv.weight`, PaddleOCR's and ours."""
    block = re.fullmatch(r"blocks\.(\d+)\.(.+)", name)
    if block is not None:
        stage, position = _place(int(block[1]), _MOBILENET_BLOCKS)
        return f"stage{stage}.{position}.{block[2]}"
    last = re.fullmatch(r"last_second_conv\.(.+)", name)
    return f"stage3.{_MOBILENET_BLOCKS[-1]}.{last[1]}" if last else name


def _place(number: int, blocks: tuple[int, ...]) -> tuple[int, int]:
    """Stage and position in it of the n-th block of a network."""
    for stage, count in enumerate(blocks):
        if number < count:
            return stage, number
        number -= count
    return len(blocks), number
