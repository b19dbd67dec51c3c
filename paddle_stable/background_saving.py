"""Checkpoints that are written while training goes on.

Training waits until its state has been copied to host memory and looked over for NaN; writing, hashing, flushing and
renaming happen in a thread. One save is in flight at a time, and its copy is made where the last one was: a run takes
the memory of one more state, from its first save to its end.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import final

from paddle_stable.checkpoint import CheckpointError, CheckpointParts, CheckpointStore, refuse_non_finite
from paddle_stable.training_state import HostMemory
from paddle_stable.writers import Writers


@final
@dataclass(frozen=True, slots=True)
class _Save:
    """A save in flight."""

    step: int
    best: bool
    written: Future[Path]


@final
class BackgroundSaving:
    """Writes the checkpoints of a run in the background. Its methods are for the thread that trains."""

    def __init__(self, store: CheckpointStore) -> None:
        """Nothing is in flight."""
        self._store = store
        # One thread for all saves: training would wait for the start of each.
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="saving")
        self._save: _Save | None = None
        self._memory = HostMemory()

    @property
    def has_failed(self) -> bool:
        """Whether a checkpoint could not be written and `finish` has not said so yet. Does not wait."""
        return self._save is not None and self._save.written.done() and self._save.written.exception() is not None

    @property
    def has_saved(self) -> bool:
        """Whether a checkpoint has been written and `finish` has not said so yet. Does not wait."""
        return self._save is not None and self._save.written.done() and self._save.written.exception() is None

    def memory(self) -> HostMemory:
        """Where to put the copies for the next save. Waits for the save in flight, whose copies are there."""
        self.wait()
        self._memory.rewind()
        return self._memory

    def begin(self, step: int, parts: CheckpointParts, *, best: bool, records: Writers) -> None:
        """Look the state over and hand it to the thread that writes. Waits for the save before, if there is one.

        Args:
            step: attempted steps so far.
            parts: copies: nothing may change them any more.
            best: it is the best so far.
            records: what has been recorded so far is on the disk before the checkpoint is.

        Raises:
            NonFiniteState: when an array holds NaN or inf. Nothing is written.
            CheckpointError: when the save before has failed and `finish` has not said so yet.
        """
        self.finish()
        refuse_non_finite(parts)
        self._save = _Save(step, best, self._writer.submit(self._write, step, parts, best, records))

    def finish(self) -> str | None:
        """Wait for the save in flight.

        Returns:
            What was saved, in words, once; None when nothing was in flight.

        Raises:
            CheckpointError: when it could not be written, once. All earlier checkpoints are as they were.
        """
        save, self._save = self._save, None
        if save is None:
            return None
        failure = save.written.exception()
        if isinstance(failure, CheckpointError):
            raise failure
        if failure is not None:
            name = type(failure).__name__
            raise CheckpointError(
                f"the checkpoint of step {save.step} could not be saved: {name}: {failure}"
            ) from failure
        return f"step {save.step}: checkpoint saved{' (best)' if save.best else ''}"

    def wait(self) -> None:
        """Wait for the save in flight, and leave it to `finish` to say how it went."""
        if self._save is not None:
            self._save.written.exception()

    def _write(self, step: int, parts: CheckpointParts, best: bool, records: Writers) -> Path:
        records.flush()
        return self._store.save(step, parts, best=best)
