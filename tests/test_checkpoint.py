"""A checkpoint appears whole or not at all, every changed bit is noticed, and no good one is ever lost.

Run as a program (`python tests/test_checkpoint.py MODE FOLDER`) this file is the process that is killed, or one of
several that save at once; it needs no Paddle, so it starts quickly.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import itertools
import json
import logging
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from paddle_stable import checkpoint, checkpoint_folder
from paddle_stable.checkpoint import CheckpointError, CheckpointParts, CheckpointStore, NonFiniteState

ENVIRONMENT = {"device": "cpu", "threads": 1, "world_size": 1}
ALL_FILES = ["model.safetensors", "optimizer.safetensors", "state.json", "vocab.txt", "manifest.json"]


def parts(seed: int, *, value: float | None = None, size: int = 30) -> CheckpointParts:
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((40, size)).astype(np.float32)
    return CheckpointParts(
        model={
            "head.weight": weights,
            "norm._mean": np.zeros(0, np.float32),
            "positions": np.array(seed, np.int64),
            "half": weights[:3].astype(ml_dtypes.bfloat16),
            "flags": np.array([True, False]),
        },
        optimizer={"head.weight/moment1": weights * 2, "head.weight/beta1_pow": np.array([0.9], np.float32)},
        state={
            "progress": {"step": seed, "rates": [0.1, 1e-300, -0.0, 2**70], "last": None, "done": False},
            "best": {"metric": "accuracy", "value": seed / 100 if value is None else value, "step": seed},
        },
        assets={"vocab.txt": "[PAD]\r\n好\n\n", "recipe.yaml": f"run: {{seed: {seed}}}\n"},
    )


def store(folder: Path, keep_last: int = 2) -> CheckpointStore:
    return CheckpointStore(folder, keep_last, environment=ENVIRONMENT)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(".") and path.name != ".lock")


def flip(path: Path, offset: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << bit
    path.write_bytes(content)


def same(left: CheckpointParts, right: CheckpointParts) -> bool:
    def exact(arrays: Any) -> dict[str, Any]:
        return {name: (a.dtype, a.shape, a.tobytes()) for name, a in arrays.items()}

    return (exact(left.model), exact(left.optimizer), json.dumps(left.state, sort_keys=True), dict(left.assets)) == (
        exact(right.model),
        exact(right.optimizer),
        json.dumps(right.state, sort_keys=True),
        dict(right.assets),
    )


# ---------------------------------------------------------------- what is saved comes back


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


# ---------------------------------------------------------------- poison never gets in


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16"])
@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_a_non_finite_number_is_never_written(tmp_path: Path, poison: float, dtype: str, part: str) -> None:
    kept = store(tmp_path, keep_last=1).save(1, parts(1))
    array = np.zeros((3, 5), dtype)
    array[2, 4] = poison
    good = parts(2)
    bad = dataclasses.replace(good, **{part: {**getattr(good, part), "spoiled": array}})
    with pytest.raises(NonFiniteState) as caught:
        store(tmp_path, keep_last=1).save(2, bad)
    assert caught.value.names == (f"{part}: spoiled",)
    assert store(tmp_path).newest_valid() == (kept, [])
    assert hidden(tmp_path) == []


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


# ---------------------------------------------------------------- every changed bit is noticed


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


# ---------------------------------------------------------------- which ones are kept


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    saving = store(tmp_path, keep_last=2)
    for step in range(1, 7):
        saving.save(step, parts(step), best=step == 2)
    assert names(tmp_path) == ["step-000002", "step-000005", "step-000006"]
    assert saving.best() == tmp_path / "step-000002"
    assert json.loads((tmp_path / "best.json").read_text()) == {"step": 2, "metric": "accuracy", "value": 0.02}
    for step in range(7, 9):
        saving.save(step, parts(step), best=step == 7)
    assert names(tmp_path) == ["step-000007", "step-000008"]


def test_when_the_newest_is_damaged_the_one_before_still_has_its_best(tmp_path: Path) -> None:
    saving = store(tmp_path, keep_last=2)
    for step in range(1, 6):
        saving.save(step, parts(step), best=step in (1, 5))
    assert names(tmp_path) == ["step-000001", "step-000004", "step-000005"]
    flip(tmp_path / "step-000005" / "model.safetensors", 300)
    path, passed_over = store(tmp_path).newest_valid()
    assert path == tmp_path / "step-000004"
    assert passed_over == [
        "step-000005 was passed over: model.safetensors has been changed: its SHA-256 is not the manifest's."
    ]
    assert store(tmp_path).set_aside_newer(4)[0].name.startswith("abandoned-step-000005-")
    assert store(tmp_path).best() == tmp_path / "step-000001"


@pytest.mark.parametrize("damage", ["cut short", "without manifest", "empty"])
def test_a_damaged_checkpoint_never_pushes_out_a_good_one(tmp_path: Path, damage: str) -> None:
    saving = store(tmp_path, keep_last=2)
    saving.save(1, parts(1))
    for step in (2, 3, 4):
        path = saving.save(step, parts(step))
        match damage:
            case "cut short":
                os.truncate(path / "model.safetensors", 100)
            case "without manifest":
                (path / "manifest.json").unlink()
            case "empty":
                shutil.rmtree(path)
                path.mkdir()
    assert saving.newest_valid()[0] == tmp_path / "step-000001"
    assert len(saving.newest_valid()[1]) == 3
    saving.save(5, parts(5))
    assert "step-000001" in names(tmp_path)
    saving.save(6, parts(6))
    assert names(tmp_path) == ["step-000005", "step-000006"]


def test_with_one_kept_the_last_good_one_outlives_a_new_one_that_turns_out_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = store(tmp_path, keep_last=1)
    saving.save(1, parts(1))
    with monkeypatch.context() as broken_disk:
        rename = Path.rename

        def lose_the_end(self: Path, target: Path) -> Path:
            if self.name.startswith(".writing-step"):
                os.truncate(self / "model.safetensors", 64)
            return rename(self, target)

        broken_disk.setattr(Path, "rename", lose_the_end)
        saving.save(2, parts(2))
    assert saving.newest_valid()[0] == tmp_path / "step-000001"


def test_a_run_that_went_back_is_not_mixed_up_with_the_future_it_left(tmp_path: Path) -> None:
    saving = store(tmp_path, keep_last=3)
    for step in (100, 200, 300):
        saving.save(step, parts(step), best=step == 300)
    # resumed from 200 on purpose: 250 is now the newest, whatever the other branch had
    path = saving.save(250, parts(250))
    assert saving.newest_valid() == (path, [])
    assert [name.rpartition("-")[0] for name in names(tmp_path)] == ["abandoned-step-000300", "step", "step", "step"]
    assert saving.set_aside_newer(250) == []


def test_a_best_checkpoint_that_vanished_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saving = store(tmp_path)
    shutil.rmtree(saving.save(1, parts(1), best=True))
    saving.save(2, parts(2))
    with caplog.at_level(logging.WARNING):
        assert saving.best() is None
    assert "step 1, accuracy 0.01) is no longer there" in caplog.text
    assert saving.save(3, parts(3), best=True) == saving.best()


@pytest.mark.parametrize("content", ["", "{", '{"step": 1, "metric": "accuracy", "value": NaN}', "[]", None])
def test_the_best_is_known_without_its_file(tmp_path: Path, content: str | None) -> None:
    saving = store(tmp_path)
    saving.save(1, parts(1), best=True)
    file = tmp_path / "best.json"
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    assert saving.best() == tmp_path / "step-000001"
    saving.save(2, parts(2))
    assert json.loads(file.read_text())["step"] == 1


def test_nothing_is_kept_of_less_than_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        CheckpointStore(tmp_path, 0)


# ---------------------------------------------------------------- the same step again


def test_saving_the_same_again_changes_nothing(tmp_path: Path) -> None:
    path = store(tmp_path).save(1, parts(1))
    before = {file.name: file.stat().st_ino for file in path.iterdir()}
    assert store(tmp_path).save(1, parts(1)) == path
    assert {file.name: file.stat().st_ino for file in path.iterdir()} == before
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("damaged", [False, True])
def test_saving_another_state_of_a_step_replaces_it(tmp_path: Path, damaged: bool) -> None:
    path = store(tmp_path).save(1, parts(1))
    if damaged:
        flip(path / "model.safetensors", 200)
    new = parts(1) if damaged else parts(2)
    assert store(tmp_path).save(1, new) == path
    assert same(store(tmp_path).load(path), new)
    assert names(tmp_path) == ["step-000001"]
    assert hidden(tmp_path) == []


def test_the_same_state_can_become_the_best_later(tmp_path: Path) -> None:
    path = store(tmp_path).save(1, parts(1))
    assert store(tmp_path).best() is None
    assert store(tmp_path).save(1, parts(1), best=True) == path == store(tmp_path).best()


def test_while_it_is_replaced_one_of_the_two_is_always_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saving = store(tmp_path, keep_last=1)
    saving.save(1, parts(1))
    seen = []
    rename = Path.rename

    def look_around(self: Path, target: Path) -> Path:
        moved = rename(self, target)
        whole = [path for path in sorted(tmp_path.glob("*step-*")) if not saving.verify(path)]
        seen.append([path.name for path in whole if not path.name.startswith(".")])
        return moved

    monkeypatch.setattr(Path, "rename", look_around)
    saving.save(1, parts(2))
    assert seen == [["replacement-step-000001", "step-000001"], ["replacement-step-000001"], ["step-000001"]]


# ---------------------------------------------------------------- errors while writing


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if (
        os.geteuid()
        or not shutil.which("mount")
        or subprocess.run(command, check=False, capture_output=True).returncode
    ):
        pytest.skip("a small file system can only be mounted by root in a container that may mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_what_was_there_and_no_rest(tiny_disk: Path) -> None:
    saving = store(tiny_disk, keep_last=1)
    first = saving.save(1, parts(1), best=True)
    with pytest.raises(CheckpointError, match=r"step 2 could not be saved.*No space left.*disk full"):
        saving.save(2, parts(2, size=2000), best=True)
    assert saving.newest_valid() == (first, [])
    assert saving.best() == first
    assert hidden(tiny_disk) == []
    assert same(saving.load(saving.save(3, parts(3))), parts(3))


def test_a_read_only_folder_is_read_but_not_written(tiny_disk: Path) -> None:
    saving = store(tiny_disk)
    first = saving.save(1, parts(1), best=True)
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    with pytest.raises(CheckpointError, match=r"could not be saved.*Read-only"):
        saving.save(2, parts(2))
    assert saving.newest_valid() == (first, [])
    assert saving.best() == first
    assert same(saving.load(first), parts(1))


def test_a_file_in_place_of_the_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").touch()
    with pytest.raises(CheckpointError, match="could not be saved"):
        store(tmp_path / "checkpoints").save(1, parts(1))
    with pytest.raises(CheckpointError, match="cannot be read: Not a directory"):
        store(tmp_path / "checkpoints").newest_valid()


def test_the_leftovers_of_a_process_are_removed_only_when_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file system has locks, holding the lock is the proof; without them, the process number is asked."""
    me = checkpoint._this_process()
    host = me.rpartition("-")[0]
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    alive = f".writing-step-000001-{host}-{os.getppid()}"
    foreign = f".writing-step-000001-elsewhere-{gone.pid}"
    ours = [f".writing-step-000001-{host}-{gone.pid}", f".writing-step-000001-{me}", ".removing-step-000001-x-1-2"]
    for name in (alive, foreign, *ours):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").touch()

    def no_locks(file: Any, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as network_disk:
        network_disk.setattr(fcntl, "lockf", no_locks)
        store(tmp_path).save(1, parts(1))
    assert hidden(tmp_path) == sorted([alive, foreign])
    store(tmp_path).save(2, parts(2))
    assert hidden(tmp_path) == []


def test_waiting_for_another_process_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def held(file: Any, how: int) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(fcntl, "lockf", held)
    monkeypatch.setattr(checkpoint, "_LOCK_SECONDS", 0.0)
    with pytest.raises(CheckpointError, match="Two runs cannot share a folder"):
        store(tmp_path).save(1, parts(1))


# ---------------------------------------------------------------- killed and failing at any moment


def run_self(*arguments: str) -> str:
    command = [sys.executable, __file__, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of saves that were interrupted at every operation, one report a scene."""
    report: dict[str, Any] = json.loads(run_self("interrupt", str(tmp_path_factory.mktemp("interrupted"))))
    return report


@pytest.mark.parametrize("scene", ["kill first", "kill next", "kill again", "fail next"])
def test_a_save_that_is_interrupted_at_any_system_call_loses_nothing(interrupted: dict[str, Any], scene: str) -> None:
    report = interrupted[scene]
    assert report["moments"] > 25
    assert report["problems"] == []
    # it was seen to end both before and after the new checkpoint got its name
    assert report["outcomes"] == (["new", "none"] if scene == "kill first" else ["new", "old"])


def test_kills_at_random_moments_always_leave_a_valid_newest(tmp_path: Path) -> None:
    seen = set()
    rng = random.Random(0)
    for _ in range(4):
        victim = subprocess.Popen(
            [sys.executable, __file__, "save-on", str(tmp_path)],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )  # fmt: skip
        with victim:
            assert victim.stdout is not None
            for _ in range(rng.randrange(2, 6)):
                victim.stdout.readline()
            time.sleep(rng.random() * 0.03)
            victim.kill()
        path, passed_over = store(tmp_path).newest_valid()
        assert path is not None
        assert passed_over == []
        best = store(tmp_path).best()
        assert best is not None
        assert store(tmp_path).verify(best) == []
        seen.add(path.name)
    assert len(seen) == 4
    store(tmp_path).save(10**6, parts(1))
    assert hidden(tmp_path) == []


def test_two_processes_that_save_into_one_folder_do_not_spoil_it(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    processes = [
        subprocess.Popen([sys.executable, __file__, "save-some", seed, str(tmp_path)], env=environment)
        for seed in ("1", "2")
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    assert store(tmp_path).newest_valid() == (tmp_path / "step-000012", [])
    assert all(store(tmp_path).verify(tmp_path / name) == [] for name in names(tmp_path))
    assert hidden(tmp_path) == []


class Interruption:
    """Kills this process, or lets one operation fail, just before its n-th one on the file system."""

    def __init__(self, what: str, at: int) -> None:
        self.what, self.at, self.count = what, at, 0
        fsync = os.fsync

        def watched_fsync(descriptor: int) -> None:
            self("os.fsync", (descriptor,))
            fsync(descriptor)

        os.fsync = watched_fsync
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes or event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.fsync"):
            self.count += 1
            if self.count == self.at:
                if self.what == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError(errno.ENOSPC, "No space left on device")


def interrupted_save(folder: Path, what: str, at: int, step: int) -> bool:
    """Save in a child process that is interrupted; whether it came to its end without meeting the interruption."""
    child = os.fork()
    if child == 0:
        interruption = Interruption(what, at)
        try:
            store(folder).save(step, parts(50), best=True)
        except CheckpointError:
            os._exit(1)
        os._exit(0 if interruption.count < at else 1)
    return os.waitpid(child, 0)[1] == 0


def problems_after(folder: Path, old: int | None, step: int, where: str, outcomes: set[str]) -> list[str]:
    """What is wrong with a folder in which a save of `step` was interrupted, now and after the next save."""
    path, passed_over = store(folder).newest_valid()
    problems = [f"{where}: {line}" for line in passed_over]
    if path is None:
        outcomes.add("none")
        if old is not None:
            return [*problems, f"{where}: nothing is left"]
    else:
        content = store(folder).load(path)
        is_new = same(content, parts(50))
        outcomes.add("new" if is_new else "old")
        if not is_new and (old is None or not same(content, parts(old))):
            problems.append(f"{where}: {path.name} is neither the old nor the new one")
        best = store(folder).best()
        if best is None or store(folder).verify(best):
            problems.append(f"{where}: the best checkpoint is {best}")
    store(folder).save(step + 1, parts(51))
    if hidden(folder):
        problems.append(f"{where}: {hidden(folder)} are left behind")
    if f"step-{step + 1:06d}" not in names(folder):
        problems.append(f"{where}: the next save failed")
    return problems


def interrupt_everywhere(what: str, scene: str, folder: Path) -> dict[str, Any]:
    base = folder / f"{what}-{scene}"
    old = None if scene == "first" else 3
    step = 3 if scene == "again" else 4
    base.mkdir()
    if old:
        for number in range(1, old + 1):
            store(base).save(number, parts(number), best=number == 2)
    problems: list[str] = []
    outcomes: set[str] = set()
    for at in itertools.count(1):
        work = folder / "work"
        shutil.copytree(base, work)
        finished = interrupted_save(work, what, at, step)
        problems += problems_after(work, old, step, f"{scene}, {what} at operation {at}", outcomes)
        shutil.rmtree(work)
        if finished:
            return {"moments": at, "problems": problems, "outcomes": sorted(outcomes)}
    raise AssertionError("a save without an end")


def main(mode: str, *arguments: str) -> None:
    folder = Path(arguments[-1])
    match mode:
        case "interrupt":
            scenes = (("kill", "first"), ("kill", "next"), ("kill", "again"), ("fail", "next"))
            print(json.dumps({f"{what} {scene}": interrupt_everywhere(what, scene, folder) for what, scene in scenes}))
        case "save-on":
            newest = store(folder).newest_valid()[0]
            for step in itertools.count(int(newest.name[-6:]) + 1 if newest else 1):
                store(folder).save(step, parts(step, size=3000), best=step % 3 == 1)
                print(step, flush=True)
        case "save-some":
            for step in range(1, 13):
                store(folder).save(step, parts(100 * int(arguments[0]) + step), best=step % 5 == 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
