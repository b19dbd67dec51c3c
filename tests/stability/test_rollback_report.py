"""A rollback is explained: where from, where to, what the parameters looked like, and why."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddle_stable.stability.rollback_report import RollbackFacts, as_markdown, changes, probable_cause, write_report
from paddle_stable.stability.step_report import SkipReason, StepReport, Verdict

GOOD = {"a.weight": np.full((2, 2), 0.5, dtype=np.float32), "b.bias": np.zeros(3, dtype=np.float32)}


def step(number: int, skipped: SkipReason | None = None) -> StepReport:
    verdict = Verdict(1.0, 4, 2.0, 1.0, clipped=False, skipped=skipped, group_norms={"a": 2.0})
    return StepReport(number, 0.5, verdict, 1e-3, seconds=0.1, data_seconds=0.0)


def facts_of(**values: Any) -> RollbackFacts:
    defaults: dict[str, Any] = {
        "step": 30, "why": "three steps in a row could not be used", "undone": 4, "applied": 20, "number": 2,
        "allowed": 3, "lr_backoff": 0.5, "parameters": changes(GOOD, GOOD), "history": tuple(map(step, range(21, 31))),
        "usual_norms": {"a": 1.0},
    }  # fmt: skip
    return RollbackFacts(**{**defaults, **values})


def test_parameters_that_changed_most_come_first() -> None:
    now = {"a.weight": GOOD["a.weight"] * 4, "b.bias": np.array([0.0, np.nan, np.inf], dtype=np.float32)}
    bias, weight = changes(GOOD, now)
    assert (bias.name, bias.nonfinite, bias.growth) == ("b.bias", 2, math.inf)
    assert (weight.name, weight.then, weight.now, weight.growth) == ("a.weight", 0.5, 2.0, 4.0)


@pytest.mark.parametrize(("now", "skipped", "words"), [
    ({"b.bias": np.array([0, 0, np.nan], dtype=np.float32)}, None, "1 parameters hold NaN or inf, `b.bias` among them"),
    ({"a.weight": GOOD["a.weight"] * 5}, None, "`a.weight` is 5 times as large"),
    ({}, SkipReason.NONFINITE, "10 of the last 10 steps were not finite although all parameters are"),
    ({}, SkipReason.SPIKE, "10 of the last 10 steps were far beyond the usual"),
    ({}, None, "the loss rose"),
])  # fmt: skip
def test_the_probable_cause(now: dict[str, Any], skipped: SkipReason | None, words: str) -> None:
    history = tuple(step(number, skipped) for number in range(21, 31))
    cause, advice = probable_cause(facts_of(parameters=changes(GOOD, {**GOOD, **now}), history=history))
    assert words in cause
    assert advice.endswith(".")


def test_what_was_nothing_in_the_good_state_has_not_grown() -> None:
    parameters = changes(GOOD, {**GOOD, "b.bias": np.full(3, 0.01, dtype=np.float32)})
    assert [change.growth for change in parameters] == [1.0, 1.0]
    skipped = tuple(step(number, SkipReason.NONFINITE) for number in range(21, 31))
    cause, _ = probable_cause(facts_of(parameters=parameters, history=skipped))
    assert "were not finite although all parameters are" in cause


def test_the_report_says_from_where_to_where(tmp_path: Path) -> None:
    folder = tmp_path / "incidents" / "step-000030-rollback"
    text = write_report(folder, facts_of())
    assert text == (folder / "report.md").read_text(encoding="utf8") == as_markdown(facts_of())
    said = (
        "after 20 updates; 4 later ones are undone",
        "2 of at most 3",
        "0.25 of the scheduled",
        "| `a` | 2 | 1 | 2 |",
    )
    assert all(words in text for words in said)
    report = json.loads((folder / "report.json").read_text(encoding="utf8"))
    assert (report["undone"], report["number"], len(report["history"])) == (4, 2, 10)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
