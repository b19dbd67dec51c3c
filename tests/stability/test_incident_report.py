"""The report holds what was given, the worst first, and nothing in it can break its tables."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from paddle_stable.data.dataset import Batch, SampleOrigin
from paddle_stable.stability.causes import Cause, Diagnosis, Evidence, InputFinding, SampleLoss, WeightFinding
from paddle_stable.stability.incident_files import IncidentFacts, to_json
from paddle_stable.stability.incident_report import (
    Findings,
    as_json,
    as_markdown,
    cell,
    history_table,
    number,
    ranked,
    table,
)
from paddle_stable.stability.probes import LOSS, FirstBad, Range
from paddle_stable.stability.replay import Operation
from paddle_stable.stability.step_report import SkipReason, StepReport, Verdict

NAN, INF = math.nan, math.inf
SOUND, SPOILT = Range((2, 3), "float32", -1.0, 2.0, 0, 0), Range((2, 3), "float32", None, None, 6, 0)
FIRST = FirstBad("head", "Linear", "forward", "output", (SOUND,), (SPOILT,), {"weight": SOUND})


def step(value: int, **changes: Any) -> StepReport:
    verdict = Verdict(0.5, 3, 2.0, 1.0, clipped=False, skipped=None, group_norms={"lstm": 3.0, "head": 4.0})
    return StepReport(value, 1.25, replace(verdict, **changes), 1e-3, seconds=0.1, data_seconds=0.0)


def findings(evidence: dict[str, Any] | None = None, facts: dict[str, Any] | None = None, **changes: Any) -> Findings:
    """An incident of three samples in step 1,234; the second sample is not finite."""
    bad = step(1234, loss=NAN, grad_norm=INF, skipped=SkipReason.NONFINITE)
    known = IncidentFacts(
        report=bad,
        parts=(Batch({}, (5, 6, 7)),),
        origins={index: SampleOrigin("data/train.txt", index + 1, f"text {index}") for index in (5, 6, 7)},
        history=(step(1232), step(1233, clipped=True, clip_scale=0.25), bad),
        usual_norms={"lstm": 1.5, "head": 0.0},
        rank=0,
        world_size=1,
        precision_state={"dtype": "float32"},
    )
    seen = Evidence(
        reason=SkipReason.NONFINITE, reproduced=True, first_bad=FIRST,
        operation=Operation("log", "forward", ("head",), "net.py:7"),
        odd_inputs=(InputFinding(6, "inputs", "1 of 24 values are NaN", INF),),
        wild_weights=(WeightFinding("head.weight", 5e4),), half_precision=None, finite_in_float32=None, growth=2.0,
        recurrent_layer="lstm", lr=1e-3, typical_weight=0.1, norms_before=[1.0],
        samples=[SampleLoss(5, 0.25, 1.0), SampleLoss(6, NAN, NAN), SampleLoss(7, 0.5, 9.0)],
    )  # fmt: skip
    diagnosis = Diagnosis(Cause.BAD_INPUT, "One sample has odd values.", "Look at it.")
    told = Findings(replace(known, **facts or {}), replace(seen, **evidence or {}), diagnosis, NAN, INF, 1.5)
    return replace(told, **changes)


def rows_under(heading: str, text: str) -> list[list[str]]:
    """Cells of the table in a section, read as GitHub does: a `|` after an odd number of backslashes is text."""
    section = text[text.index(heading) + len(heading) :].split("\n## ", 1)[0]
    lines = [line for line in re.split(r"\r\n|\r|\n", section) if line.startswith("|")]
    cells = [re.findall(r"((?:\\.|[^|\\])*)\|", line[1:]) for line in lines]
    return [[text.strip() for text in row] for row in cells]


def test_what_could_not_be_computed_is_listed_with_its_reason() -> None:
    assert "## Not computed" not in as_markdown(findings(), "x")
    told = findings(not_computed=("sample 5 alone: AssertionError: needs two",))
    assert "## Not computed\n\n- sample 5 alone: AssertionError: needs two\n" in as_markdown(told, "x")
    assert as_json(told)["not_computed"] == ["sample 5 alone: AssertionError: needs two"]


def test_a_parameter_with_nan_is_shown_as_nan() -> None:
    text = as_markdown(findings({"wild_weights": (WeightFinding("head.weight", NAN),)}), "x")
    assert "| `head.weight` | NaN |" in text


HOSTILE = ["a|b", "a\\|b", "a\\\\|b", "||", "one\ntwo", "one\r\ntwo", "one\rtwo", "ends with \\", "\\|\n|\\|"]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_can_break_a_table(text: str) -> None:
    [heads, line, row] = rows_under("", table(("x", "y"), [(cell(text), "after")]))
    assert (heads, line) == (["x", "y"], ["---", "---"])
    assert len(row) == 2
    assert row[1] == "after"
    unescaped = re.sub(r"(\\*)\\\|", lambda m: m[1][: len(m[1]) // 2] + "|", row[0])
    assert unescaped == re.sub(r"[\r\n]+", " ", text).strip()


@pytest.mark.parametrize("text", HOSTILE)
def test_neither_excerpt_nor_file_name_of_a_sample_can_break_the_report(text: str) -> None:
    origins = {index: SampleOrigin(f"{text}.txt", 3, text) for index in (5, 6, 7)}
    rows = rows_under("## Samples, the worst first", as_markdown(findings(facts={"origins": origins}), "x"))
    assert [len(row) for row in rows] == [6] * 5


def test_samples_stand_in_their_rows_the_worst_first() -> None:
    rows = rows_under("## Samples, the worst first", as_markdown(findings(), "x"))
    assert rows[2:] == [
        ["1", "NaN", "NaN", "`data/train.txt:7`", "text 6", "1 of 24 values are NaN"],
        ["2", "0.5", "9", "`data/train.txt:8`", "text 7", ""],
        ["3", "0.25", "1", "`data/train.txt:6`", "text 5", ""],
    ]


def test_layers_stand_with_their_usual_norm_the_largest_first() -> None:
    rows = rows_under("## The largest gradients by layer", as_markdown(findings(), "x"))
    assert rows[2:] == [["`head`", "4", "0", ""], ["`lstm`", "3", "1.5", "2 x"]]
    unknown = rows_under("## The largest gradients by layer", as_markdown(findings(facts={"usual_norms": {}}), "x"))
    assert [row[2] for row in unknown[2:]] == ["not known yet"] * 2


def test_the_head_says_what_was_measured_and_what_came_out_again() -> None:
    text = as_markdown(findings(replayed_loss=0.125, replayed_norm=7.0), "runs/x/incidents/step-001234")
    assert text.startswith("# Step 1234 was skipped: loss or gradient was not finite\n")
    assert "**Probable cause: bad input.** One sample has odd values.\n\n**What to do:** Look at it." in text
    assert [row[1] for row in rows_under("", text.split("\n## ")[0])[2:]] == [
        "1,234 (epoch 1.25)", "NaN", "inf before clipping", "0.001", "float32", "3",
        "the same: loss 0.125, gradient norm 7",
    ]  # fmt: skip
    assert "python tools/diagnose.py runs/x/incidents/step-001234\n" in text
    assert "The operation: `log`, called at `net.py:7`." in text
    assert rows_under("Parameters out of range:", text)[2:] == [["`head.weight`", "5e+04"]]
    assert rows_under("## Where it began", text)[2:5] == [
        ["input", str(SOUND)], ["output", str(SPOILT)], ["`weight`", str(SOUND)],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("norms", "left_out", "said"),
    [
        ([1.0, 2.0], 0, "Each is finite on its own."),
        ([1.0, NAN, INF], 0, "2 of 3 are not finite on their own."),
        ([NAN, NAN], 3, "None is finite on its own: this is not the work of single samples. 3 more were not tried"),
        ([NAN], 0, "1 of 1 are not finite on their own."),
    ],
)
def test_the_samples_are_counted_in_words(norms: list[float], left_out: int, said: str) -> None:
    samples = [SampleLoss(5 + place, 1.0, norm) for place, norm in enumerate(norms)]
    assert f"Computed one by one. {said}" in as_markdown(findings({"samples": samples}, samples_left_out=left_out), "x")


def test_ten_samples_are_shown_and_all_are_in_the_json() -> None:
    origins = {index: SampleOrigin("a.txt", 0, "") for index in range(13)}
    samples = [SampleLoss(index, 1.0, float(index)) for index in range(13)]
    told = findings({"samples": samples, "odd_inputs": ()}, {"origins": origins})
    rows = rows_under("## Samples, the worst first", as_markdown(told, "x"))
    assert [row[2] for row in rows[2:]] == [str(norm) for norm in range(12, 2, -1)]
    assert rows[2][3] == "`a.txt`"  # a file whose samples have no line
    assert "The other 3 are in report.json." in as_markdown(told, "x")
    assert len(as_json(told)["samples"]) == 13


def test_without_samples_reproduction_or_layers_there_are_no_such_sections() -> None:
    quiet = step(1234, loss=NAN, skipped=SkipReason.NONFINITE, group_norms={})
    text = as_markdown(findings({"samples": [], "reproduced": False, "first_bad": None}, {"report": quiet}), "x")
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## The last 3 steps, newest first", "## Compute it again",
    ]  # fmt: skip
    assert "usable: loss" in text


def test_layers_that_are_all_not_finite_are_told_by_what_was_usual() -> None:
    spoilt = step(1234, grad_norm=NAN, skipped=SkipReason.NONFINITE, group_norms={"lstm": NAN, "head": INF})
    text = as_markdown(findings(facts={"report": spoilt}), "x")
    assert "None is finite. Usual, as the median of the steps before: `lstm` 1.5, `head` 0." in text
    text = as_markdown(findings(facts={"report": spoilt, "usual_norms": {}}), "x")
    assert "None is finite. There was no step before." in text


@pytest.mark.parametrize(("world_size", "reproduced", "said"), [(1, False, 0), (2, True, 0), (2, False, 1)])
def test_other_processes_are_mentioned_when_one_of_them_may_have_done_it(
    world_size: int, reproduced: bool, said: int
) -> None:
    facts = {"world_size": world_size, "parts": (Batch({}, (5, 6), 0.5), Batch({}, (7,), 0.0))}
    text = as_markdown(findings({"reproduced": reproduced}, facts), "x")
    assert text.count("samples of rank 0 only") == text.count("`step-001234-rank-…`") == said
    assert ("on 2 processes; 2 on rank 0" in text) is (world_size == 2)  # a stand-in of weight 0 is no sample


def test_the_newest_step_stands_first_with_what_became_of_it() -> None:
    history = [step(7), step(8, clipped=True, clip_scale=0.25), step(9, skipped=SkipReason.SPIKE, loss=9e9)]
    text = history_table(history)
    assert [(row[0], row[1], row[4]) for row in rows_under("newest first", text)[2:]] == [
        ("9", "9e+09", "skipped: spike"), ("8", "0.5", "clipped to 0.25 of it"), ("7", "0.5", "applied"),
    ]  # fmt: skip
    assert text.startswith("## The last 3 steps, newest first")
    assert history_table(history[:1]).startswith("## There was no step before")


def test_the_worst_sample_comes_first() -> None:
    worst = [
        SampleLoss(1, 1.0, INF), SampleLoss(2, NAN, 5.0), SampleLoss(3, INF, 2.0), SampleLoss(4, 1.0, 9.0),
        SampleLoss(5, -8.0, 3.0), SampleLoss(6, 7.0, 3.0), SampleLoss(7, 0.0, 0.0),
    ]  # fmt: skip
    assert ranked(worst[::-1]) == worst
    assert ranked([]) == []


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "0"), (1234567.0, "1.235e+06"), (NAN, "NaN"), (-NAN, "NaN"), (INF, "inf"), (-INF, "-inf"), (1e-9, "1e-09")],
)
def test_a_number_has_four_digits(value: float, said: str) -> None:
    assert number(value) == said


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (FIRST, "step 1234 explained: bad input, first at `head` (forward)"),
        (FirstBad(LOSS, "", "backward", "x"), "step 1234 explained: bad input, first at the loss (backward)"),
        (None, "step 1234 explained: bad input"),
    ],
)
def test_the_headline_names_cause_and_place(first: FirstBad | None, said: str) -> None:
    assert findings({"first_bad": first}).headline() == said


def test_programs_get_the_same_in_strict_json() -> None:
    report = json.loads(to_json(as_json(findings(samples_left_out=4))), parse_constant=pytest.fail)
    assert (report["step"], report["skipped"], report["cause"], report["loss"]) == (
        1234,
        "nonfinite",
        "bad input",
        "nan",
    )
    worst = {"position": 6, "loss": "nan", "grad_norm": "nan", "file": "data/train.txt", "line": 7, "excerpt": "text 6"}
    assert report["samples"][0] == {**worst, "odd": "1 of 24 values are NaN"}
    assert [sample["odd"] for sample in report["samples"][1:]] == [None, None]
    assert report["layers"][0] == {"layer": "head", "grad_norm": 4.0, "usual": 0.0}
    assert [entry["step"] for entry in report["history"]] == [1232, 1233, 1234]
    assert report["first_bad"]["parameters"]["weight"]["shape"] == [2, 3]
    assert (report["samples_left_out"], report["seconds"]) == (4, 1.5)
