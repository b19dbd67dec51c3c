"""Being asked to stop: finish the step, save, leave."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, final

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1
_STDERR = 2


@final
class StoppedEarly(BaseException):
    """A signal has come while there is nothing to save. No `Exception`: nobody is to take it for a failure."""


@final
class StopSignal:
    """While entered, SIGTERM and SIGINT set a flag instead of ending the process.

    Enter after `import paddle`, which installs handlers of its own.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        """Name of the first signal, such as SIGTERM; None so far."""
        self._previous: dict[signal.Signals, Any] = {}
        self._leaves_at_once = False

    def __enter__(self) -> StopSignal:
        self._previous = {number: signal.getsignal(number) for number in SIGNALS}
        self.install_again()
        return self

    def install_again(self) -> None:
        """Call behind code of others that may have taken the handlers away.

        PaddleNLP does when it is imported, with `paddle.disable_signal_handler()`: SIGTERM then ends the process, and
        `signal.getsignal` does not even show it.
        """
        for number in SIGNALS:
            signal.signal(number, self._remember)
            # Paddle's store of a job takes an interrupted system call for a lost connection.
            signal.siginterrupt(number, self._leaves_at_once)

    def leave_at_once(self, yes: bool) -> None:
        """Whether a signal raises `StoppedEarly` wherever the process is, also where it waits for a file.

        For a process on its own, until training begins: reading data can take long, and nothing is lost by leaving it.
        """
        self._leaves_at_once = yes
        self.install_again()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # None stands for a handler that was not installed from Python and cannot be put back from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous = {}

    def stay_deaf(self) -> None:
        """Ignore the signals for the rest of this process, which is on its way out.

        The launcher sends a signal three times within a second: a late one must not change the exit code.
        """
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        self._previous = {}

    def _remember(self, number: int, frame: FrameType | None) -> None:
        first = self.received is None
        if first:
            self.received = signal.Signals(number).name
        if self._leaves_at_once:
            self.stay_deaf()
            raise StoppedEarly(f"stopped by {self.received} before the first step: nothing was begun")
        if first:
            with suppress(OSError):  # not `print`, which may just be at work
                os.write(_STDERR, f"{self.received}: the step in hand is finished first\n".encode())


def stop_with_launcher() -> None:
    """Let the kernel send SIGTERM to this process when its launcher dies, which can then not stop it itself.

    Without it, ranks whose launcher was killed would train on unseen, and hold the run folder against their successors.
    Does nothing in a process that no launcher has started, and outside of Linux.

    Source: prctl(2) of the Linux man-pages, PR_SET_PDEATHSIG.
    """
    if "PADDLE_TRAINERS_NUM" in os.environ and sys.platform == "linux":
        launcher = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() != launcher:  # it died right before
            os.kill(os.getpid(), signal.SIGTERM)
