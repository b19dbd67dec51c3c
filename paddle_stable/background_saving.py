"""Checkpoints that are written while training goes on.

Training waits until its state has been copied to host memory and looked over for NaN; writing, hashing, flushing and
renaming happen in a thread. One save is in flight at a time, and its copy is made where the last one was: a run takes
the memory of one more state, from its first save to its end.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import final

from paddle_stable.checkpoint import CheckpointError, CheckpointParts, CheckpointStore, refuse_non_finite
from paddle_stable.training_state import HostMemory


@final
@dataclass(slots=True)
class _Save:
    """A save in flight; the thread that writes sets `failure`, and whoever has joined it reads it."""

    step: int
    best: bool
    failure: Exception | None = None


@final
class BackgroundSaving:
    """Writes the checkpoints of a run in the background. Its methods are for the thread that trains."""

    def __init__(self, store: CheckpointStore) -> None:
        """Nothing is in flight."""
        self._store = store
        self._thread: threading.Thread | None = None
        self._save: _Save | None = None
        self._memory = HostMemory()

    @property
    def has_failed(self) -> bool:
        """Whether a checkpoint could not be written and `finish` has not said so yet. Does not wait."""
        return self._save is not None and not self._is_writing() and self._save.failure is not None

    @property
    def has_saved(self) -> bool:
        """Whether a checkpoint has been written and `finish` has not said so yet. Does not wait."""
        return self._save is not None and not self._is_writing() and self._save.failure is None

    def memory(self) -> HostMemory:
        """Where to put the copies for the next save. Waits for the save in flight, whose copies are there."""
        self.wait()
        self._memory.rewind()
        return self._memory

    def begin(self, step: int, parts: CheckpointParts, *, best: bool) -> None:
        """Look the state over and hand it to a thread that writes it. Waits for the save before, if there is one.

        Args:
            step: attempted steps so far.
            parts: copies: nothing may change them any more.
            best: it is the best so far.

        Raises:
            NonFiniteState: when an array holds NaN or inf. Nothing is written.
            CheckpointError: when the save before has failed and `finish` has not said so yet.
        """
        self.finish()
        refuse_non_finite(parts)
        self._save = _Save(step, best)
        # Not a daemon: a process that comes to an end of its own waits for it.
        self._thread = threading.Thread(target=self._write, args=(self._save, parts), name=f"saving step {step}")
        self._thread.start()

    def finish(self) -> str | None:
        """Wait for the save in flight.

        Returns:
            What was saved, in words, once; None when nothing was in flight.

        Raises:
            CheckpointError: when it could not be written, once. All earlier checkpoints are as they were.
        """
        self.wait()
        save, self._save = self._save, None
        if save is None:
            return None
        if isinstance(save.failure, CheckpointError):
            raise save.failure
        if save.failure is not None:
            name = type(save.failure).__name__
            raise CheckpointError(
                f"the checkpoint of step {save.step} could not be saved: {name}: {save.failure}"
            ) from save.failure
        return f"step {save.step}: checkpoint saved{' (best)' if save.best else ''}"

    def wait(self) -> None:
        """Wait for the save in flight, and leave it to `finish` to say how it went."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _write(self, save: _Save, parts: CheckpointParts) -> None:
        # Whoever starts a thread waits until it lets go of the interpreter, which it would keep for five milliseconds.
        time.sleep(0.001)
        try:
            self._store.save(save.step, parts, best=save.best)
        except Exception as error:  # noqa: BLE001 - whatever it is, `finish` raises it where it is heard
            save.failure = error
