"""What is written comes back bit for bit, poison never gets in, and every changed bit is noticed."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddle_stable import checkpoint, checkpoint_folder
from paddle_stable.checkpoint import CheckpointError, CheckpointStore, NonFiniteState
from tests.checkpoint_sample import flip, hidden, names, parts, same, store

ALL_FILES = ["model.safetensors", "optimizer.safetensors", "state.json", "vocab.txt", "manifest.json"]


def test_what_is_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    path = store(tmp_path).save(400, parts(1))
    assert path == tmp_path / "step-000400"
    assert sorted(file.name for file in path.iterdir()) == sorted([*ALL_FILES, "recipe.yaml"])
    assert store(tmp_path).newest_valid() == (path, [])
    for verify in (True, False):
        assert same(store(tmp_path).load(path, verify=verify), parts(1))


def test_a_transposed_array_is_written_in_its_own_order(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    path = store(tmp_path).save(1, dataclasses.replace(parts(1), model={"w": array}))
    assert np.array_equal(store(tmp_path).load(path).model["w"], array)


def test_an_optimizer_that_never_stepped_can_be_saved(tmp_path: Path) -> None:
    path = store(tmp_path).save(0, dataclasses.replace(parts(1), optimizer={}))
    assert store(tmp_path).load(path).optimizer == {}


def test_numbers_that_json_does_not_know_survive_in_the_state(tmp_path: Path) -> None:
    state = {"norms": [math.inf, -math.inf, 1.5], "loss": math.nan}
    path = store(tmp_path).save(1, dataclasses.replace(parts(1), state=state))
    loaded = store(tmp_path).load(path).state
    assert loaded["norms"] == [math.inf, -math.inf, 1.5]
    assert math.isnan(loaded["loss"])

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    json.loads((path / "state.json").read_text(), parse_constant=refuse)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ((1, 2), r"state\.a is a tuple"),
        ({1: "x"}, r"state\.a has the key 1"),
        ([0, np.float32(1.0)], r"state\.a\[1\] is a float32"),
        (np.zeros(2), r"state\.a is a ndarray"),
        ({"$float": "nan"}, r"state\.a has the key '\$float'"),
    ],
)
def test_state_that_would_read_back_as_something_else_is_refused(tmp_path: Path, value: Any, where: str) -> None:
    with pytest.raises(CheckpointError, match=where):
        store(tmp_path).save(1, dataclasses.replace(parts(1), state={"a": value}))
    assert names(tmp_path) == hidden(tmp_path) == []


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json", "x.safetensors", "../up", ".hidden", "a/b", ""])
def test_an_asset_cannot_take_another_files_place(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="cannot be the name"):
        store(tmp_path).save(1, dataclasses.replace(parts(1), assets={name: "text"}))
    assert names(tmp_path) == hidden(tmp_path) == []


@pytest.mark.parametrize(
    "array", [np.array([object()]), np.array(["text"]), np.array([1j]), np.zeros(1, np.longdouble)]
)
def test_arrays_without_a_safe_type_are_refused(tmp_path: Path, array: Any) -> None:
    with pytest.raises(CheckpointError, match=f"w is an array of {array.dtype}"):
        store(tmp_path).save(1, dataclasses.replace(parts(1), model={"w": array}))


def test_files_have_the_rights_that_the_users_umask_gives(tmp_path: Path) -> None:
    path = store(tmp_path).save(1, parts(1))
    assert len({file.stat().st_mode for file in path.iterdir()}) == 1


def test_the_manifest_tells_versions_and_device(tmp_path: Path) -> None:
    path = CheckpointStore(tmp_path, 1).save(1, parts(1))  # asks Paddle
    found = store(tmp_path).environment(path)
    assert found["device"] == "cpu"
    assert found["threads"] == 1
    assert {"paddlepaddle version", "paddle_stable version", "world_size", "python"} <= set(found)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16"])
@pytest.mark.parametrize("part", ["model", "optimizer"])
@pytest.mark.parametrize("columns", [5, 5000], ids=["small", "large"])
def test_a_non_finite_number_is_never_written(
    tmp_path: Path, poison: float, dtype: str, part: str, columns: int
) -> None:
    kept = store(tmp_path, keep_last=1).save(1, parts(1))
    array = np.zeros((3, columns), dtype)
    array[2, 4] = poison
    good = parts(2)
    bad = dataclasses.replace(good, **{part: {**getattr(good, part), "spoiled": array}})
    with pytest.raises(NonFiniteState) as caught:
        store(tmp_path, keep_last=1).save(2, bad)
    assert caught.value.names == (f"{part}: spoiled",)
    assert store(tmp_path).newest_valid() == (kept, [])
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("columns", [5, 5000], ids=["small", "large"])
def test_finite_numbers_whose_squares_overflow_are_written(tmp_path: Path, columns: int) -> None:
    good = parts(1)
    huge = np.full((3, columns), np.finfo(np.float32).max)
    path = store(tmp_path).save(1, dataclasses.replace(good, model={**good.model, "huge": huge, "low": -huge}))
    assert np.array_equal(store(tmp_path).load(path).model["huge"], huge)


def test_a_non_finite_number_in_a_file_with_a_right_digest_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "non_finite_names", lambda arrays: [])
    path = store(tmp_path).save(1, dataclasses.replace(parts(1), model={"w": np.array([1.0, math.nan])}))
    assert store(tmp_path).verify(path) == ["model.safetensors holds NaN or inf in w"]
    assert store(tmp_path).newest_valid()[0] is None


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "0.9"])
def test_a_value_that_is_not_finite_is_never_best(tmp_path: Path, value: Any) -> None:
    first = store(tmp_path).save(1, parts(1), best=True)
    bad = dataclasses.replace(parts(2), state={"best": {"metric": "accuracy", "value": value}})
    with pytest.raises(CheckpointError, match="cannot be the best"):
        store(tmp_path).save(2, bad, best=True)
    assert store(tmp_path).best() == first
    assert names(tmp_path) == ["step-000001"]


@pytest.mark.parametrize("file", ALL_FILES)
def test_one_flipped_bit_is_noticed_wherever_it_is(tmp_path: Path, file: str) -> None:
    path = store(tmp_path).save(1, parts(1)) / file
    original = path.read_bytes()
    rng = random.Random(file)
    # every byte of the manifest and of the headers, where a change could mean something else and still be well-formed
    first = len(original) if file == "manifest.json" else 120
    offsets = {*range(min(first, len(original))), *rng.sample(range(len(original)), min(60, len(original)))}
    for offset in sorted(offsets):
        flip(path, offset, bit=rng.randrange(8))
        problems = store(tmp_path).verify(path.parent)
        assert len(problems) == 1, offset
        assert file in problems[0], offset
        path.write_bytes(original)
    assert store(tmp_path).verify(path.parent) == []
    flip(path, len(original) // 2)
    with pytest.raises(CheckpointError, match="changed"):
        store(tmp_path).load(path.parent)


@pytest.mark.parametrize("file", ALL_FILES)
@pytest.mark.parametrize("verify", [True, False])
def test_a_file_cut_short_or_grown_is_noticed_even_without_hashing(tmp_path: Path, file: str, verify: bool) -> None:
    path = store(tmp_path).save(1, parts(1)) / file
    original = path.read_bytes()
    for content in (b"", original[: len(original) // 2], original[:-1], original + b"\n", original + original):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=file):
            store(tmp_path).load(path.parent, verify=verify)


def swap_files(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "x")
    (folder / "optimizer.safetensors").rename(folder / "model.safetensors")
    (folder / "x").rename(folder / "optimizer.safetensors")


def replace_by_folder(folder: Path) -> None:
    (folder / "vocab.txt").unlink()
    (folder / "vocab.txt").mkdir()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda folder: (folder / "optimizer.safetensors").unlink(), "optimizer.safetensors is missing"),
        (lambda folder: (folder / "recipe.yaml").unlink(), "recipe.yaml is missing"),
        (lambda folder: (folder / "more.bin").touch(), "more.bin does not belong to the checkpoint"),
        (lambda folder: (folder / ".more").touch(), ".more does not belong to the checkpoint"),
        (replace_by_folder, "vocab.txt is not a file"),
        (swap_files, "model.safetensors has"),
        (lambda folder: (folder / "manifest.json").write_text("{}"), "does not have its own SHA-256"),
    ],
)
def test_missing_and_additional_files_are_noticed(
    tmp_path: Path, damage: Callable[[Path], object], expected: str
) -> None:
    path = store(tmp_path).save(1, parts(1))
    damage(path)
    for verify in (True, False):
        with pytest.raises(CheckpointError, match=expected):
            store(tmp_path).load(path, verify=verify)
    assert any(expected in problem for problem in store(tmp_path).verify(path))


def test_a_checkpoint_of_a_later_format_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr(checkpoint_folder, "FORMAT_VERSION", 2)
        path = store(tmp_path).save(1, parts(1))
    assert store(tmp_path).verify(path) == ["its format is version 2, and this program reads version 1"]


def test_what_is_not_a_checkpoint_is_not_read(tmp_path: Path) -> None:
    assert store(tmp_path / "nothing").newest_valid() == (None, [])
    assert store(tmp_path / "nothing").best() is None
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(CheckpointError, match=r"manifest\.json is missing"):
        store(tmp_path).load(tmp_path / "step-000001")
    for name in (".writing-step-000009-host-1", "step-9", "step-000009.old", "other"):
        (tmp_path / name).mkdir()
    assert store(tmp_path).newest_valid() == (None, [])


def test_the_documentation_shows_how_another_program_reads_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "checkpoints.md").read_text(encoding="utf8")
    program = tmp_path / "read.py"
    program.write_text(page.partition("```python\n")[2].partition("```")[0], encoding="utf8")
    without_bfloat16 = {name: array for name, array in parts(1).model.items() if name != "half"}
    path = store(tmp_path).save(1, dataclasses.replace(parts(1), model=without_bfloat16))
    done = subprocess.run([sys.executable, program, path], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "head.weight float32 (40, 30)" in done.stdout.splitlines()
    flip(path / "vocab.txt", 0)
    done = subprocess.run([sys.executable, program, path], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert "AssertionError: vocab.txt" in done.stderr
