"""A .pdparams file gives arrays and names, and nothing that is in it ever runs."""

from __future__ import annotations

import collections
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from paddle_stable.errors import InputError
from paddle_stable.pdparams import read_pdparams

ARRAYS = {
    "embeddings.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "norm.bias": np.array([np.nan, np.inf, -0.0], dtype=np.float32),
    "steps": np.array(7, dtype=np.int64),
    "half": np.array([1.5], dtype=np.float16),
    "flags": np.array([True, False]),
    "empty": np.zeros((0, 5), dtype=np.float64),
}


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name


def write(path: Path, content: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_what_paddle_saves_is_read_bit_for_bit(tmp_path: Path, protocol: int) -> None:
    layer = paddle.nn.Sequential(paddle.nn.Linear(3, 5), paddle.nn.LayerNorm(5))
    path = tmp_path / "model_state.pdparams"
    paddle.save(layer.state_dict(), str(path), protocol=protocol)
    assert_same(read_pdparams(path), {name: value.numpy() for name, value in layer.state_dict().items()})


def test_a_tensor_saved_by_itself_in_a_plain_dict_is_read(tmp_path: Path) -> None:
    path = tmp_path / "nested.pdparams"
    paddle.save({"a": paddle.to_tensor([1.0, 2.0]), "b": np.ones(2)}, str(path))
    assert_same(read_pdparams(path), {"a": np.array([1.0, 2.0], dtype=np.float32), "b": np.ones(2)})


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("mapping", [dict, collections.OrderedDict])
def test_every_kind_of_number_is_read_bit_for_bit(tmp_path: Path, protocol: int, mapping: type) -> None:
    assert_same(read_pdparams(write(tmp_path / "x.pdparams", mapping(ARRAYS), protocol)), ARRAYS)


def test_column_order_and_foreign_byte_order_arrive_in_ours(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = write(tmp_path / "x.pdparams", {"column": np.asfortranarray(array), "swapped": array.astype(">f4")})
    assert_same(read_pdparams(path), {"column": array, "swapped": array})


class Call:
    """Unpickling this calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduced = (function, arguments)

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(Call(os.mkdir, "ran"), id="a function of the system"),
        pytest.param(Call(eval, "__import__('os').mkdir('ran')"), id="eval"),
        pytest.param(Call(getattr, "text", "upper"), id="getattr"),
        pytest.param(Call(np.zeros, 3), id="another numpy function"),
        pytest.param(Call(np.dtype, "O"), id="a dtype of objects"),
        pytest.param(np.array(["text"], dtype=object), id="an array of objects"),
        pytest.param(np.array(["text"]), id="an array of strings"),
        pytest.param(np.zeros(2, dtype=[("a", "f4"), ("b", "i4")]), id="an array of records"),
        pytest.param(np.float32(1.0), id="a numpy scalar"),
        pytest.param({"lr": np.ones(1)}, id="a dict"),
        pytest.param(3.0, id="a number"),
        pytest.param("text", id="a text"),
        pytest.param([np.ones(1)], id="a list"),
        pytest.param(Path("x"), id="another class"),
        pytest.param(collections.OrderedDict([("a", np.ones(1))]), id="an ordered dict"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_anything_else_is_refused_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "x.pdparams", {"weight": np.ones(2), "bad": value}, protocol)
    with pytest.raises(InputError, match="refused: it") as caught:
        read_pdparams(path)
    assert str(path) in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_unpickling_would_have_run_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter-test: the poison of the test above is real."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(Call(os.mkdir, "ran")))  # noqa: S301
    assert (tmp_path / "ran").is_dir()


@pytest.mark.parametrize("content", [[1, 2], "text", np.ones(3)])
def test_a_file_without_names_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(InputError, match="refused: it holds a"):
        read_pdparams(write(tmp_path / "x.pdparams", content))


def test_a_file_cut_anywhere_is_an_input_error(tmp_path: Path) -> None:
    whole = pickle.dumps({"a": np.arange(3, dtype=np.float32)}, protocol=4)
    path = tmp_path / "x.pdparams"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError):
            read_pdparams(path)


def test_a_flipped_byte_is_an_input_error_or_gives_arrays(tmp_path: Path) -> None:
    whole = pickle.dumps({"a": np.arange(3, dtype=np.float32)}, protocol=4)
    path = tmp_path / "x.pdparams"
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            arrays = read_pdparams(path)
        except InputError:
            continue
        assert all(isinstance(array, np.ndarray) for array in arrays.values())


@pytest.mark.parametrize("content", [b"", b"safetensors", b"\x80\x04."])
def test_another_file_is_an_input_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.pdparams"
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a whole"):
        read_pdparams(path)


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_pdparams(tmp_path / "x.pdparams")
