"""RunRecord: everything is recorded once, nothing is NaN, and a resumed run's curves equal the uninterrupted ones."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture

from paddle_stable.errors import InputError
from paddle_stable.metrics_log import Histogram, HyperParameters, Image, Scalars, Text, read_records
from paddle_stable.stability.monitor import Monitor
from paddle_stable.stability.step_report import SkipReason, StepReport, Verdict
from paddle_stable.visualdl_writer import FILE_NAME as VISUALDL_FILE
from paddle_stable.writers import NONFINITE_VALUES, NoRecord, RunRecord, Writers

NAN, INF = math.nan, math.inf
SPEEDS = {"train/samples_per_second", "train/data_seconds"}


def report_of(step: int) -> StepReport:
    """A step of a made-up run: every seventh is skipped, every fifth clipped."""
    if step % 7 == 0:
        verdict = Verdict(NAN, 4, INF, 1.0, clipped=False, skipped=SkipReason.NONFINITE)
    else:
        clipped = step % 5 == 0
        verdict = Verdict(1 / step, 4, step / 3, 0.5 if clipped else 1.0, clipped=clipped, skipped=None)
    return StepReport(step, step / 10, verdict, 0.1 / step, seconds=0.1, data_seconds=0.01)


def play(writers: Writers, monitor: Monitor, first: int, last: int, *, log_every: int = 3) -> None:
    """Steps `first`…`last` of the run, with an evaluation and histograms every four."""
    for step in range(first, last + 1):
        report = report_of(step)
        monitor.update(report)
        writers.step(report, monitor.scalars() if step % log_every == 0 else None)
        if step % 4 == 0:
            writers.evaluation(step, {"accuracy": step / 20, "loss": NAN if step == 8 else 1 / step})
            writers.histograms(step, {"parameters/fc.weight": np.arange(step * 4.0)})


def curves_of(folder: Path) -> list[tuple[str, int, float]]:
    """(tag, step, value) in the order of metrics.jsonl, speeds left out."""
    return [
        (tag, record.step, value)
        for record in read_records(folder / "metrics.jsonl")
        if isinstance(record, Scalars)
        for tag, value in record.scalars.items()
        if tag not in SPEEDS
    ]


def curves_visualdl_reads(folder: Path) -> list[tuple[str, int, float]]:
    """(tag, step, value) by tag, as VisualDL's own reader finds them, speeds left out."""
    from visualdl import LogReader

    reader = LogReader(file_path=str(folder / VISUALDL_FILE))
    tags = [tag for tag in reader.get_tags()["scalar"] if tag not in SPEEDS]
    return [(tag, item.id, item.value) for tag in sorted(tags) for item in reader.get_data("scalar", tag)]


@pytest.fixture
def record(tmp_path: Path) -> Iterator[RunRecord]:
    opened = RunRecord.open(tmp_path / "run", total_steps=20, resume_step=None)
    yield opened
    opened.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.mark.parametrize("torn", [0, 1, 30], ids=["whole", "newline missing", "torn"])
@pytest.mark.parametrize("killed_at", [5, 11, 20])
@pytest.mark.parametrize("checkpoint", [0, 3, 4, 5])
def test_a_resumed_run_has_the_curves_of_an_uninterrupted_one(
    tmp_path: Path, checkpoint: int, killed_at: int, torn: int
) -> None:
    whole = RunRecord.open(tmp_path / "whole", total_steps=20, resume_step=None)
    play(whole, Monitor(6), 1, 20)
    whole.close()

    killed = RunRecord.open(tmp_path / "killed", total_steps=20, resume_step=None)
    monitor = Monitor(6)
    play(killed, monitor, 1, checkpoint)
    state = json.loads(json.dumps(monitor.state()))
    play(killed, monitor, checkpoint + 1, killed_at)
    killed.close()
    if torn:
        for name in "metrics.jsonl", VISUALDL_FILE:
            with (tmp_path / "killed" / name).open("r+b") as file:
                file.truncate(file.seek(0, 2) - torn)
    resumed = RunRecord.open(tmp_path / "killed", total_steps=20, resume_step=checkpoint)
    play(resumed, Monitor.from_state(6, state), checkpoint + 1, 20)
    resumed.close()

    expected = curves_of(tmp_path / "whole")
    assert curves_of(tmp_path / "killed") == expected
    assert len({(tag, step) for tag, step, _ in expected}) == len(expected) > 50
    shown = curves_visualdl_reads(tmp_path / "killed")
    assert shown == curves_visualdl_reads(tmp_path / "whole")
    assert shown == sorted((tag, step, float(np.float32(value))) for tag, step, value in expected)


