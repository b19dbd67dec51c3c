"""Training waits for a copy of its state only, and a save that fails in the background is never lost."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddle_stable import checkpoint
from paddle_stable.background_saving import BackgroundSaving
from paddle_stable.checkpoint import CheckpointError, NonFiniteState
from paddle_stable.writers import NoRecord
from tests.checkpoint_sample import hidden, names, parts, same, store


class Disk:
    """Writes when it is told to, or fails."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.asked = threading.Event()
        self.failure: Exception | None = None
        self._write = checkpoint.write_folder

    def write(self, *arguments: Any, **named: Any) -> None:
        self.asked.set()
        assert self.ready.wait(30)
        if self.failure is not None:
            raise self.failure
        self._write(*arguments, **named)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """A disk that does nothing until `ready` is set."""
    slow = Disk()
    monkeypatch.setattr(checkpoint, "write_folder", slow.write)
    yield slow
    slow.ready.set()


def test_a_save_goes_on_in_the_background_and_says_once_that_it_is_done(tmp_path: Path, disk: Disk) -> None:
    saving = BackgroundSaving(store(tmp_path))
    saving.begin(1, parts(1), best=True, records=NoRecord())
    assert disk.asked.wait(30)
    assert (saving.has_saved, saving.has_failed, names(tmp_path)) == (False, False, [])
    disk.ready.set()
    saving.wait()
    assert (saving.has_saved, saving.has_failed, names(tmp_path)) == (True, False, ["step-000001"])
    assert saving.finish() == "step 1: checkpoint saved (best)"
    assert saving.finish() is None
    assert same(store(tmp_path).load(tmp_path / "step-000001"), parts(1))


def test_one_save_is_in_flight_and_the_next_waits_for_it(tmp_path: Path, disk: Disk) -> None:
    saving = BackgroundSaving(store(tmp_path))
    saving.begin(1, parts(1), best=False, records=NoRecord())
    second = threading.Thread(target=lambda: saving.begin(2, parts(2), best=False, records=NoRecord()))
    second.start()
    second.join(0.1)
    assert second.is_alive()
    disk.ready.set()
    second.join(30)
    assert saving.finish() == "step 2: checkpoint saved"
    assert names(tmp_path) == ["step-000001", "step-000002"]
    assert hidden(tmp_path) == []


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, "No space left on device"), ValueError("a bug"), MemoryError()], ids=repr
)
def test_whatever_fails_in_the_background_is_raised_once_and_costs_nothing(
    tmp_path: Path, disk: Disk, failure: Exception
) -> None:
    saving = BackgroundSaving(store(tmp_path))
    disk.ready.set()
    saving.begin(1, parts(1), best=True, records=NoRecord())
    saving.finish()
    disk.failure = failure
    saving.begin(2, parts(2), best=True, records=NoRecord())
    saving.wait()
    assert (saving.has_saved, saving.has_failed) == (False, True)
    with pytest.raises(CheckpointError, match="step 2 could not be saved"):
        saving.finish()
    assert not saving.has_failed
    disk.failure = None
    saving.begin(3, parts(3), best=False, records=NoRecord())
    saving.finish()
    assert store(tmp_path).best() == tmp_path / "step-000001"
    assert names(tmp_path) == ["step-000001", "step-000003"]


def test_the_next_save_raises_what_the_one_before_has_met(tmp_path: Path, disk: Disk) -> None:
    saving = BackgroundSaving(store(tmp_path))
    disk.failure = OSError(errno.ENOSPC, "No space left on device")
    disk.ready.set()
    saving.begin(1, parts(1), best=False, records=NoRecord())
    with pytest.raises(CheckpointError, match="step 1 could not be saved"):
        saving.begin(2, parts(2), best=False, records=NoRecord())
    assert saving.finish() is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_a_state_that_is_not_finite_is_refused_before_training_goes_on(tmp_path: Path, value: float, part: str) -> None:
    saving = BackgroundSaving(store(tmp_path))
    good = parts(1)
    bad = replace(good, **{part: {**getattr(good, part), "x": np.array([1.0, value, -value], np.float32)}})
    with pytest.raises(NonFiniteState, match=f"{part}: x"):
        saving.begin(1, bad, best=False, records=NoRecord())
    assert saving.finish() is None
    assert not tmp_path.exists() or names(tmp_path) == []
