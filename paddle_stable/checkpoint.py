"""The checkpoints of a run: saved whole or not at all, the newest and the best kept, nothing good ever lost.

A checkpoint is written into a hidden folder and gets its name by one rename when everything is on the disk. What has
a name is therefore complete, and what a killed process leaves behind is hidden and swept away by the next save.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import math
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

from pydantic import ValidationError
from safetensors import SafetensorError

from paddle_stable.checkpoint_folder import (
    BestRecord,
    CheckpointError,
    CheckpointParts,
    NonFiniteState,
    flush_folder,
    non_finite_names,
    read_folder,
    read_manifest,
    size_problems,
    write_durably,
    write_folder,
)
from paddle_stable.process_name import has_ended, this_process

__all__ = ["CheckpointError", "CheckpointParts", "CheckpointStore", "NonFiniteState", "refuse_non_finite"]

_log = logging.getLogger(__name__)

_NAME = re.compile(r"(replacement-)?step-(\d{6,})")
_BEST = "best.json"
_WRITING = ".writing-"
_REMOVING = ".removing-"
_LOCK_SECONDS = 120.0


class _Entry(NamedTuple):
    """A visible checkpoint folder; they sort by age, a replacement behind what it replaces."""

    step: int
    is_replacement: bool
    path: Path


@final
class CheckpointStore:
    """The folder `checkpoints/` of one run. Threads may share a store; another process may read, and even save."""

    def __init__(self, folder: Path, keep_last: int, environment: Mapping[str, Any] | None = None) -> None:
        """Nothing is created or read yet.

        Args:
            folder: where the step folders are.
            keep_last: newest checkpoints that are kept, at least 1; the best one is kept besides.
            environment: what the manifest says about versions and device; None: what this process finds.
        """
        if keep_last < 1:
            raise ValueError(f"keep_last: must be at least 1, got {keep_last}")
        self.folder = folder
        self._keep_last = keep_last
        self._environment = environment
        self._thread_lock = threading.Lock()

    def save(self, step: int, parts: CheckpointParts, best: bool = False) -> Path:
        """Write the checkpoint of a step; afterwards remove what is neither among the newest nor the best.

        A checkpoint of the same step is replaced, or left alone when it holds the same.

        Args:
            step: attempted steps so far.
            parts: copies; nothing may change them before this returns.
            best: it is the best so far; `parts.state["best"]` then holds its `metric` and finite `value`.

        Returns:
            The folder `step-000400`, complete and on the disk.

        Raises:
            NonFiniteState: when an array holds NaN or inf. Nothing is written.
            CheckpointError: when writing fails (full disk, no permission) or `parts` has no safe form in a file.
                All older checkpoints are as they were.
        """
        refuse_non_finite(parts)
        record = _best_record(step, parts.state) if best else None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._alone() as certain:
                self._sweep(certain=certain)
                self._set_aside(step)
                record = record or self._best()
                path = self._write(step, parts, record)
                if record is not None:
                    self._write_best(record)
                self._rotate(path)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"The checkpoint of step {step} could not be saved in {self.folder}: {error}. All earlier checkpoints "
                "are as they were. Is the disk full, or the folder read-only?"
            ) from error
        return path

    def set_aside_newer(self, step: int) -> list[Path]:
        """Rename checkpoints of later steps to `abandoned-…`, for a run that goes on from `step` and will pass them.

        They are not removed, but not taken for this run's any more. Every save does the same. `best.json` is renewed
        where it is not what the newest checkpoint says: a run killed right before may be at its end, and save no more.

        Raises:
            CheckpointError: when the folder cannot be written.
        """
        if all(entry.step <= step for entry in self._entries()) and self._has_current_best():
            return []
        try:
            with self._alone():
                renamed = self._set_aside(step)
                record = self._best()
                if record is not None:
                    self._write_best(record)
                return renamed
        except OSError as error:
            raise CheckpointError(f"{self.folder}: newer checkpoints could not be set aside: {error}") from error

    def newest_valid(self) -> tuple[Path | None, list[str]]:
        """The newest checkpoint that verifies, and a sentence for each newer one that does not.

        It has been read in full; `load(path, verify=False)` may follow.
        """
        if any(entry.is_replacement for entry in self._entries()):
            with contextlib.suppress(OSError, CheckpointError), self._alone():  # a read-only folder is read as it is
                self._finish_replacements()
        passed_over: list[str] = []
        for entry in sorted(self._entries(), reverse=True):
            problems = self.verify(entry.path)
            if not problems:
                return entry.path, passed_over
            passed_over.append(f"{entry.path.name} was passed over: {'; '.join(problems)}.")
        return None, passed_over

    def best(self) -> Path | None:
        """The best checkpoint; None when there is none, and then the log says so if there should be one."""
        record = self._best()
        if record is None:
            return None
        for entry in sorted(self._entries(), reverse=True):
            if entry.step == record.step:
                return entry.path
        _log.warning(
            "%s: the best checkpoint (step %d, %s %g) is no longer there; this program never removes it.",
            self.folder, record.step, record.metric, record.value,
        )  # fmt: skip
        return None

    def load(self, path: Path, verify: bool = True) -> CheckpointParts:
        """Read a checkpoint; nothing in it is run.

        Args:
            path: its folder.
            verify: hash every file and look at every number; False is for one that has just been verified.

        Raises:
            CheckpointError: with everything that is wrong with it.
        """
        parts, problems = read_folder(path, verify=verify)
        if parts is None:
            raise CheckpointError(
                f"{path} is not a usable checkpoint: {'; '.join(problems)}. Use another one: --resume auto "
                "and --newest find it."
            )
        return parts

    def verify(self, path: Path) -> list[str]:
        """What is wrong with a checkpoint, one sentence each; empty when every byte is as it was written."""
        return read_folder(path, verify=True)[1]

    def environment(self, path: Path) -> dict[str, Any]:
        """The versions, device, threads and processes that a checkpoint was written with.

        Raises:
            CheckpointError: when its manifest cannot be used.
        """
        return read_manifest(path).environment

    def _entries(self) -> list[_Entry]:
        try:
            paths = list(self.folder.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be read: {error.strerror}") from error
        matches = ((_NAME.fullmatch(path.name), path) for path in paths)
        return [_Entry(int(match[2]), match[1] is not None, path) for match, path in matches if match]

    def _write(self, step: int, parts: CheckpointParts, best: BestRecord | None) -> Path:
        writing = self.folder / f"{_WRITING}step-{step:06d}-{this_process()}"
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir()
        try:
            environment = self._environment
            if environment is None:
                # Only here is Paddle needed: reading and checking checkpoints is not to wait for its import.
                from paddle_stable.training_state import current_environment

                environment = current_environment()
            write_folder(writing, step, parts, best=best, environment=environment)
            return self._give_name(writing, step)
        finally:
            shutil.rmtree(writing, ignore_errors=True)

    def _give_name(self, writing: Path, step: int) -> Path:
        """Make a finished folder the checkpoint of its step; at every moment there is one under a visible name."""
        path = self.folder / f"step-{step:06d}"
        if path.exists():
            if _same_content(writing, path):
                return path
            # A folder cannot be renamed over another: the new one stands beside the old one while that is removed.
            writing.rename(self.folder / f"replacement-{path.name}")
            flush_folder(self.folder)
            self._finish_replacements()
        else:
            writing.rename(path)
            flush_folder(self.folder)
        return path

    def _finish_replacements(self) -> None:
        """Give replacements the name of what they replace; also those whose process was killed before it did."""
        for entry in self._entries():
            if entry.is_replacement:
                old = self.folder / f"step-{entry.step:06d}"
                if old.exists():
                    self._remove(entry.path if _damage(entry.path) else old)
                if entry.path.exists():
                    entry.path.rename(old)
                flush_folder(self.folder)

    def _set_aside(self, step: int) -> list[Path]:
        """A run that is at `step` went back before later checkpoints were made: they are another run's future."""
        renamed = []
        for entry in self._entries():
            if entry.step > step:
                path = self.folder / f"abandoned-{entry.path.name}-{time.time_ns()}"
                entry.path.rename(path)
                renamed.append(path)
                _log.warning("%s is later than step %d, where the run goes on: now %s", entry.path, step, path.name)
        return renamed

    def _best(self) -> BestRecord | None:
        """The best checkpoint according to the newest one; `best.json`, a copy, is asked when none can say."""
        for entry in sorted(self._entries(), reverse=True):
            with contextlib.suppress(CheckpointError):
                return read_manifest(entry.path).best
        try:
            return BestRecord.model_validate_json((self.folder / _BEST).read_bytes(), strict=True)
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            _log.warning("%s cannot be used: %s", self.folder / _BEST, error)
            return None

    def _has_current_best(self) -> bool:
        record = self._best()
        try:
            return record is None or (self.folder / _BEST).read_bytes() == _best_bytes(record)
        except OSError:
            return False

    def _write_best(self, record: BestRecord) -> None:
        writing = self.folder / f"{_WRITING}best-{this_process()}"
        writing.unlink(missing_ok=True)
        write_durably(writing, _best_bytes(record))
        writing.replace(self.folder / _BEST)
        flush_folder(self.folder)

    def _rotate(self, saved: Path) -> None:
        """Remove what is older than the newest `keep_last` good checkpoints and is the best of none of them.

        A damaged checkpoint does not count, so it never pushes out a good one. Each kept one keeps its own best one:
        should the newest turn out damaged, the one before it still has all that it knew of.
        """
        good = [entry for entry in sorted(self._entries(), reverse=True) if not _damage(entry.path)]
        if len(good) < self._keep_last:
            return
        kept = good[: self._keep_last]
        best = {record.step for entry in kept if (record := read_manifest(entry.path).best) is not None}
        for entry in self._entries():
            if entry.step < kept[-1].step and entry.step not in best and entry.path != saved:
                try:
                    self._remove(entry.path)
                except OSError as error:
                    _log.warning("%s is no longer needed but cannot be removed: %s", entry.path, error)

    def _remove(self, path: Path) -> None:
        """Take the name away first, so that a half-removed folder is never taken for a damaged checkpoint."""
        hidden = self.folder / f"{_REMOVING}{path.name}-{this_process()}-{time.monotonic_ns()}"
        path.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)

    def _sweep(self, *, certain: bool) -> None:
        """Finish what killed processes have begun, and remove what they could not finish."""
        self._finish_replacements()
        for entry in self.folder.iterdir():
            unfinished = entry.name.startswith(_WRITING) and (certain or has_ended(entry.name))
            if unfinished or entry.name.startswith(_REMOVING):
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Wait until no other thread or process saves here; the kernel ends a killed process's turn.

        A POSIX lock, because forked loader workers do not inherit it. Yields False where the file system has no
        locks: then it is not certain that the processes of unfinished folders are gone.
        """
        with self._thread_lock, (self.folder / ".lock").open("a") as file:
            deadline = time.monotonic() + _LOCK_SECONDS
            certain = True
            while True:
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                        certain = False
                        break
                    if error.errno not in (errno.EACCES, errno.EAGAIN):
                        raise
                    if time.monotonic() > deadline:
                        raise CheckpointError(
                            f"{self.folder}: another process has been saving here for {_LOCK_SECONDS:.0f} seconds. "
                            "Two runs cannot share a folder: give one of them its own run.output_dir."
                        ) from error
                time.sleep(0.02)
            yield certain


def refuse_non_finite(parts: CheckpointParts) -> None:
    """Raise NonFiniteState when a parameter or a moment is NaN or infinite."""
    both = (("model", parts.model), ("optimizer", parts.optimizer))
    bad = [f"{part}: {name}" for part, arrays in both for name in non_finite_names(arrays)]
    if bad:
        raise NonFiniteState(bad)


def _best_bytes(record: BestRecord) -> bytes:
    return (record.model_dump_json(indent=1) + "\n").encode()


def _best_record(step: int, state: Mapping[str, Any]) -> BestRecord:
    best = state.get("best")
    if not isinstance(best, Mapping) or not isinstance(best.get("metric"), str):
        raise CheckpointError('a best checkpoint needs state["best"] with "metric" and "value"')
    value = best.get("value")
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise CheckpointError(f"step {step} cannot be the best: its {best['metric']} is {value}")
    return BestRecord(step=step, metric=best["metric"], value=value)


def _same_content(new: Path, old: Path) -> bool:
    """Whether an existing checkpoint holds just what the new one does; a damaged one does not."""
    try:
        ours, theirs = read_manifest(new), read_manifest(old)
    except CheckpointError:
        return False
    return (ours.files, ours.best) == (theirs.files, theirs.best) and not read_folder(old, verify=True)[1]


def _damage(path: Path) -> list[str]:
    """What can be seen to be wrong with a checkpoint without reading all of it."""
    try:
        return size_problems(path, read_manifest(path))
    except CheckpointError as error:
        return [str(error)]