def test_no_nonfinite_value_is_written_and_each_is_counted(record: RunRecord, folder: Path) -> None:
    report = report_of(1)
    record.step(report, {"train/loss": NAN, "train/lr": 0.1, NONFINITE_VALUES: 2.0})
    record.evaluation(1, {"accuracy": INF, "loss": -INF})
    record.histograms(1, {"parameters/fc": np.array([NAN, 1.0, INF])})
    record.step(report_of(2), {"train/loss": 0.5, NONFINITE_VALUES: 2.0})
    record.step(report_of(3), {"train/loss": 1e39, NONFINITE_VALUES: 3.0})
    record.hyper_parameters({"lr": 0.1}, {"accuracy": NAN, "f1": 0.5})
    record.close()
    assert curves_of(folder) == [
        ("train/lr", 1, 0.1),
        (NONFINITE_VALUES, 1, 3.0),
        ("train/loss", 2, 0.5),
        (NONFINITE_VALUES, 2, 6.0),
        (NONFINITE_VALUES, 3, 8.0),
    ]
    assert all(math.isfinite(value) for _, _, value in curves_visualdl_reads(folder))
    text = (folder / "metrics.jsonl").read_text("utf8")
    assert "NaN" not in text
    assert "Infinity" not in text


def test_the_count_of_left_out_values_goes_on_after_a_resume(record: RunRecord, folder: Path) -> None:
    record.evaluation(1, {"loss": NAN})
    record.evaluation(5, {"loss": NAN})
    record.close()
    resumed = RunRecord.open(folder, total_steps=20, resume_step=4)
    resumed.step(report_of(5), {"train/loss": 1.0})
    resumed.close()
    assert curves_of(folder) == [("train/loss", 5, 1.0), (NONFINITE_VALUES, 5, 1.0)]


def test_a_run_without_nonfinite_values_has_the_scalars_as_they_were_given(record: RunRecord, folder: Path) -> None:
    record.step(report_of(1), {"train/loss": 0.5, "train/lr": 0.1})
    record.step(report_of(2), None)
    record.close()
    assert curves_of(folder) == [("train/loss", 1, 0.5), ("train/lr", 1, 0.1)]


def test_every_kind_of_record_is_kept(record: RunRecord, folder: Path) -> None:
    picture = folder / "pictures" / "a.png"
    picture.parent.mkdir()
    Picture.new("RGB", (4, 4), "red").save(picture)
    record.text("recipe", "run: {}")
    record.step(report_of(4), {"train/loss": 0.25})
    record.evaluation(4, {"accuracy": 0.5})
    record.histograms(4, {"parameters/fc": np.ones((3, 2)), "parameters/empty": np.ones((0, 2))})
    record.image("forecast", 4, picture)
    record.hyper_parameters({"optim": {"lr": 0.1}}, {"test/f1": 0.75})
    record.close()
    text, scalars, evaluation, histogram, image, hyper_parameters = read_records(folder / "metrics.jsonl")
    assert isinstance(text, Text)
    assert (text.step, text.tag, text.text) == (0, "recipe", "run: {}")
    assert isinstance(scalars, Scalars)
    assert isinstance(evaluation, Scalars)
    assert (evaluation.step, evaluation.scalars) == (4, {"eval/accuracy": 0.5})
    assert isinstance(histogram, Histogram)
    assert (histogram.step, histogram.tag, histogram.size) == (4, "parameters/fc", 6)
    assert isinstance(image, Image)
    assert (image.step, image.tag, image.path) == (4, "forecast", "pictures/a.png")
    assert isinstance(hyper_parameters, HyperParameters)
    assert (hyper_parameters.step, hyper_parameters.values, hyper_parameters.metrics) == (
        4,
        {"optim.lr": 0.1},
        {"test/f1": 0.75},
    )


