"""Being asked to stop: finish the step, save, leave."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, final

SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
        self._previous = {number: signal.signal(number, self._remember) for number in SIGNALS}
        return self

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
