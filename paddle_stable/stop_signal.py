"""Being asked to stop: finish the step, save, leave."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Any, final

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1


@final
class StopSignal:
    """While entered, SIGTERM and SIGINT set a flag instead of ending the process.

    Enter after `import paddle`, which installs handlers of its own.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        """Name of the first signal, such as SIGTERM; None so far."""
        self._previous: dict[signal.Signals, Any] = {}

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
            signal.siginterrupt(number, False)

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
        if self.received is None:
            self.received = signal.Signals(number).name


def stop_with_launcher() -> None:
    """Let the kernel send SIGTERM to this process when its launcher dies, which can then not stop it itself.

    Without it, ranks whose launcher was killed would train on unseen, and hold the run folder against their successors.
    Does nothing in a process that no launcher has started, and outside of Linux.

    Source: prctl(2) of the Linux man-pages, PR_SET_PDEATHSIG.
    """
    if "PADDLE_TRAINERS_NUM" in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
