"""What a person sees while a run trains: a progress bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import logging
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from typing import final

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from paddle_stable.stability.step_report import StepReport

# Lines go through logging; the program that trains decides where to (on stderr, at INFO).
logger = logging.getLogger("paddle_stable")


class Console(ABC):
    """Shows progress and lines. Holds no state that a checkpoint would need."""

    @abstractmethod
    def step(self, report: StepReport, scalars: Mapping[str, float] | None) -> None:
        """One more step was attempted; `scalars` are the values recorded with it, or None between records."""

    @abstractmethod
    def line(self, text: str) -> None:
        """Show a line."""

    @abstractmethod
    def close(self) -> None:
        """Leave the terminal tidy. A second call does nothing."""


def open_console(total_steps: int, done: int) -> Console:
    """The console that suits stderr.

    Args:
        total_steps: steps of the whole run.
        done: steps attempted before this process began.
    """
    return ProgressBar(total_steps, done) if _has_room_for_a_bar() else PlainLines(total_steps, done)


@final
class ProgressBar(Console):
    """A tqdm bar on stderr; lines appear above it."""

    def __init__(self, total_steps: int, done: int) -> None:
        self._cleanup = ExitStack()
        self._bar = self._cleanup.enter_context(
            tqdm(total=total_steps, initial=done, unit="step", dynamic_ncols=True, file=sys.stderr)
        )
        # Log lines written straight to the terminal would tear the bar.
        self._cleanup.enter_context(logging_redirect_tqdm(loggers=[logger]))

    def step(self, report: StepReport, scalars: Mapping[str, float] | None) -> None:
        """Move the bar; the figures beside it change with every record."""
        if scalars is not None:
            self._bar.set_postfix_str(_figures(report, scalars), refresh=False)
        self._bar.update(1)

    def line(self, text: str) -> None:
        """Log a line above the bar."""
        logger.info(text)

    def close(self) -> None:
        """Leave the bar as it is, and put logging back."""
        self._cleanup.close()


@final
class PlainLines(Console):
    """A log line a record: for files, pipes and job logs."""

    def __init__(self, total_steps: int, done: int) -> None:
        self._total = total_steps
        self._done = done
        self._began = time.monotonic()

    def step(self, report: StepReport, scalars: Mapping[str, float] | None) -> None:
        """Log progress and figures when there is a record."""
        if scalars is None:
            return
        per_step = (time.monotonic() - self._began) / max(report.step - self._done, 1)
        left = tqdm.format_interval(per_step * max(self._total - report.step, 0))
        self.line(f"step {report.step}/{self._total}  {_figures(report, scalars)}  {left} left")

    def line(self, text: str) -> None:
        """Log a line."""
        logger.info(text)

    def close(self) -> None:
        """Nothing to tidy."""


def _has_room_for_a_bar() -> bool:
    if not sys.stderr.isatty():
        return False
    # Terminals of job runners and recorders may have no size; tqdm would then show nothing at all.
    size = os.get_terminal_size(sys.stderr.fileno())
    return size.columns > 0 and size.lines > 1


def _figures(report: StepReport, scalars: Mapping[str, float]) -> str:
    """Loss, learning rate, gradient norm, clip rate, skips and speed; a dash where no step was usable."""

    def shown(tag: str, form: str) -> str:
        value = scalars.get(tag)
        return "-" if value is None else format(value, form)

    skips = sum(scalars.get(f"stability/skipped_{reason}", 0.0) for reason in ("overflow", "nonfinite", "spike"))
    return "  ".join(
        [
            f"loss {shown('train/loss', '.4g')}",
            f"lr {report.lr:.3g}",
            f"grad norm {shown('stability/grad_norm', '.3g')}",
            f"clipped {shown('stability/clip_rate', '.0%')}",
            f"skipped {skips:.0f}",
            f"{shown('train/samples_per_second', '.1f')} samples/s",
        ]
    )
