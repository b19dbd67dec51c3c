"""Leaving instead of waiting for ever: when this process has stood still, or another one has ended without it."""

from __future__ import annotations

import faulthandler
import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import final

from paddle_stable.errors import ExitCode
from paddle_stable.process_name import this_process
from paddle_stable.run_folder import write_exit
from paddle_stable.terminal import complain

_TICK_SECONDS = 0.5
_STDERR = 2
_LAST_RESORT_SECONDS = 30.0
_SILENT_TICKS = 2
"""Ticks without a sign of life after which the end of another process is looked for."""

LINGER_SECONDS = 2.0
"""How long a process stays after it has written `exit.json`, so that the others read it and leave with the same code.

Less than the three seconds that Paddle's launcher leaves to the survivors of the first that is gone."""


@final
class Heartbeat:
    """Signs of life of the training thread: a step begun, a batch evaluated, a checkpoint saved."""

    def __init__(self) -> None:
        self.count = 0
        self.step = 0
        """The newest step that was begun; 0 before the first."""

    def beat(self) -> None:
        """Something has been done."""
        self.count += 1

    def begin_step(self, step: int) -> None:
        """A step has its data and begins."""
        self.step = step
        self.beat()


@final
class Watchdog:
    """While entered, a thread ends this process when the training thread waits in vain.

    - Without a heartbeat for `timeout` seconds: it writes the stacks of all threads to `hang-rank-<rank>.txt` in the
      run folder, 4 to `exit.json`, and leaves with 4.
    - When another process has written to `exit.json` that it failed, while this one is silent: it leaves with the same
      code, because the training thread waits for an answer that will not come.

    The training thread cannot be asked to leave: it stands in native code. Where that code holds the interpreter's
    lock, no Python thread can act; then `faulthandler` prints the stacks to stderr and leaves with 1.
    Time is counted in ticks of this thread, so that a process that was suspended is not taken for one that hangs.
    """

    def __init__(self, heartbeat: Heartbeat, folder: Path, rank: int, timeout: float | None) -> None:
        self._heartbeat = heartbeat
        self._folder = folder
        self._rank = rank
        self._timeout = timeout
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._end_before = _identity(folder)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        silent_ticks, seen = 0, -1
        while not self._stopped.wait(_TICK_SECONDS):
            count = self._heartbeat.count
            silent_ticks = silent_ticks + 1 if count == seen else 0
            seen = count
            if self._timeout is not None:
                # Pushed forward as long as this thread gets the interpreter's lock at all.
                faulthandler.dump_traceback_later(self._timeout + _LAST_RESORT_SECONDS, file=_STDERR, exit=True)
            if silent_ticks >= _SILENT_TICKS:
                self._follow_another()
            if self._timeout is not None and silent_ticks * _TICK_SECONDS >= self._timeout:
                self._leave_hung(f"Nothing has moved for {self._timeout:g} seconds (run.hang_timeout)")

    def _follow_another(self) -> None:
        """Leave with the code of a process that has failed."""
        if _identity(self._folder) in (None, self._end_before):
            return
        try:
            record = json.loads((self._folder / "exit.json").read_text(encoding="utf8"))
            code, reason, process = ExitCode(record["code"]), str(record["reason"]), record["process"]
        except (OSError, ValueError, KeyError, TypeError):
            return
        if process == this_process():
            return
        if code is ExitCode.HANG:
            self._leave_hung("Another process of this run has stood still")
        elif code in (ExitCode.ERROR, ExitCode.INPUT):
            _leave(code, f"Another process of this run has ended: {reason}")

    def _leave_hung(self, what: str) -> None:
        path = self._folder / f"hang-rank-{self._rank}.txt"
        reason = (
            f"{what}; rank {self._rank} was in step {self._heartbeat.step}. The stacks of its threads are in "
            f"{path.name}, those of the others beside it. Go on with --resume auto."
        )
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf8") as stream:
                stream.write(f"\n{time.strftime('%Y-%m-%d %H:%M:%S')}  process {os.getpid()}: {reason}\n")
                stream.flush()
                faulthandler.dump_traceback(stream, all_threads=True)
        write_exit(self._folder, ExitCode.HANG, reason, step=self._heartbeat.step, retry=True)
        complain(reason)
        time.sleep(LINGER_SECONDS)
        os._exit(ExitCode.HANG)


def _leave(code: ExitCode, reason: str) -> None:
    complain(reason)
    os._exit(code)


def _identity(folder: Path) -> tuple[int, int] | None:
    """Which `exit.json` there is: one that an earlier run has left says nothing about this one."""
    try:
        found = (folder / "exit.json").stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
