"""The folder of a run: never overwritten silently, never used by two runs at once."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import time
from pathlib import Path
from typing import IO, final

from paddle_stable.checkpoint_folder import flush_folder
from paddle_stable.errors import ExitCode, InputError, Problem
from paddle_stable.process_name import this_process
from paddle_stable.terminal import complain

_FILES = ("metrics.jsonl", "vdlrecords.run.log", "run.log", "results.json", "exit.json", "quarantine.jsonl",
          "checkpoints/best.json")  # fmt: skip
"""What a run writes beside its checkpoints and incidents."""
_FOLDERS = ("checkpoints", "incidents")


def refuse_to_overwrite(folder: Path, *, resuming: bool) -> None:
    """Raise InputError when a fresh start would destroy something: checkpoints, or metrics nobody asked to resume.

    A run that was killed before its first checkpoint has metrics and an empty folder for checkpoints: `--resume auto`
    starts it again. One without that folder has lost its checkpoints, and its records are all that is left of it.
    """
    checkpoints, has_metrics = folder / "checkpoints", (folder / "metrics.jsonl").exists()
    has_checkpoints = any(checkpoints.glob("step-*"))
    if resuming and has_metrics and (not checkpoints.is_dir() or (checkpoints / "best.json").exists()):
        raise InputError.single(
            str(folder),
            "there are records of a run, but its checkpoints are gone from checkpoints/: there is nothing to go on "
            f"from. Put them back, or start afresh beside it: -o run.output_dir={folder}-2",
        )
    if has_checkpoints or (has_metrics and not resuming):
        raise InputError.single(
            str(folder),
            "there is a run in this folder already. Go on with it: --resume auto; or start another one beside it: "
            f"-o run.output_dir={folder}-2",
        )


def folder_remarks(folder: Path) -> list[str]:
    """What `--check` says of a run folder, without making or holding it.

    Raises:
        InputError: when a run could not be written there.
    """
    refuse_unusable(folder)
    if (folder / "metrics.jsonl").exists():
        return [f"note: there is a run in {folder} already: --resume auto goes on with it"]
    return []


def refuse_unusable(folder: Path) -> None:
    """Raise InputError when a run could not be written to this folder, which need not be there yet."""
    try:
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    except OSError as error:
        raise InputError.single(str(folder), f"run.output_dir cannot be written: {error.strerror}") from error
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise InputError.single(str(folder), f"run.output_dir cannot be written: {existing} is no folder, or read-only")
    if problems := _in_the_way(folder):
        raise InputError(f"The run folder {folder} cannot be used:", problems)


@final
class RunFolder:
    """`run.output_dir`, held by this process until `close`."""

    def __init__(self, path: Path) -> None:
        """Create and lock the folder.

        Raises:
            InputError: when it cannot be created or written, or another run holds it.
        """
        self.path = path
        refuse_unusable(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock: IO[str] = (path / "run.lock").open("a+", encoding="utf8")
        except OSError as error:
            raise InputError.single(str(path), f"run.output_dir cannot be written: {error.strerror}") from error
        try:
            # A POSIX lock, because forked loader workers do not inherit it: an orphan must not hold the folder.
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                return  # a file system without locks: nobody can be kept out
            self._lock.close()
            raise InputError.single(
                str(path), "another run is training into this folder; give this one its own: -o run.output_dir=…"
            ) from error

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / "checkpoints"

    def begin(self) -> None:
        """Make room for checkpoints, and remove `exit.json` of the run before: until this one ends, it says nothing.

        Raises:
            InputError: when the folder cannot be written.
        """
        try:
            self.checkpoints.mkdir(exist_ok=True)
            (self.path / "exit.json").unlink(missing_ok=True)
            flush_folder(self.path)
        except OSError as error:
            raise InputError.single(str(error.filename), f"cannot be written: {error.strerror}") from error

    def mark(self) -> str:
        """Write a mark into run.lock by which other processes see whether they have the same folder, and return it.

        Raises:
            InputError: when it cannot be written.
        """
        mark = secrets.token_hex(8)
        try:
            self._lock.truncate(0)
            self._lock.write(mark)
            self._lock.flush()
            os.fsync(self._lock.fileno())
        except OSError as error:
            raise InputError.single(str(self._lock.name), f"cannot be written: {error.strerror}") from error
        return mark

    def close(self) -> None:
        """Let another process have the folder."""
        self._lock.close()


def has_mark(folder: Path, mark: str, seconds: float = 10.0) -> bool:
    """Whether the folder is the one that another process has marked. Network file systems may take some seconds."""
    give_up = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            if (folder / "run.lock").read_text(encoding="utf8") == mark:
                return True
        if time.monotonic() > give_up:
            return False
        time.sleep(0.1)


def is_held(folder: Path) -> bool:
    """Whether a run is training into this folder at this moment."""
    try:
        with (folder / "run.lock").open("r+", encoding="utf8") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        return False  # not there, or a file system without locks
    return False


def _in_the_way(folder: Path) -> list[Problem]:
    """What would stop the run at the moment in which it is first needed."""
    problems = []
    for name in _FILES:
        path = folder / name
        if path.is_dir():
            problems.append(Problem(str(path), 0, "must be a file, found a folder. Move it away"))
        elif path.exists() and not os.access(path, os.R_OK | os.W_OK):
            problems.append(Problem(str(path), 0, "cannot be read and written. Change its permissions"))
    for name in _FOLDERS:
        path = folder / name
        if path.exists() and not path.is_dir():
            problems.append(Problem(str(path), 0, "must be a folder, found a file. Move it away"))
        elif path.exists() and not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            problems.append(Problem(str(path), 0, "cannot be read and written. Change its permissions"))
    return problems


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
        "process": this_process(),
        "time": time.time(),
    }
    aside, path = folder / f".exit.json.{this_process()}", folder / "exit.json"
    try:
        aside.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf8")
        try:
            path.hardlink_to(aside)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            if not path.exists():
                aside.replace(path)
    except OSError as error:
        complain(f"{folder}/exit.json could not be written: {error}")
    finally:
        with contextlib.suppress(OSError):  # on a read-only disk it says so of a file that is not there
            aside.unlink(missing_ok=True)
