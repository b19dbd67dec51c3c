"""Writers: where a run's figures go. One process records, the others hold an object that does nothing.

Every record goes to metrics.jsonl first and from there to VisualDL, so that what VisualDL shows can always be made
again from the run folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, final

import numpy.typing as npt

from paddle_stable import metrics_log
from paddle_stable.console import Console, open_console
from paddle_stable.metrics_log import Histogram, HyperParameters, Image, MetricsLog, Record, Scalars, Text
from paddle_stable.stability.step_report import SkipReason, StepReport
from paddle_stable.visualdl_writer import VisualDLFile, load_visualdl

NONFINITE_VALUES = "stability/nonfinite_values"
"""Tag that counts what could not be plotted: NaN, inf, or beyond single precision."""


class Writers(ABC):
    """Takes what is to be recorded of a run. Steps are numbers of attempted steps, so records never go back."""

    @abstractmethod
    def step(self, report: StepReport, scalars: Mapping[str, float] | None) -> None:
        """Show a step's progress, say it when it was skipped, and record `scalars` (by tag) when they are given."""

    @abstractmethod
    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record dev metrics by name, under `eval/<metric>`."""

    @abstractmethod
    def histograms(self, step: int, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Record how the values of arrays are distributed, by tag. Arrays have any shape; empty ones are left out."""

    @abstractmethod
    def text(self, tag: str, text: str, step: int = 0) -> None:
        """Record a text (Markdown), unless it is the newest of its tag already: a resumed run may repeat it."""

    @abstractmethod
    def hyper_parameters(self, values: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Record, at the end of a run, what it was asked to do and its final metrics, plotted as `final/<metric>`.

        Values may be nested: keys are joined by dots.
        """

    @abstractmethod
    def image(self, tag: str, step: int, path: Path) -> None:
        """Record a picture, which is a file of the run folder.

        Raises:
            ValueError: when the file is outside of the run folder, from which everything must be re-creatable.
        """

    @abstractmethod
    def note(self, message: str) -> None:
        """Show a message and keep it, with the time, in run.log."""

    @abstractmethod
    def keep(self, message: str) -> None:
        """Keep a message, with the time, in run.log, without showing it."""

    @abstractmethod
    def flush(self) -> None:
        """See to it that what metrics.jsonl holds is on the disk; also from another thread.

        Raises:
            OSError: when it cannot be written.
        """

    @abstractmethod
    def close(self) -> None:
        """Close all files. A second call does nothing."""


@final
class NoRecord(Writers):
    """Records nothing: for all processes but the one of rank 0."""

    def step(self, report: StepReport, scalars: Mapping[str, float] | None) -> None:
        """Nothing."""

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Nothing."""

    def histograms(self, step: int, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Nothing."""

    def text(self, tag: str, text: str, step: int = 0) -> None:
        """Nothing."""

    def hyper_parameters(self, values: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Nothing."""

    def image(self, tag: str, step: int, path: Path) -> None:
        """Nothing."""

    def note(self, message: str) -> None:
        """Nothing."""

    def keep(self, message: str) -> None:
        """Nothing."""

    def flush(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


@final
class RunRecord(Writers):
    """Records into a run folder: metrics.jsonl, VisualDL's file, run.log, and the console."""

    def __init__(self, folder: Path, log: MetricsLog, visualdl: VisualDLFile, console: Console, step: int) -> None:
        """Put the parts together; use `open`."""
        self._folder = folder
        self._log = log
        self._visualdl = visualdl
        self._console = console
        self._step = step
        self._left_out = metrics_log.count_left_out(log.kept)
        self._texts = {record.tag: record.text for record in log.kept if isinstance(record, Text)}
        self._images = {(record.tag, record.step, record.path) for record in log.kept if isinstance(record, Image)}
        self._run_log = (folder / "run.log").open("a", encoding="utf8", buffering=1)

    @staticmethod
    def open(folder: Path, total_steps: int, resume_step: int | None) -> RunRecord:
        """Begin to record, or go on behind a checkpoint.

        Args:
            folder: run folder; created when missing.
            total_steps: steps of the whole run, for the progress shown.
            resume_step: step of the checkpoint that the run goes on from: later records are cut off and VisualDL's
                file is made anew. 0 begins anew in a folder that has records. None: a new run.

        Raises:
            InputError: when a new run finds the records of another one, when metrics.jsonl is damaged, or when
                VisualDL cannot be loaded.
        """
        load_visualdl()  # first, so that a failure leaves no trace of a run
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / metrics_log.FILE_NAME
        log = MetricsLog.create(path) if resume_step is None else MetricsLog.resume(path, resume_step)
        done = resume_step or 0
        return RunRecord(folder, log, VisualDLFile(folder, log.kept), open_console(total_steps, done), done)

    def step(self, report: StepReport, scalars: Mapping[str, float] | None) -> None:
        """Show, say and record a step."""
        self._step = report.step
        if report.verdict.skipped is not None:
            self.note(_skip_line(report))
        if scalars is not None:
            self._record(self._with_left_out(Scalars.of(report.step, scalars)))
        self._console.step(report, scalars)

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record and show dev metrics."""
        self._record(Scalars.of(step, {f"eval/{name}": value for name, value in metrics.items()}))
        self.note(f"step {step}: dev " + ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()))

    def histograms(self, step: int, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Record a compact histogram of each array."""
        for tag, array in values.items():
            if array.size:
                self._record(Histogram.of(step, tag, array))

    def text(self, tag: str, text: str, step: int = 0) -> None:
        """Record a text once."""
        if self._texts.get(tag) != text:
            self._texts[tag] = text
            self._record(Text(step=step, tag=tag, text=text))

    def hyper_parameters(self, values: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Record what was asked and what came out, at the newest step."""
        self._record(HyperParameters.of(self._step, values, metrics))

    def image(self, tag: str, step: int, path: Path) -> None:
        """Record the path of a picture, and show the picture."""
        inside = path.resolve().relative_to(self._folder.resolve()).as_posix()
        if (tag, step, inside) not in self._images:
            self._images.add((tag, step, inside))
            self._record(Image(step=step, tag=tag, path=inside))

    def note(self, message: str) -> None:
        """Show a message and keep it."""
        self._console.line(message)
        self.keep(message)

    def keep(self, message: str) -> None:
        """Write it down."""
        self._run_log.write(f"{datetime.now().isoformat(sep=' ', timespec='seconds')}  {message}\n")

    def flush(self) -> None:
        """Flush metrics.jsonl, from which all else can be made again."""
        self._log.flush()

    def close(self) -> None:
        """Close the files and leave the terminal tidy."""
        self._console.close()
        self._visualdl.close()
        self._log.close()
        self._run_log.close()

    def _record(self, record: Record) -> None:
        self._left_out += metrics_log.values_left_out(record)
        self._log.append(record)
        self._visualdl.add(record)

    def _with_left_out(self, record: Scalars) -> Scalars:
        """The record with a count of non-finite values that has those in it that were left out of records."""
        left_out = self._left_out + len(record.dropped)
        if left_out == 0:
            return record
        count = record.scalars.get(NONFINITE_VALUES, 0.0) + left_out
        return record.model_copy(update={"scalars": {**record.scalars, NONFINITE_VALUES: count}})


def _skip_line(report: StepReport) -> str:
    verdict = report.verdict
    match verdict.skipped:
        case SkipReason.OVERFLOW:
            why = f"overflow at loss scale {verdict.loss_scale:g}"
        case SkipReason.WITHHELD:
            why = "withheld by the recipe's faults"
        case _:
            reason = verdict.skipped.value if verdict.skipped else ""
            why = f"{reason} (loss {verdict.loss:.4g}, gradient norm {verdict.grad_norm:.4g})"
    return f"step {report.step} skipped: {why}"
