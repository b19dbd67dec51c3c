"""The newest and the best checkpoints are kept, and neither damage, replacement nor a full disk costs a good one."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paddle_stable import checkpoint
from paddle_stable.checkpoint import CheckpointError, CheckpointStore
from paddle_stable.process_name import this_process
from tests.checkpoint_sample import flip, hidden, names, parts, same, store


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


@pytest.mark.parametrize("state_of_the_new", ["whole", "damaged"])
@pytest.mark.parametrize("old_is_there", [True, False])
def test_a_replacement_that_was_interrupted_is_finished_by_the_next_reader(
    tmp_path: Path, state_of_the_new: str, old_is_there: bool
) -> None:
    old, replacement = tmp_path / "step-000001", tmp_path / "replacement-step-000001"
    store(tmp_path).save(1, parts(2)).rename(replacement)
    if old_is_there:
        store(tmp_path / "other").save(1, parts(1)).rename(old)
    if state_of_the_new == "damaged":
        os.truncate(replacement / "model.safetensors", 50)
    path, passed_over = store(tmp_path).newest_valid()
    assert names(tmp_path) == [*(["other"] if old_is_there else []), "step-000001"]
    if state_of_the_new == "whole":
        assert path == old
        assert same(store(tmp_path).load(old), parts(2))
    elif old_is_there:
        assert path == old
        assert same(store(tmp_path).load(old), parts(1))
    else:
        assert path is None
        assert len(passed_over) == 1


def test_threads_may_share_a_store(tmp_path: Path) -> None:
    saving = store(tmp_path)
    saving.save(1, parts(1), best=True)
    threads = [threading.Thread(target=saving.save, args=(2, parts(seed))) for seed in (2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert saving.newest_valid() == (tmp_path / "step-000002", [])
    assert saving.best() == tmp_path / "step-000001"
    assert names(tmp_path) == ["step-000001", "step-000002"]
    assert hidden(tmp_path) == []


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
    me = this_process()
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


def test_a_run_that_goes_on_renews_what_a_killed_one_has_not_written_of_the_best(tmp_path: Path) -> None:
    """Killed between the name of the last checkpoint and best.json, a run is at its end: it will save no more."""
    saving = store(tmp_path)
    saving.save(100, parts(1), best=True)
    before = (tmp_path / "best.json").read_bytes()
    saving.save(200, parts(2), best=True)
    after = (tmp_path / "best.json").read_bytes()
    assert before != after
    for stale in (before, b""):
        (tmp_path / "best.json").write_bytes(stale)
        assert saving.set_aside_newer(200) == []
        assert (tmp_path / "best.json").read_bytes() == after
