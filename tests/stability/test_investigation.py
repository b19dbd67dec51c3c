"""What an investigation calls odd, wild, grown or the same: by hand, at the limits, and on a real run."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import paddle
import pytest
from paddle import nn

from paddle_stable.data.dataset import Batch
from paddle_stable.data.loader import Window
from paddle_stable.stability import investigation
from paddle_stable.stability.causes import HUGE_WEIGHT, ODD_INPUT_RATIO, Cause
from paddle_stable.stability.incident_files import IncidentFacts
from paddle_stable.stability.incident_report import Findings
from paddle_stable.stability.probes import LOSS, FirstBad, LayerCall, Probes, Range
from paddle_stable.stability.replay import Operation, Replay, Replayed
from paddle_stable.stability.step_report import SkipReason, StepReport, Verdict
from paddle_stable.trainer import Trainer

from .incident_sample import open_run, spoiled, take_steps

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
        ([NAN, 1.0], NAN),
        ([-INF], INF),
        ([], None),
    ],
)
def test_wild_weights_lie_beyond_the_limit(values: list[float], magnitude: float | None) -> None:
    found = investigation._wild_weights([("w", np.array(values, dtype=np.float64)), ("b", np.ones(3))])
    assert [w.name for w in found] == ([] if magnitude is None else ["w"])
    assert [w.magnitude for w in found] == pytest.approx([] if magnitude is None else [magnitude], nan_ok=True)


def test_the_wildest_weight_comes_first() -> None:
    weights = [("a", np.array([2e3])), ("b", np.array([NAN])), ("c", np.array([9e4]))]
    assert [found.name for found in investigation._wild_weights(weights)] == ["b", "c", "a"]


def test_the_typical_weight_is_the_root_mean_square_of_matrices() -> None:
    bias = np.full(3, 100.0)
    assert investigation._typical([np.array([[3.0, NAN]]), np.array([[4.0], [INF]]), bias]) == math.sqrt(12.5)
    assert investigation._typical([bias]) == investigation._typical([]) == 0.0
    assert investigation._typical([np.full((1, 2), 1e30, np.float32)]) == pytest.approx(1e30)


def test_the_gain_is_that_of_the_median_matrix() -> None:
    twice, odd, kernel = np.full((4, 9), 1.0), np.array([[1e9, NAN]]), np.full((5, 3, 2, 2), 0.5)
    assert investigation._gain([twice, np.full(3, 100.0)]) == pytest.approx(2.0)
    assert investigation._gain([kernel]) == pytest.approx(0.5 * math.sqrt(12))
    assert investigation._gain([twice, odd, kernel]) == pytest.approx(2.0)
    assert investigation._gain([np.ones(3)]) == 0.0


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
    seen = investigation._Seen()
    incident = replace(facts(SkipReason.NONFINITE), parts=tuple(parts))
    investigation._look_at_samples(cast(Replay, Listening()), incident, suspects, limit, seen)
    assert [(sample.position, sample.loss, sample.grad_norm) for sample in seen.samples] == [
        (position, float(position), 3.0) for position in (2, 0, 1, 3)[:limit]
    ]
    assert seen.samples_left_out == max(4 - limit, 0)


def test_suspicious_samples_are_computed_even_when_few_may_be(tmp_path: Path) -> None:
    trainer = open_run(tmp_path, forensics__max_samples=2)
    window = spoiled(next(trainer.loader.steps()), row=11, value=1e30)
    trainer.train_step(iter([window]))
    inputs = investigation._odd_inputs(window.parts)
    assert [finding.position for finding in inputs] == [window.parts[0].indices[11]]
    seen, incident = investigation._Seen(), replace(facts(SkipReason.NONFINITE), parts=window.parts)
    investigation._look_at_samples(trainer.forensics._replay, incident, inputs, 2, seen)
    assert seen.samples[0].position == window.parts[0].indices[11]
    assert (len(seen.samples), seen.samples_left_out) == (2, 14)


def test_ordinary_samples_are_not_suspicious(tmp_path: Path) -> None:
    trainer = open_run(tmp_path)
    windows = trainer.loader.steps()
    assert all(investigation._odd_inputs(next(windows).parts) == [] for _ in range(18))


def test_what_was_usual_before_is_part_of_the_evidence(tmp_path: Path) -> None:
    trainer = open_run(tmp_path)
    windows = trainer.loader.steps()
    take_steps(trainer, windows, 3)
    report = trainer.train_step(iter([spoiled(next(windows))]))
    before = trainer.forensics._history
    found = trainer.forensics._facts(report, (), trainer.monitor)
    found = replace(found, parts=next(windows).parts, history=(*list(before)[:3], report))
    evidence = investigation.investigate(trainer.forensics._replay, found, 1).evidence
    assert list(evidence.losses_before) == [r.verdict.loss for r in list(before)[:3]]
    assert list(evidence.norms_before) == [r.verdict.grad_norm for r in list(before)[:3]]
    assert 0.1 < evidence.gain < 1.5


def test_values_that_differ_are_not_called_reproduced(tmp_path: Path) -> None:
    trainer = open_run(tmp_path)
    window = next(trainer.loader.steps())
    report = trainer.train_step(iter([window]))
    facts = trainer.forensics._facts(report, window.parts, trainer.monitor)
    replay = trainer.forensics._replay
    assert not investigation.investigate(replay, facts, 4).evidence.reproduced  # finite, and now of other weights
    assert np.isfinite(replay.run(1, window.parts).grad_norm)


class Masking(nn.Layer):
    """Attention over steps with a mask of -inf, made outside of it, and a head that may take a logarithm of zero."""

    def __init__(self, *, masks_all: bool) -> None:
        super().__init__()
        self.masks_all = masks_all
        self.inside, self.attention = nn.Linear(2, 16), nn.MultiHeadAttention(16, 2)
        self.head = Head()

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        steps, is_marked = x.shape[1], x[:, :, 0] == MARK
        later = paddle.triu(paddle.full([steps, steps], -INF), 1)
        minus_inf = paddle.full_like(x[:, :, 0], -INF)
        hidden_samples = paddle.where(is_marked, minus_inf, paddle.zeros_like(minus_inf)).unsqueeze([1, 2])
        state = self.inside(paddle.clip(x, -3.0, 3.0))
        attended = self.attention(state, state, state, hidden_samples if self.masks_all else later)
        is_positive = paddle.ones_like(x[:, :1, 0]) if self.masks_all else (~is_marked[:, :1]).astype("float32")
        return self.head(attended.mean(1), is_positive)


class Head(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 1)

    def forward(self, x: paddle.Tensor, positive: paddle.Tensor) -> paddle.Tensor:
        return self.out(x) + paddle.log(positive)


class AttentionByHand(nn.Layer):
    """The same in one layer with a parameter of its own, and no recurrence anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = self.create_parameter([2, 48])
        self.out = nn.Linear(16, 1)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        query, key, value = paddle.split(paddle.matmul(paddle.clip(x, -3.0, 3.0), self.weight), 3, axis=-1)
        minus_inf = paddle.full_like(x[:, :, 0], -INF)
        mask = paddle.where(x[:, :, 0] == MARK, minus_inf, paddle.zeros_like(minus_inf)).unsqueeze(1)
        return self.out((nn.functional.softmax(paddle.matmul(query, key, transpose_y=True) + mask) @ value).mean(1))


