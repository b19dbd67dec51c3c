"""Values that everything else reads: complete, frozen, and the same after a way through JSON."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, asdict, fields, replace
from typing import Any

import pytest

from paddle_stable.stability.incident_files import to_json
from paddle_stable.stability.step_report import SkipReason, StepReport, Verdict

PLAIN = Verdict(loss=0.5, samples=4, grad_norm=2.0, clip_scale=1.0, clipped=False, skipped=None)


def test_a_step_is_applied_when_nothing_skipped_it() -> None:
    assert PLAIN.applied
    assert not any(replace(PLAIN, skipped=reason).applied for reason in SkipReason)


def test_what_is_not_said_is_that_nothing_happened() -> None:
    defaults = {"spike": (), "clipped_groups": {}, "group_norms": {}, "loss_scale": 1.0, "dropped": 0}
    found = asdict(PLAIN)
    assert {name: found[name] for name in defaults} == defaults
    assert not PLAIN.stop_requested
    other = Verdict(loss=0.5, samples=4, grad_norm=2.0, clip_scale=1.0, clipped=False, skipped=None)
    assert other == PLAIN
    assert other.group_norms is not PLAIN.group_norms


@pytest.mark.parametrize("value", [PLAIN, StepReport(1, 0.0, PLAIN, 1e-3, seconds=0.1, data_seconds=0.0)], ids=str)
def test_nothing_can_be_changed_or_added(value: Any) -> None:
    for field in fields(value):
        with pytest.raises(FrozenInstanceError):
            setattr(value, field.name, None)
    with pytest.raises((AttributeError, TypeError)):
        value.note = "more"


@pytest.mark.parametrize("reason", [None, *SkipReason], ids=str)
def test_a_reason_is_one_word_that_comes_back_from_json(reason: SkipReason | None) -> None:
    said = json.loads(to_json(asdict(replace(PLAIN, skipped=reason))))["skipped"]
    assert (None if said is None else SkipReason(said)) is reason


def test_reasons_are_the_words_of_the_dashboard() -> None:
    """`stability/skipped_<word>`: another word would begin another curve."""
    assert [reason.value for reason in SkipReason] == ["overflow", "nonfinite", "spike", "withheld"]


def test_every_field_of_a_step_comes_back_as_it_was() -> None:
    verdict = Verdict(
        loss=math.inf, samples=4, grad_norm=-math.inf, clip_scale=0.5, clipped=True, skipped=SkipReason.SPIKE,
        spike=("loss", "norm"), clipped_groups={"head": True}, group_norms={"head": math.inf}, loss_scale=8.0,
        dropped=2, stop_requested=True,
    )  # fmt: skip
    report = StepReport(7, 1.25, verdict, 1e-3, seconds=0.5, data_seconds=0.25)
    assert StepReport.from_state(json.loads(to_json(report.state()))) == report
    assert StepReport.from_state(report.state()) == report
