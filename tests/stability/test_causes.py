"""Each rule gives its cause and says what it saw."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paddle_stable.stability.causes import (
    Cause,
    Evidence,
    InputFinding,
    SampleLoss,
    WeightFinding,
    diagnose,
)
from paddle_stable.stability.probes import FirstBad, Range
from paddle_stable.stability.replay import Operation
from paddle_stable.stability.step_report import SkipReason

SMALL, BAD = Range((2, 2), "float32", -1.0, 2.0, 0, 0), Range((2, 2), "float32", None, None, 4, 0)
LIKE = tuple(SampleLoss(position, 1.0, 2.0) for position in range(16))
NOTHING = Evidence(
    reason=SkipReason.NONFINITE,
    reproduced=True,
    first_bad=None,
    operation=None,
    odd_inputs=(),
    wild_weights=(),
    half_precision=None,
    finite_in_float32=None,
    growth=3.0,
    recurrent_layer="lstm",
    samples=LIKE,
    lr=1e-3,
    typical_weight=0.1,
    norms_before=[1.0] * 10,
)
ODD = (InputFinding(7, "inputs", "1 of 24 values are NaN or inf", float("inf")),)
WILD = (WeightFinding("head.weight", 5e4),)
SPOILT = (WeightFinding("w", float("nan")),)
RISING = [1.0, 1.2, 0.9, 1.1, 1.5, 1.3, 1.9, 2.2, 2.8]
LOOP = FirstBad("loop", "Loop", "forward", "output", (SMALL,), (BAD,), {"weight": SMALL})
ONE_STANDS_OUT = (*LIKE[1:], SampleLoss(9, 400.0, 2.0))
SPIKE: dict[str, Any] = {"reason": SkipReason.SPIKE, "losses_before": [1.0] * 10}


@pytest.mark.parametrize(("change", "cause", "said"), [
    ({"reproduced": False}, Cause.TRANSIENT, "came out usable"),
    ({"odd_inputs": ODD}, Cause.BAD_INPUT, "1 of 24 values are NaN or inf"),
    ({"wild_weights": WILD}, Cause.LEARNING_RATE, "`head.weight` has grown to 5e+04"),
    ({"wild_weights": (WeightFinding("w", float("nan")),)}, Cause.PARAMETER, "`w` holds NaN, although"),
    ({"wild_weights": (WeightFinding("w", float("inf")),)}, Cause.PARAMETER, "`w` holds inf, although"),
    ({"wild_weights": SPOILT, "norms_before": RISING}, Cause.LEARNING_RATE, "no longer finite"),
    ({"wild_weights": SPOILT, "losses_before": RISING}, Cause.LEARNING_RATE, "no longer finite"),
    ({"wild_weights": SPOILT, "lr": 0.5}, Cause.LEARNING_RATE, "no longer finite"),
    ({"wild_weights": (*SPOILT, *WILD)}, Cause.LEARNING_RATE, "no longer finite"),
    ({"typical_weight": 8.0}, Cause.LEARNING_RATE, "grown everywhere"),
    ({"half_precision": "float16", "finite_in_float32": True}, Cause.HALF_PRECISION, "65,504"),
    ({"operation": Operation("log", "forward", ("net",), "a.py:3")}, Cause.ARITHMETIC, "`log` (a.py:3)"),
    ({"operation": Operation("sqrt_grad", "backward", (), "")}, Cause.ARITHMETIC, "no finite slope"),
    ({"growth": 1e6}, Cause.RECURRENCE, "`lstm` grow by a factor of 1e+06"),
    ({"growth": float("inf")}, Cause.RECURRENCE, "beyond all bounds"),
    ({"operation": Operation("softmax", "forward", ("net",), "a.py:3")}, Cause.ARITHMETIC, "masked completely"),
    ({"first_bad": LOOP, "operation": Operation("matmul", "forward", ("loop",), "")}, Cause.RECURRENCE, "and again"),
    ({"first_bad": LOOP, "operation": Operation("cumsum", "forward", ("loop",), "")}, Cause.UNKNOWN, "none of"),
    ({"first_bad": LOOP}, Cause.UNKNOWN, "none of the known"),
    ({"lr": 0.5}, Cause.LEARNING_RATE, "learning rate of 0.5"),
    ({"norms_before": RISING}, Cause.LEARNING_RATE, "grown to more than"),
    ({"norms_before": [1.0] * 6 + [0.5, 90.0, 90.0]}, Cause.UNKNOWN, "none of the known"),
    (SPIKE, Cause.BAD_INPUT, "labels or targets of the whole batch"),
    ({**SPIKE, "gain": 3.1}, Cause.LEARNING_RATE, "3.1 times as large as it is given"),
    ({**SPIKE, "losses_before": RISING}, Cause.LEARNING_RATE, "grown to more than"),
    ({**SPIKE, "losses_before": [1.0] * 5}, Cause.LEARNING_RATE, "too few steps came before"),
    ({**SPIKE, "samples": ONE_STANDS_OUT}, Cause.BAD_INPUT, "look at its label"),
    ({**SPIKE, "samples": ONE_STANDS_OUT, "losses_before": RISING}, Cause.LEARNING_RATE, "grown to more than"),
    ({}, Cause.UNKNOWN, "none of the known causes"),
])  # fmt: skip
def test_each_piece_of_evidence_leads_to_its_cause(change: dict[str, Any], cause: Cause, said: str) -> None:
    diagnosis = diagnose(replace(NOTHING, **change))
    assert diagnosis.cause is cause
    assert said in diagnosis.because
    assert diagnosis.advice


@pytest.mark.parametrize(("change", "cause"), [
    ({"odd_inputs": ODD, "wild_weights": WILD}, Cause.BAD_INPUT),
    ({"wild_weights": WILD, "half_precision": "float16", "finite_in_float32": True}, Cause.LEARNING_RATE),
    ({"half_precision": "float16", "finite_in_float32": False}, Cause.UNKNOWN),
    ({"half_precision": "float16", "finite_in_float32": None}, Cause.UNKNOWN),
    ({"operation": Operation("matmul", "forward", (), "")}, Cause.UNKNOWN),
    ({"reproduced": False, "odd_inputs": ODD}, Cause.TRANSIENT),
], ids=str)  # fmt: skip
def test_the_stronger_evidence_decides(change: dict[str, Any], cause: Cause) -> None:
    assert diagnose(replace(NOTHING, **change)).cause is cause


@pytest.mark.parametrize("reproduced", [True, False])
def test_what_was_asked_for_is_named_and_the_judgement_stays_readable(reproduced: bool) -> None:
    evidence = replace(NOTHING, odd_inputs=ODD, reproduced=reproduced)
    diagnosis = diagnose(replace(evidence, disturbed=("nan_input", "huge_grad")))
    assert diagnosis.cause is Cause.ON_PURPOSE
    assert diagnosis.title == "disturbed on purpose: nan_input, huge_grad (faults)"
    assert diagnose(evidence).because in diagnosis.because
