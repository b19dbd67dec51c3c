"""Computing an incident again in every way that tells something: the evidence that `causes` judges."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import numpy.typing as npt

from paddle_stable.data.dataset import Batch
from paddle_stable.stability.causes import (
    HUGE_WEIGHT,
    ODD_INPUT_RATIO,
    Evidence,
    InputFinding,
    SampleLoss,
    WeightFinding,
    diagnose,
)
from paddle_stable.stability.incident_files import IncidentFacts
from paddle_stable.stability.incident_report import Findings
from paddle_stable.stability.probes import LOSS, FirstBad, Probes, Range
from paddle_stable.stability.replay import Operation, Replay, Replayed
from paddle_stable.stability.step_report import SkipReason

FloatArray = npt.NDArray[np.floating[Any]]

_SHOWN_ERROR = 300
"""Characters of a message in the report."""
_SAME = 0.02
"""A finite step is reproduced when loss and norm come out this close, relatively: on a GPU sums are not repeatable."""


@final
@dataclass
class _Seen:
    """What has been seen in a reproduced step so far, and what could not be computed."""

    first: FirstBad | None = None
    operation: Operation | None = None
    growth: float = 0.0
    recurrent: str | None = None
    finite_in_float32: bool | None = None
    samples: list[SampleLoss] = field(default_factory=list)
    samples_left_out: int = 0
    not_computed: list[str] = field(default_factory=list)

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """A part of the investigation, whose failure is not to take the others with it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  A network may raise anything, on one sample alone for example.
            words = " ".join(str(error).split())  # Paddle's messages are a page
            self.not_computed.append(f"{what}: {type(error).__name__}: {words[:_SHOWN_ERROR]}")


def investigate(replay: Replay, facts: IncidentFacts, max_samples: int, *, disturbed: Sequence[str] = ()) -> Findings:
    """Compute an incident again in every way that tells something, and judge.

    Args:
        replay: with the weights of that moment.
        facts: the incident.
        max_samples: samples to compute one by one.
        disturbed: kinds of the recipe's faults that happened in the step.
    """
    started = time.perf_counter()
    plain = replay.run(facts.report.step, facts.parts)
    reproduced = _is_reproduced(facts, plain)
    odd = _odd_inputs(facts.parts) if reproduced else []
    seen = _look(replay, facts, plain, odd, max_samples) if reproduced else _Seen()
    weights = [
        (name, p.astype("float32").numpy()) for name, p in replay.model.named_parameters() if not p.stop_gradient
    ]
    dtype = replay.precision.scaling.state()["dtype"]
    before = [r.verdict for r in facts.history[:-1]]
    evidence = Evidence(
        reason=facts.report.verdict.skipped,
        reproduced=reproduced,
        first_bad=seen.first,
        operation=seen.operation,
        odd_inputs=odd,
        wild_weights=_wild_weights(weights),
        half_precision=None if dtype == "float32" else dtype,
        finite_in_float32=seen.finite_in_float32,
        growth=seen.growth,
        recurrent_layer=seen.recurrent,
        samples=seen.samples,
        lr=facts.report.lr,
        typical_weight=_typical([w for _, w in weights]),
        gain=_gain([w for _, w in weights]),
        norms_before=[verdict.grad_norm for verdict in before if math.isfinite(verdict.grad_norm)],
        losses_before=[verdict.loss for verdict in before if math.isfinite(verdict.loss)],
        disturbed=disturbed,
    )
    return Findings(
        facts,
        evidence,
        diagnose(evidence),
        plain.loss,
        plain.grad_norm,
        seconds=time.perf_counter() - started,
        samples_left_out=seen.samples_left_out,
        not_computed=tuple(seen.not_computed),
    )


