"""The folder of a run: never overwritten silently, never used by two runs at once."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from pathlib import Path
from typing import IO, final

from paddle_stable.errors import ExitCode, InputError

_FILES = ("metrics.jsonl", "run.log", "results.json", "exit.json", "quarantine.jsonl")
"""What a run writes beside its checkpoints and incidents."""


@final
class RunFolder:
    """`run.output_dir`, held by this process until `close`."""

    def __init__(self, path: Path) -> None:
        """Create and lock the folder.

        Raises:
            InputError: when it cannot be created or written, or another run holds it.
        """
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock: IO[str] = (path / "run.lock").open("a+", encoding="utf8")
        except OSError as error:
            raise InputError.single(str(path), f"run.output_dir cannot be written: {error.strerror}") from error
        blocked = [name for name in _FILES if (path / name).is_dir()]
        if blocked:
            self._lock.close()
            raise InputError.single(
                str(path), f"expected files and found folders: {', '.join(blocked)}. Move them away"
            )
        try:
            # A POSIX lock, because forked loader workers do not inherit it: an orphan must not hold the folder.
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise InputError.single(
                str(path), "another run is training into this folder; give this one its own: -o run.output_dir=…"
            ) from error

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / "checkpoints"

    def refuse_to_overwrite(self, *, resuming: bool) -> None:
        """Raise InputError when a fresh start would destroy something: checkpoints, or metrics nobody asked to resume.

        A run that was killed before its first checkpoint has metrics only: `--resume auto` starts it again.
        """
        has_checkpoints = any(self.checkpoints.glob("step-*"))
        if has_checkpoints or ((self.path / "metrics.jsonl").exists() and not resuming):
            raise InputError.single(
                str(self.path),
                "there is a run in this folder already. Go on with it: --resume auto; or start another one beside it: "
                f"-o run.output_dir={self.path}-2",
            )

    def forget_last_end(self) -> None:
        """Remove `exit.json` of the run before: until this one ends, there is nothing to say."""
        (self.path / "exit.json").unlink(missing_ok=True)

    def close(self) -> None:
        """Let another process have the folder."""
        self._lock.close()


def write_exit(folder: Path, code: ExitCode, reason: str, *, step: int, retry: bool = False) -> None:
    """Write `exit.json`, which says how the run ended also where a launcher hides the exit code.

    The first process that has something to say is heard: what the others report is what its end did to them.

    Args:
        folder: the run folder.
        code: what the process leaves behind.
        reason: for people.
        step: the last one that was begun.
        retry: the recipe and the data are not at fault, so that the same command with `--resume auto` may well succeed.
    """
    record = {
        "code": int(code),
        "name": code.name.lower(),
        "reason": reason,
        "step": step,
        "retry": retry,
        "process": os.getpid(),
        "time": time.time(),
    }
    aside = folder / f".exit.json.{os.getpid()}"
    try:
        aside.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf8")
        with contextlib.suppress(FileExistsError):
            (folder / "exit.json").hardlink_to(aside)
    except OSError as error:
        print(f"{folder}/exit.json could not be written: {error}", file=sys.stderr, flush=True)
    finally:
        aside.unlink(missing_ok=True)
