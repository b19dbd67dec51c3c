"""Console: the figures a person steers by, on a terminal and in a log file alike."""

from __future__ import annotations

import io
import logging
import math
import os
import sys

import pytest

from paddle_stable.console import Console, PlainLines, ProgressBar, open_console
from paddle_stable.stability.step_report import SkipReason, StepReport, Verdict

SCALARS = {
    "train/loss": 0.51234,
    "train/samples_per_second": 16.24,
    "stability/grad_norm": 1.2345,
    "stability/clip_rate": 0.125,
    "stability/skipped_overflow": 2.0,
    "stability/skipped_nonfinite": 1.0,
    "stability/skipped_spike": 0.0,
}
FIGURES = ["loss 0.5123", "lr 0.001", "grad norm 1.23", "clipped 12%", "skipped 3", "16.2 samples/s"]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2


def report(step: int) -> StepReport:
    verdict = Verdict(math.nan, 4, math.inf, 1.0, clipped=False, skipped=SkipReason.NONFINITE)
    return StepReport(step, 0.0, verdict, 1e-3, seconds=0.1, data_seconds=0.0)


@pytest.mark.parametrize(
    ("stream", "size", "expected"),
    [
        (Terminal(), (120, 40), ProgressBar),
        (Terminal(), (0, 0), PlainLines),
        (Terminal(), (120, 0), PlainLines),
        (io.StringIO(), (120, 40), PlainLines),
    ],
    ids=["a terminal", "a terminal without a size", "a terminal without lines", "a file"],
)
def test_stderr_decides(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, size: tuple[int, int], expected: type[Console]
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size(size))
    console = open_console(10, 0)
    console.close()
    assert isinstance(console, expected)


def test_a_terminal_shows_progress_figures_and_lines_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(logging.root, "handlers", [logging.StreamHandler(terminal)])
    monkeypatch.setattr(logging.root, "level", logging.INFO)
    console = ProgressBar(total_steps=20, done=5)
    for step in range(6, 16):
        console.step(report(step), SCALARS if step == 15 else None)
    console.line("step 15 skipped: nonfinite")
    console.close()
    console.close()
    shown = terminal.getvalue()
    for figure in ["5/20", "15/20", *FIGURES]:
        assert figure in shown
    assert "\rstep 15 skipped: nonfinite\n" in shown.replace("\x1b[A", "")
    assert isinstance(logging.root.handlers[0], logging.StreamHandler)
    assert logging.root.handlers[0].stream is terminal


def test_a_log_gets_a_line_a_record_and_no_control_characters(caplog: pytest.LogCaptureFixture) -> None:
    console = PlainLines(total_steps=20, done=5)
    with caplog.at_level(logging.INFO, logger="paddle_stable"):
        for step in range(6, 16):
            console.step(report(step), SCALARS if step % 5 == 0 else None)
        console.line("a line")
    console.close()
    first, second, third = [record.message for record in caplog.records]
    assert first.startswith("step 10/20  loss")
    assert second.startswith("step 15/20  loss")
    assert all(figure in second for figure in FIGURES)
    assert second.endswith(" left")
    assert second.isprintable()
    assert third == "a line"


def test_a_figure_that_no_step_gave_is_a_dash(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="paddle_stable"):
        PlainLines(total_steps=20, done=0).step(report(1), {"stability/skipped_nonfinite": 1.0})
    assert "loss -  lr 0.001  grad norm -  clipped -  skipped 1  - samples/s" in caplog.text


@pytest.mark.parametrize("total", [0, 1, 5])
def test_a_run_longer_than_planned_does_not_break_the_line(total: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="paddle_stable"):
        PlainLines(total, done=5).step(report(5), SCALARS)
    assert "00:00 left" in caplog.text