def test_a_picture_outside_of_the_run_folder_is_refused(record: RunRecord, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not in the subpath"):
        record.image("forecast", 1, tmp_path / "elsewhere.png")


@pytest.mark.parametrize("resume_step", [0, 3, 20])
def test_what_a_resumed_run_repeats_is_recorded_once(record: RunRecord, folder: Path, resume_step: int) -> None:
    def finish(writers: Writers) -> None:
        writers.text("recipe", "run: {}")
        writers.step(report_of(20), None)
        writers.hyper_parameters({"lr": 0.1}, {"f1": 0.5})

    finish(record)
    record.close()
    again = RunRecord.open(folder, total_steps=20, resume_step=resume_step)
    finish(again)
    again.text("recipe", "run: {}", step=20)
    again.text("recipe", "run: {steps: 30}")
    again.close()
    kinds = [(r.kind, r.step) for r in read_records(folder / "metrics.jsonl")]
    assert kinds == [("text", 0), ("hyper_parameters", 20), ("text", 0)]


def test_a_new_run_is_not_mixed_with_the_records_of_another(record: RunRecord, folder: Path) -> None:
    record.evaluation(1, {"loss": 1.0})
    record.close()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(InputError, match="earlier run"):
        RunRecord.open(folder, total_steps=20, resume_step=None)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_nothing_is_left_beside_the_files_of_the_record(record: RunRecord, folder: Path) -> None:
    record.close()
    RunRecord.open(folder, total_steps=20, resume_step=0).close()
    assert sorted(path.name for path in folder.iterdir()) == ["metrics.jsonl", "run.log", VISUALDL_FILE]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (SkipReason.OVERFLOW, "step 3 skipped: overflow at loss scale 1024"),
        (SkipReason.NONFINITE, "step 3 skipped: nonfinite (loss nan, gradient norm inf)"),
        (SkipReason.SPIKE, "step 3 skipped: spike (loss nan, gradient norm inf)"),
        (SkipReason.WITHHELD, "step 3 skipped: withheld by the recipe's faults"),
    ],
)
def test_a_skip_is_said_with_its_reason_on_the_console_and_in_the_log(
    record: RunRecord, folder: Path, reason: SkipReason, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    verdict = Verdict(NAN, 4, INF, 1.0, clipped=False, skipped=reason, loss_scale=1024.0)
    with caplog.at_level(logging.INFO, logger="paddle_stable"):
        record.step(StepReport(3, 0.0, verdict, 0.1, seconds=0.1, data_seconds=0.0), None)
    assert [entry.message for entry in caplog.records] == [expected]
    assert (folder / "run.log").read_text("utf8").endswith(f"  {expected}\n")


def test_the_log_of_a_run_is_kept_when_it_is_resumed(record: RunRecord, folder: Path) -> None:
    record.note("checkpoint saved")
    record.evaluation(2, {"accuracy": 0.5, "loss": NAN})
    record.close()
    resumed = RunRecord.open(folder, total_steps=20, resume_step=2)
    resumed.note("going on")
    resumed.close()
    lines = (folder / "run.log").read_text("utf8").splitlines()
    assert [line.split("  ", 1)[1] for line in lines] == [
        "checkpoint saved",
        "step 2: dev accuracy 0.5, loss nan",
        "going on",
    ]


def test_closing_twice_is_harmless(record: RunRecord) -> None:
    record.close()
    record.close()


def test_other_processes_write_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writers: Writers = NoRecord()
    with caplog.at_level(logging.DEBUG):
        play(writers, Monitor(5), 1, 8)
        writers.text("recipe", "run: {}")
        writers.hyper_parameters({}, {})
        writers.image("forecast", 1, tmp_path / "missing.png")
        writers.note("anything")
        writers.keep("anything")
        writers.close()
    assert list(tmp_path.iterdir()) == []
    assert caplog.text == ""
