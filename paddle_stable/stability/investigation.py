"""Computing an incident again in every way that tells something: the evidence that `causes` judges."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

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

_SAME = 0.02
"""A finite step is reproduced when loss and norm come out this close, relatively: on a GPU sums are not repeatable."""


def investigate(replay: Replay, facts: IncidentFacts, max_samples: int) -> Findings:
    """Compute an incident again in every way that tells something, and judge.

    Args:
        replay: with the weights of that moment.
        facts: the incident.
        max_samples: samples to compute one by one.
    """
    started = time.perf_counter()
    step, parts = facts.report.step, facts.parts
    plain = replay.run(step, parts)
    reproduced = _is_reproduced(facts, plain)
    odd = _odd_inputs(parts) if reproduced else []
    first, operation, growth, recurrent, in_float32 = None, None, 0.0, None, None
    samples: list[SampleLoss] = []
    left_out = 0
    if reproduced:
        through = plain.first_bad_part if plain.first_bad_part is not None else _heaviest(plain)
        probes = replay.probe(step, parts[: through + 1])
        growth, recurrent = _growth(probes)
        if not plain.is_finite:
            first = _first_bad(probes, plain, through)
            operation = _agreeing(replay.name_operation(step, parts[: through + 1]), first)
            if replay.precision.state()["dtype"] != "float32":
                in_float32 = replay.run(step, parts, full_precision=True).is_finite
        samples, left_out = _alone(replay, step, parts, odd, max_samples)
    weights = [
        (name, p.astype("float32").numpy()) for name, p in replay.model.named_parameters() if not p.stop_gradient
    ]
    dtype = replay.precision.state()["dtype"]
    evidence = Evidence(
        reason=facts.report.verdict.skipped,
        reproduced=reproduced,
        first_bad=first,
        operation=operation,
        odd_inputs=odd,
        wild_weights=_wild_weights(weights),
        half_precision=None if dtype == "float32" else dtype,
        finite_in_float32=in_float32,
        growth=growth,
        recurrent_layer=recurrent,
        samples=samples,
        lr=facts.report.lr,
        typical_weight=_typical([w for _, w in weights]),
        norms_before=[r.verdict.grad_norm for r in facts.history[:-1] if math.isfinite(r.verdict.grad_norm)],
    )
    seconds = time.perf_counter() - started
    return Findings(facts, evidence, diagnose(evidence), plain.loss, plain.grad_norm, seconds, left_out)


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


def _first_bad(probes: Probes, plain: Replayed, part: int) -> FirstBad | None:
    loss_is_finite = math.isfinite(plain.losses[part])
    forward = probes.first_bad_forward(loss_is_finite=loss_is_finite)
    if forward is not None:
        return forward
    return probes.first_bad_backward() if loss_is_finite else FirstBad(LOSS, "", "forward", "its value")


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


def _alone(
    replay: Replay, step: int, parts: Sequence[Batch], odd: Sequence[InputFinding], limit: int
) -> tuple[list[SampleLoss], int]:
    """Samples computed one by one, odd ones first, and how many were left out."""
    suspects = {finding.position for finding in odd}
    places = [
        (index not in suspects, number, row)
        for number, part in enumerate(parts)
        if part.weight > 0.0
        for row, index in enumerate(part.indices)
    ]
    samples = []
    for _, number, row in sorted(places)[:limit]:
        ((loss, norm),) = replay.samples(step, parts[number], [row])
        samples.append(SampleLoss(parts[number].indices[row], loss, norm))
    return samples, max(len(places) - limit, 0)


def _wild_weights(weights: Sequence[tuple[str, FloatArray]]) -> list[WeightFinding]:
    found = []
    for name, values in weights:
        size = float(np.abs(values).max(initial=0.0)) if np.isfinite(values).all() else math.inf
        if size > HUGE_WEIGHT:
            found.append(WeightFinding(name, size))
    return sorted(found, key=lambda finding: -finding.magnitude)


def _typical(weights: Sequence[FloatArray]) -> float:
    """Root mean square of all finite elements of matrices; 0 without any."""
    matrices = [w[np.isfinite(w)].astype(np.float64) for w in weights if w.ndim > 1]
    count = sum(w.size for w in matrices)
    return math.sqrt(sum(float(np.square(w).sum()) for w in matrices) / count) if count else 0.0
