"""Weights from files that others have made: read without running code, and matched with a model by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import paddle
import safetensors.numpy
from safetensors import SafetensorError

from paddle_stable.data.dataset import Array
from paddle_stable.errors import InputError, Problem
from paddle_stable.pdparams import read_pdparams


@final
@dataclass(frozen=True)
class WeightReport:
    """Which of a model's parameters were found in a file."""

    file: str
    matched: tuple[str, ...]
    missing: tuple[str, ...]
    misshapen: tuple[str, ...]
    """With both shapes."""
    unused: tuple[str, ...]
    """Names in the file that the model has no use for."""

    def __str__(self) -> str:
        parts = [f"{self.file}: {len(self.matched)} parameters matched"]
        for words, names in (
            ("missing, left as initialised", self.missing),
            ("of another shape, left as initialised", self.misshapen),
            ("unused", self.unused),
        ):
            if names:
                parts.append(f"{len(names)} {words}: {listed(names)}")
        return "; ".join(parts)


def listed(names: Sequence[str], limit: int = 8) -> str:
    """The first few names, and how many more there are."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def read_weights(path: Path) -> dict[str, Array]:
    """Arrays by name from `.safetensors` or `.pdparams`, without running anything in the file.

    Raises:
        InputError: when the file is damaged, or holds anything else.
    """
    if path.suffix == ".pdparams":
        return read_pdparams(path)
    try:
        return dict(safetensors.numpy.load_file(path))
    except (SafetensorError, OSError, TypeError, KeyError, ValueError) as error:
        message = f"cannot be read as safetensors ({error}). Copy it again, or save it in float32."
        raise InputError.single(str(path), message) from error


def fill(model: paddle.nn.Layer, stored: Mapping[str, Array], file: str) -> tuple[WeightReport, list[Problem]]:
    """Put arrays into the parameters and statistics of the same name and shape.

    Returns:
        What was found, and a problem for every weight that cannot be used because it is no finite number.
    """
    matched, missing, misshapen = [], [], []
    problems: list[Problem] = []
    state = model.state_dict()
    for name, parameter in state.items():
        array, shape = stored.get(name), list(parameter.shape)
        if array is None:
            missing.append(name)
        elif list(array.shape) != shape:
            misshapen.append(f"{name} (expected {shape}, found {list(array.shape)})")
        else:
            values = _as_float32(array)
            if values is None or not np.isfinite(values).all():
                problems.append(Problem(file, 0, f"{name}: expected finite numbers, found {_found(array)}."))
            else:
                parameter.set_value(values)
                matched.append(name)
    unused = [name for name in stored if name not in state]
    return WeightReport(file, tuple(matched), tuple(missing), tuple(misshapen), tuple(unused)), problems


def _found(array: Array) -> str:
    return f"{array.dtype}" if array.dtype.kind not in "f" else "NaN or inf"


def _as_float32(array: Array) -> Array | None:
    """The numbers as float32; None when they are no floating-point numbers. Paddle keeps bfloat16 as uint16."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if array.dtype.kind == "f" else None
