"""What an investigation calls odd, wild, grown or the same: by hand, at the limits, and on a real run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import paddle
import pytest

from paddle_stable.data.dataset import Batch
from paddle_stable.stability import investigation
from paddle_stable.stability.causes import HUGE_WEIGHT, ODD_INPUT_RATIO
from paddle_stable.stability.incident_files import IncidentFacts
from paddle_stable.stability.probes import LOSS, FirstBad, LayerCall, Probes, Range
from paddle_stable.stability.replay import Operation, Replay, Replayed
from paddle_stable.stability.step_report import SkipReason, StepReport, Verdict

from .incident_sample import open_run, spoiled

NAN, INF = math.nan, math.inf


def batch(rows: Any, *, first: int = 0, weight: float = 1.0, dtype: str = "float32") -> Batch:
    values = np.array(rows, dtype=dtype)
    return Batch({"x": paddle.to_tensor(values)}, tuple(range(first, first + len(values))), weight)


def odd(*parts: Batch) -> list[tuple[int, str, float]]:
    return [(found.position, found.what, found.magnitude) for found in investigation._odd_inputs(parts)]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_value_that_is_not_finite_is_named_by_sample_and_place(bad: float) -> None:
    rows = np.ones((3, 2, 2))
    rows[1, 1, 0] = rows[1, 1, 1] = bad
    assert odd(batch(rows, first=40)) == [(41, "2 of 4 values are NaN or inf, the first at [1, 0]", INF)]


def test_odd_samples_are_found_across_micro_batches_the_worst_first() -> None:
    parts = [batch([[1.0], [-500.0], [1.0]]), batch([[NAN], [2000.0], [1.0]], first=3)]
    assert [(position, size) for position, _, size in odd(*parts)] == [(3, INF), (4, 2000.0), (1, 500.0)]
    assert odd(*parts)[2][1] == "magnitude 500 at [0], where the largest of other samples is near 1"


@pytest.mark.parametrize(("factor", "found"), [(0.99, 0), (1.0, 0), (1.01, 1)])
def test_odd_is_beyond_so_many_times_the_usual(factor: float, found: int) -> None:
    assert len(odd(batch([[1.0], [1.0], [1.0], [factor * ODD_INPUT_RATIO]]))) == found


@pytest.mark.parametrize(
    "parts",
    [
        [batch([[7.0]])],
        [batch([[0.0], [0.0], [9.0]])],  # most are nothing: no size is usual
        [batch([[1.0], [1.0]]), batch([[NAN]], first=2, weight=0.0)],  # a stand-in
        [batch([[1], [1], [10**6]], dtype="int64")],  # numbers of words
        [batch(np.zeros((3, 0)))],
        [batch([[1.0]], weight=0.0)],
    ],
    ids=["alone", "mostly nothing", "stand-in", "whole numbers", "empty", "only a stand-in"],
)
def test_these_are_not_odd(parts: list[Batch]) -> None:
    assert odd(*parts) == []


def test_a_sample_of_one_number_has_no_place() -> None:
    assert odd(batch([1.0, NAN, 1.0])) == [(1, "1 of 1 values are NaN or inf, the first at its only value", INF)]


@pytest.mark.parametrize(
    ("values", "magnitude"),
    [
        ([HUGE_WEIGHT], None),
        ([-1.01 * HUGE_WEIGHT, 2.0], 1.01 * HUGE_WEIGHT),
        ([NAN, 1.0], INF),
        ([-INF], INF),
        ([], None),
    ],
)
def test_wild_weights_lie_beyond_the_limit(values: list[float], magnitude: float | None) -> None:
    found = investigation._wild_weights([("w", np.array(values, dtype=np.float64)), ("b", np.ones(3))])
    assert [(w.name, w.magnitude) for w in found] == ([] if magnitude is None else [("w", magnitude)])


def test_the_wildest_weight_comes_first() -> None:
    weights = [("a", np.array([2e3])), ("b", np.array([NAN])), ("c", np.array([9e4]))]
    assert [found.name for found in investigation._wild_weights(weights)] == ["b", "c", "a"]


def test_the_typical_weight_is_the_root_mean_square_of_matrices() -> None:
    bias = np.full(3, 100.0)
    assert investigation._typical([np.array([[3.0, NAN]]), np.array([[4.0], [INF]]), bias]) == math.sqrt(12.5)
    assert investigation._typical([bias]) == investigation._typical([]) == 0.0
    assert investigation._typical([np.full((1, 2), 1e30, np.float32)]) == pytest.approx(1e30)


def facts(reason: SkipReason | None, world_size: int = 1) -> IncidentFacts:
    verdict = Verdict(2.0, 4, 10.0, 1.0, clipped=False, skipped=reason)
    report = StepReport(3, 0.5, verdict, 1e-3, seconds=0.1, data_seconds=0.0)
    return IncidentFacts(report, (), {}, (report,), {}, 0, world_size, {"dtype": "float32"})


@pytest.mark.parametrize(
    ("reason", "world_size", "loss", "norm", "bad_part", "expected"),
    [
        (SkipReason.NONFINITE, 1, NAN, NAN, 0, True),
        (SkipReason.NONFINITE, 1, 2.0, 10.0, None, False),
        (SkipReason.SPIKE, 1, NAN, NAN, 0, True),
        (SkipReason.SPIKE, 1, 2.0, 10.0, None, True),
        (SkipReason.SPIKE, 1, 2.03, 9.85, None, True),
        (SkipReason.SPIKE, 1, 2.05, 10.0, None, False),
        (SkipReason.SPIKE, 1, 2.0, 10.3, None, False),
        (SkipReason.SPIKE, 2, 0.1, 2.5, None, True),
        (SkipReason.SPIKE, 2, 0.1, 2.4, None, False),
        (None, 1, 2.0, 10.0, None, False),
    ],
)
def test_a_step_is_reproduced_when_it_is_as_bad_again(
    reason: SkipReason | None, world_size: int, loss: float, norm: float, bad_part: int | None, expected: bool
) -> None:
    replayed = Replayed(loss, (loss,), {"w": norm}, bad_part)
    assert investigation._is_reproduced(facts(reason, world_size), replayed) is expected


def test_the_heaviest_micro_batch_has_the_largest_loss_of_either_sign() -> None:
    assert investigation._heaviest(Replayed(0.0, (1.0, -7.0, 5.0), {}, None)) == 1


FORWARD, BACKWARD = FirstBad("net.log", "Log", "forward", "output"), FirstBad("net", "Net", "backward", "gradient")
BEHIND = FirstBad(LOSS, "", "forward", "its value")


@pytest.mark.parametrize(
    ("operation", "first", "agrees"),
    [
        (Operation("log", "forward", ("net", "net.log"), ""), FORWARD, True),
        (Operation("log", "forward", ("net", "net.mask"), ""), FORWARD, False),
        (Operation("log", "forward", (), ""), FORWARD, False),
        (Operation("log", "forward", (), ""), BEHIND, True),
        (Operation("sqrt_grad", "backward", (), ""), BACKWARD, True),
        (Operation("sqrt_grad", "backward", (), ""), FORWARD, False),
        (Operation("log", "forward", ("net.log",), ""), replace(FORWARD, from_batch=True), False),
        (Operation("log", "forward", ("net.log",), ""), None, False),
        (None, FORWARD, False),
    ],
)
def test_an_operation_of_another_layer_is_not_to_blame(
    operation: Operation | None, first: FirstBad | None, agrees: bool
) -> None:
    assert investigation._agreeing(operation, first) is (operation if agrees else None)


def repeated(*sizes: float, name: str = "cell", growth: float = 0.0) -> list[LayerCall]:
    """Calls of one layer that put these magnitudes out, one after the other."""
    layer, calls = paddle.nn.Identity(), []
    for number, size in enumerate(sizes):
        finite = math.isfinite(size)
        output = Range((1,), "float32", 0.0 if finite else None, size if finite else None, 0 if finite else 1, 0)
        calls.append(LayerCall(number, name, layer, None, outputs=[output], growth=growth))
    return calls


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([], (0.0, None)),
        (repeated(*[2.0] * 7, 900.0)[:7], (0.0, None)),  # too few calls to be a sequence
        (repeated(*[2.0] * 7, 900.0), (450.0, "cell")),
        (repeated(2.0, 900.0, *[2.0] * 6), (1.0, "cell")),  # large in the first half only
        (repeated(0.0, *[9.0] * 9), (0.0, None)),
        (repeated(1.0, *[NAN] * 9), (INF, "cell")),
        (repeated(1.0, growth=30.0, name="lstm") + repeated(*[1.0] * 7, 20.0), (30.0, "lstm")),
    ],
    ids=["nothing", "few", "grown", "early", "from nothing", "to NaN", "recurrent layer"],
)
def test_growth_is_the_largest_along_a_sequence(calls: list[LayerCall], expected: tuple[float, str | None]) -> None:
    probes = Probes()
    probes.calls = calls
    assert investigation._growth(probes) == expected


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_odd_samples_are_computed_alone_first_and_stand_ins_never(limit: int) -> None:
    class Listening:
        """A replay whose loss says which sample it was."""

        def samples(self, step: int, part: Batch, rows: list[int]) -> list[tuple[float, float]]:
            return [(float(part.indices[row]), float(step)) for row in rows]

    parts = [batch([[1.0], [1.0]]), batch([[9.0], [1.0]], first=2), batch([[5.0]], first=4, weight=0.0)]
    suspects = [investigation.InputFinding(2, "x", "", 9.0)]
    found, left_out = investigation._alone(cast(Replay, Listening()), 8, parts, suspects, limit)
    assert [(sample.position, sample.loss, sample.grad_norm) for sample in found] == [
        (position, float(position), 8.0) for position in (2, 0, 1, 3)[:limit]
    ]
    assert left_out == max(4 - limit, 0)


def test_suspicious_samples_are_computed_even_when_few_may_be(tmp_path: Path) -> None:
    trainer = open_run(tmp_path, forensics__max_samples=2)
    window = spoiled(next(trainer.loader.steps()), row=11, value=1e30)
    trainer.train_step(iter([window]))
    inputs = investigation._odd_inputs(window.parts)
    assert [finding.position for finding in inputs] == [window.parts[0].indices[11]]
    samples, left_out = investigation._alone(trainer.forensics._replay, 1, window.parts, inputs, 2)
    assert (samples[0].position, len(samples), left_out) == (window.parts[0].indices[11], 2, 14)


def test_ordinary_samples_are_not_suspicious(tmp_path: Path) -> None:
    trainer = open_run(tmp_path)
    windows = trainer.loader.steps()
    assert all(investigation._odd_inputs(next(windows).parts) == [] for _ in range(18))


def test_values_that_differ_are_not_called_reproduced(tmp_path: Path) -> None:
    trainer = open_run(tmp_path)
    window = next(trainer.loader.steps())
    report = trainer.train_step(iter([window]))
    facts = trainer.forensics._facts(report, window.parts, trainer.monitor)
    replay = trainer.forensics._replay
    assert not investigation.investigate(replay, facts, 4).evidence.reproduced  # finite, and now of other weights
    assert np.isfinite(replay.run(1, window.parts).grad_norm)