def _look(
    replay: Replay, facts: IncidentFacts, plain: Replayed, odd: Sequence[InputFinding], max_samples: int
) -> _Seen:
    """Everything that is worth computing once a step has come out as bad again."""
    seen, step, parts = _Seen(), facts.report.step, facts.parts
    through = plain.first_bad_part if plain.first_bad_part is not None else _heaviest(plain)
    with seen.attempt("the first bad layer"):
        probes = replay.probe(step, parts[: through + 1])
        seen.growth, seen.recurrent = _growth(probes)
        suspects = [] if plain.is_finite else _suspects(probes, plain, through)
        seen.first = suspects[0] if suspects else None
        with seen.attempt("the operation"):
            seen.first, seen.operation = _convicted(replay, step, parts[: through + 1], suspects)
    if not plain.is_finite and replay.precision.scaling.state()["dtype"] != "float32":
        with seen.attempt("the step in float32"):
            seen.finite_in_float32 = _is_finite_in_float32(replay, step, parts)
    _look_at_samples(replay, facts, odd, max_samples, seen)
    return seen


def _is_finite_in_float32(replay: Replay, step: int, parts: Sequence[Batch]) -> bool:
    if replay.holds_half_precision:
        raise ValueError("the weights themselves are in half precision (amp.level: O2)")
    return replay.run(step, parts, full_precision=True).is_finite


def _is_reproduced(facts: IncidentFacts, plain: Replayed) -> bool:
    verdict = facts.report.verdict
    if verdict.skipped is not SkipReason.SPIKE:
        return not plain.is_finite
    if not plain.is_finite:
        return True
    if facts.world_size > 1:
        # This process has only its part of the gradient: it saw the spike when its part is not below its share.
        return plain.grad_norm >= 0.5 * verdict.grad_norm / facts.world_size
    return math.isclose(plain.loss, verdict.loss, rel_tol=_SAME) and math.isclose(
        plain.grad_norm, verdict.grad_norm, rel_tol=_SAME
    )


def _heaviest(plain: Replayed) -> int:
    return int(np.argmax(np.abs(plain.losses)))


def _suspects(probes: Probes, plain: Replayed, part: int) -> list[FirstBad]:
    """Where the first value that is not finite may have appeared, the likeliest first."""
    loss_is_finite = math.isfinite(plain.losses[part])
    forward = probes.forward_suspects(loss_is_finite=loss_is_finite)
    if forward:
        return forward
    backward = probes.first_bad_backward() if loss_is_finite else FirstBad(LOSS, "", "forward", "its value")
    return [backward] if backward is not None else []


def _convicted(
    replay: Replay, step: int, parts: Sequence[Batch], suspects: Sequence[FirstBad]
) -> tuple[FirstBad | None, Operation | None]:
    """The first suspect in whose own arithmetic an operation made the value; without any, the first."""
    for suspect in suspects:
        operation = _agreeing(replay.name_operation(step, parts, suspect), suspect)
        if operation is not None:
            return suspect, operation
    return (suspects[0] if suspects else None), None


def _agreeing(operation: Operation | None, first: FirstBad | None) -> Operation | None:
    """The operation, unless it is another one than the layer's: -inf in an attention mask, say, harms nobody."""
    if operation is None or first is None or first.from_batch or operation.direction != first.direction:
        return None
    if first.direction == "forward":
        return operation if (first.layer in operation.layers) == (first.layer != LOSS) else None
    return operation


