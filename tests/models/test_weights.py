"""Weights out of files: which are taken, what is said of the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest
import safetensors.numpy

from paddle_stable.errors import InputError
from paddle_stable.models.weights import WeightReport, fill, listed, read_weights


def layer() -> paddle.nn.Linear:
    return paddle.nn.Linear(2, 3)


def test_what_fits_is_taken_and_the_rest_is_named_and_left_alone() -> None:
    model = layer()
    bias = model.bias.numpy().copy()
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    report, problems = fill(model, {"weight": weight, "bias": np.ones(4, np.float32), "head": np.ones(1)}, "a.pdparams")
    assert problems == []
    np.testing.assert_array_equal(model.weight.numpy(), weight)
    np.testing.assert_array_equal(model.bias.numpy(), bias)
    assert report == WeightReport("a.pdparams", ("weight",), (), ("bias (expected [3], found [4])",), ("head",))
    assert str(report) == (
        "a.pdparams: 1 parameters matched; 1 of another shape, left as initialised: bias (expected [3], found [4]); "
        "1 unused: head"
    )


def test_what_is_not_there_is_named() -> None:
    report, _ = fill(layer(), {}, "a")
    assert str(report) == "a: 0 parameters matched; 2 missing, left as initialised: weight, bias"


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_precisions_become_float32(dtype: type[np.floating]) -> None:
    model = layer()
    fill(model, {"bias": np.array([0.5, -2.0, 3.0], dtype)}, "a")
    assert model.bias.dtype == paddle.float32
    assert model.bias.tolist() == [0.5, -2.0, 3.0]


def test_bfloat16_is_read_from_the_bits_that_paddle_keeps() -> None:
    model = layer()
    bits = (np.array([0.5, -2.0, 3.0], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    fill(model, {"bias": bits}, "a")
    assert model.bias.tolist() == [0.5, -2.0, 3.0]


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (np.array([1.0, np.nan, 0.0], np.float32), "NaN or inf"),
        (np.array([1.0, np.inf, 0.0], np.float32), "NaN or inf"),
        (np.array([1, 2, 3], np.int64), "int64"),
    ],
)
def test_weights_that_are_no_finite_numbers_are_problems_and_not_taken(values: np.ndarray, found: str) -> None:
    model = layer()
    before = model.bias.numpy().copy()
    report, problems = fill(model, {"weight": np.zeros((2, 3), np.float32), "bias": values}, "a")
    assert [str(problem) for problem in problems] == [f"a  bias: expected finite numbers, found {found}."]
    assert report.matched == ("weight",)
    np.testing.assert_array_equal(model.bias.numpy(), before)


def test_safetensors_are_read(tmp_path: Path) -> None:
    arrays = {"a": np.arange(3, dtype=np.float32)}
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(read_weights(tmp_path / "model.safetensors")["a"], arrays["a"])


def test_a_damaged_file_is_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"no weights")
    with pytest.raises(InputError, match=r"model\.safetensors  cannot be read as safetensors"):
        read_weights(path)


def test_long_lists_are_cut() -> None:
    assert listed(list("abc"), 3) == "a, b, c"
    assert listed(list("abcd"), 3) == "a, b, c and 1 more"