MARK = 99.0


def explained(trainer: Trainer, window: Window) -> Findings:
    """A step of which one sample is marked by all its values."""
    part = window.parts[0]
    inputs = part["inputs"].numpy().copy()
    inputs[3, :, 0] = MARK
    marked = replace(part, tensors={**part.tensors, "inputs": paddle.to_tensor(inputs)})
    report = trainer.train_step(iter([replace(window, parts=(marked,))]))
    assert report.verdict.skipped is SkipReason.NONFINITE
    incident = trainer.forensics._facts(report, (marked,), trainer.monitor)
    return investigation.investigate(trainer.forensics._replay, incident, 4)


@pytest.mark.parametrize(
    ("network", "layer", "operation"),
    [
        (lambda: Masking(masks_all=False), "head", "log"),
        (lambda: Masking(masks_all=True), "attention", "softmax"),
        (lambda: nn.Sequential(("by_hand", AttentionByHand())), "by_hand", "softmax"),
    ],
    ids=["a sound mask", "a row that is masked completely", "the same in one layer"],
)
def test_a_mask_of_minus_inf_does_not_hide_layer_and_operation(
    tmp_path: Path, network: Any, layer: str, operation: str
) -> None:
    trainer = open_run(tmp_path, lambda _: network())
    found = explained(trainer, next(trainer.loader.steps()))
    assert found.evidence.first_bad is not None
    assert found.evidence.operation is not None
    assert (found.evidence.first_bad.layer, found.evidence.operation.name) == (layer, operation)
    assert found.diagnosis.cause is Cause.ARITHMETIC
    assert found.not_computed == ()


class NeedsTwo(nn.Layer):
    """A network that does not run on a sample alone."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(24, 1)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        if x.shape[0] < 2:
            raise AssertionError("needs two samples")
        return self.out(x.flatten(1))


def test_a_network_that_cannot_compute_a_sample_alone_is_explained_all_the_same(tmp_path: Path) -> None:
    trainer = open_run(tmp_path, lambda _: NeedsTwo(), forensics__max_samples=7)
    trainer.train_step(iter([spoiled(next(trainer.loader.steps()))]))
    assert trainer.incident is not None
    assert "step 1 explained: bad input, first at `out`" in trainer.incident.headline
    assert "AssertionError: needs two samples" in trainer.incident.text
    assert "and 2 more; report.json has them" in trainer.incident.text


@pytest.mark.parametrize("part", ["probe", "name_operation", "samples"])
def test_what_fails_in_one_part_of_an_explanation_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def fail(*_: Any) -> Any:
        raise ArithmeticError("not\ntoday")

    monkeypatch.setattr(Replay, part, fail)
    trainer = open_run(tmp_path)
    trainer.train_step(iter([spoiled(next(trainer.loader.steps()))]))
    assert trainer.incident is not None
    assert "explained: bad input" in trainer.incident.headline
    assert "ArithmeticError: not today" in trainer.incident.text


def test_float32_is_not_tried_with_weights_in_half_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half = {"amp__dtype": "float16", "amp__emulate": True, "amp__init_scale": 1.0, "amp__min_scale": 1.0}
    monkeypatch.setattr(Replay, "holds_half_precision", True)
    trainer = open_run(tmp_path, **half)
    trainer.train_step(iter([spoiled(next(trainer.loader.steps()))]))
    assert trainer.incident is not None
    assert "the step in float32: ValueError: the weights themselves are in half precision" in trainer.incident.text
    report = json.loads((tmp_path / "run/incidents/step-000001/report.json").read_text(encoding="utf8"))
    assert report["finite_in_float32"] is None