def _growth(probes: Probes) -> tuple[float, str | None]:
    """Largest growth along a sequence, and where: inside a recurrent layer, or over the calls of a repeated one."""
    found = [(call.growth, call.name) for call in probes.calls if call.growth > 0.0]
    by_name: dict[str, list[Range]] = {}
    for call in probes.calls:
        if call.outputs:
            by_name.setdefault(call.name, []).append(call.outputs[0])
    for name, outputs in by_name.items():
        sizes = [r.magnitude for r in outputs]
        if len(sizes) >= 8 and sizes[0] > 0.0 and math.isfinite(sizes[0]):
            found.append((max(sizes[len(sizes) // 2 :]) / sizes[0], name))
    return max(found, default=(0.0, None))


def _odd_inputs(parts: Sequence[Batch]) -> list[InputFinding]:
    """Samples with values that are not finite, or far beyond those of the other samples; the worst first."""
    found = []
    for name in parts[0].tensors:
        rows = [
            (index, np.asarray(values, dtype=np.float64))
            for part in parts
            if part.weight > 0.0 and part.tensors[name].is_floating_point()
            for index, values in zip(part.indices, part.tensors[name].astype("float32").numpy(), strict=True)
        ]
        sizes = np.array([np.abs(values).max(initial=0.0) for _, values in rows])
        known = sizes[np.isfinite(sizes)]
        usual = float(np.median(known)) if known.size else 0.0
        for (index, values), size in zip(rows, sizes, strict=True):
            if not math.isfinite(size):
                bad = ~np.isfinite(values)
                at = _element(values, bad)
                what = f"{int(bad.sum())} of {values.size} values are NaN or inf, the first at {at}"
                found.append(InputFinding(index, name, what, math.inf))
            elif usual > 0.0 and size > ODD_INPUT_RATIO * usual:
                at = _element(values, np.abs(values) == size)
                what = f"magnitude {size:.4g} at {at}, where the largest of other samples is near {usual:.3g}"
                found.append(InputFinding(index, name, what, float(size)))
    return sorted(found, key=lambda finding: -finding.magnitude)


def _element(values: FloatArray, where: npt.NDArray[np.bool_]) -> str:
    """Place of the first element that is set, such as [5, 0]; for a sample of one number just that."""
    return str(np.argwhere(where)[0].tolist()) if values.ndim else "its only value"


def _look_at_samples(
    replay: Replay, facts: IncidentFacts, odd: Sequence[InputFinding], limit: int, seen: _Seen
) -> None:
    """Compute samples one by one, odd ones first."""
    parts, suspects = facts.parts, {finding.position for finding in odd}
    places = [
        (index not in suspects, number, row)
        for number, part in enumerate(parts)
        if part.weight > 0.0
        for row, index in enumerate(part.indices)
    ]
    seen.samples_left_out = max(len(places) - limit, 0)
    for _, number, row in sorted(places)[:limit]:
        with seen.attempt(f"sample {parts[number].indices[row]} alone"):
            ((loss, norm),) = replay.samples(facts.report.step, parts[number], [row])
            seen.samples.append(SampleLoss(parts[number].indices[row], loss, norm))


def _wild_weights(weights: Sequence[tuple[str, FloatArray]]) -> list[WeightFinding]:
    found = []
    for name, values in weights:
        size = float(np.abs(values).max(initial=0.0))  # NaN when one of them is
        if not size <= HUGE_WEIGHT:
            found.append(WeightFinding(name, size))
    return sorted(found, key=lambda finding: -finding.magnitude if finding.is_finite else -math.inf)


def _gain(weights: Sequence[FloatArray]) -> float:
    """Root mean square times the root of the number of inputs, over finite elements: that of the median matrix."""
    gains = []
    for weight in weights:
        values = weight[np.isfinite(weight)].astype(np.float64)
        if weight.ndim > 1 and values.size:
            # Which axis of a matrix has the inputs depends on its layer: the shorter one overstates nothing.
            inputs = min(weight.shape) if weight.ndim == 2 else math.prod(weight.shape[1:])
            gains.append(math.sqrt(float(np.square(values).mean()) * inputs))
    return float(np.median(gains)) if gains else 0.0


def _typical(weights: Sequence[FloatArray]) -> float:
    """Root mean square of all finite elements of matrices; 0 without any."""
    matrices = [w[np.isfinite(w)].astype(np.float64) for w in weights if w.ndim > 1]
    count = sum(w.size for w in matrices)
    return math.sqrt(sum(float(np.square(w).sum()) for w in matrices) / count) if count else 0.0
