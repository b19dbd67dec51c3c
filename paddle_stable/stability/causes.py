"""The probable cause of an incident in plain words: those that can be told apart, from evidence of a replay.

The rules are plain comparisons, asked in a fixed order; each says what it saw. They are held to a figure by
`benchmarks/forensics.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import final

import numpy as np

from paddle_stable.stability.probes import FirstBad
from paddle_stable.stability.replay import Operation
from paddle_stable.stability.step_report import SkipReason

ODD_INPUT_RATIO = 100.0
"""A sample whose largest value is that many times the others' is odd. Windows of market series stay below 15."""
HUGE_WEIGHT = 1e3
"""No layer of the three tasks has a weight beyond 30 when it trains well."""
GROWN_WEIGHT = 3.0
"""Root mean square of all weights: initial values lie near 1 / sqrt(width), trained ones rarely twice as far out."""
GROWN_GAIN = 3.0
"""How many times larger the median matrix makes what it is given. The three tasks begin at 0.08 to 1.4."""
WILD_LR_RATIO = 0.3
"""AdamW changes a weight by about the learning rate in every step; that part of a layer's usual weight is too much."""
GROWTH_ALONG_SEQUENCE = 100.0
"""An LSTM's outputs grow less than tenfold along a window, and its gradients shrink towards the beginning."""
DOMINANT_SHARE = 0.5
DOMINANT_RATIO = 10.0
RISEN = 1.8
"""Median of the newest three norms or losses over that of the oldest third: a run on its way out exceeds it."""
LEAST_BEFORE = 6
"""Fewer steps do not tell what is usual."""

_UNDEFINED_SOMEWHERE = frozenset(
    {
        "log",
        "log2",
        "log10",
        "log1p",
        "logit",
        "divide",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "pow",
        "elementwise_pow",
        "exp",
        "expm1",
        "acos",
        "asin",
        "acosh",
        "atanh",
        "tan",
        "atan2",
        "p_norm",
        "norm",
        "remainder",
        "floor_divide",
        "bce_loss",
        "kldiv_loss",
        "log_loss",
        "lgamma",
        "digamma",
        "softmax",
        "log_softmax",
    }
)
"""Operations without a value, or without a slope, for some arguments; exponentials because they overflow at 89, and
softmax because it has none over a row that is masked completely."""
_PRODUCTS = frozenset(
    {
        "matmul",
        "bmm",
        "mv",
        "dot",
        "addmm",
        "baddbmm",
        "linear",
        "linear_v2",
        "fused_gemm_epilogue",
        "einsum",
        "multiply",
        "multiply_",
        "scale",
        "rnn",
        "rnn_intermediate",
    }
)
"""Operations that, taken again and again, grow beyond all bounds."""


@final
class Cause(Enum):
    """What made a step unusable."""

    BAD_INPUT = "bad input"
    LEARNING_RATE = "learning rate too high"
    HALF_PRECISION = "fp16 overflow"
    ARITHMETIC = "log or division by zero"
    RECURRENCE = "exploding recurrence"
    PARAMETER = "a parameter is not finite"
    TRANSIENT = "not reproducible"
    ON_PURPOSE = "disturbed on purpose"
    UNKNOWN = "unknown"


@final
@dataclass(frozen=True, slots=True)
class InputFinding:
    """A sample with values unlike those of the others in its step."""

    position: int
    """Of the sample in its dataset."""
    tensor: str
    what: str
    """In words."""
    magnitude: float
    """Largest absolute value; inf when one is not finite."""


@final
@dataclass(frozen=True, slots=True)
class WeightFinding:
    """A parameter out of the range in which networks train."""

    name: str
    magnitude: float
    """Largest absolute value; NaN or inf when one of them is."""

    @property
    def is_finite(self) -> bool:
        """Whether it is merely large."""
        return math.isfinite(self.magnitude)


@final
@dataclass(frozen=True, slots=True)
class SampleLoss:
    """One sample of the step, computed alone."""

    position: int
    """In its dataset."""
    loss: float
    grad_norm: float

    @property
    def is_finite(self) -> bool:
        """Whether the sample alone can be trained on."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


@final
@dataclass(frozen=True)
class Evidence:
    """Everything that the rules look at."""

    reason: SkipReason | None
    """Why the step was skipped; None for a rollback."""
    reproduced: bool
    """The replay came out as unusable as the step."""
    first_bad: FirstBad | None
    operation: Operation | None
    odd_inputs: Sequence[InputFinding]
    wild_weights: Sequence[WeightFinding]
    half_precision: str | None
    """`float16` or `bfloat16`, when the run computes in it."""
    finite_in_float32: bool | None
    """How the same step comes out in float32; None when it was not tried."""
    growth: float
    """Largest growth along the sequence in a recurrent layer."""
    recurrent_layer: str | None
    """The layer with that growth, or that is called again and again."""
    samples: Sequence[SampleLoss]
    lr: float
    typical_weight: float
    """Root mean square of all trainable weights with more than one dimension."""
    norms_before: Sequence[float]
    """Finite gradient norms of the steps before, oldest first."""
    gain: float = 0.0
    """Root mean square of a matrix times the root of its inputs: what it makes of inputs of size 1; the median one."""
    losses_before: Sequence[float] = ()
    """Finite losses of the steps before, oldest first."""
    disturbed: Sequence[str] = ()
    """Kinds of the recipe's faults that happened in this very step."""


@final
@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A cause, why it is thought to be it, and what to do."""

    cause: Cause
    because: str
    advice: str
    detail: str = ""
    """Which one, where the cause has several."""

    @property
    def title(self) -> str:
        """The cause in a few words, with its detail."""
        return f"{self.cause.value}: {self.detail}" if self.detail else self.cause.value


def diagnose(evidence: Evidence) -> Diagnosis:
    """The cause that is known, when the step was disturbed on purpose; otherwise what the evidence says."""
    found = _judge(evidence)
    if not evidence.disturbed:
        return found
    kinds = ", ".join(evidence.disturbed)
    because = f"The recipe asks for it. Without that knowledge the report says: {found.cause.value}. {found.because}"
    return Diagnosis(Cause.ON_PURPOSE, because, _ADVICE[Cause.ON_PURPOSE], f"{kinds} (faults)")


def _judge(evidence: Evidence) -> Diagnosis:
    """The first of the rules that applies; the strongest evidence is asked first."""
    if not evidence.reproduced:
        because = "Computed again from the same seed with the same samples and weights, the step came out usable."
        return Diagnosis(Cause.TRANSIENT, because, _ADVICE[Cause.TRANSIENT])
    for cause, rule in _RULES:
        because = rule(evidence)
        if because:
            return Diagnosis(cause, because, _ADVICE[cause])
    because = "The step is as bad when computed again, and none of the known causes shows."
    return Diagnosis(Cause.UNKNOWN, because, _ADVICE[Cause.UNKNOWN])


def _odd_inputs(evidence: Evidence) -> str:
    odd = evidence.odd_inputs
    if not odd:
        return ""
    worst = odd[0]
    count = f"{len(odd)} samples of the step have" if len(odd) > 1 else "One sample of the step has"
    return f"{count} values unlike the others, the worst in `{worst.tensor}`: {worst.what}."


def _has_risen(evidence: Evidence) -> bool:
    """Whether norms or losses had left their usual level before this step: the weights were on their way out."""
    for values in (evidence.norms_before, evidence.losses_before):
        sizes = np.abs(np.array(values))
        if len(sizes) < LEAST_BEFORE:
            continue
        old, new = sizes[: max(len(sizes) // 3, 3)], sizes[-3:]
        # Norms of single steps differ by more than that factor: all three have to lie beyond all of the old ones.
        if np.median(new) > RISEN * np.median(old) and new.min() > old.max():
            return True
    return False


def _spoilt_parameter(evidence: Evidence) -> str:
    """NaN or inf in the weights of a run that showed no sign of diverging."""
    wild = evidence.wild_weights
    diverging = _has_risen(evidence) or _large_steps(evidence) or evidence.typical_weight > GROWN_WEIGHT
    if not wild or any(finding.is_finite for finding in wild) or diverging:
        return ""
    more = f" and {len(wild) - 1} more" if len(wild) > 1 else ""
    kind = "NaN" if math.isnan(wild[0].magnitude) else "inf"
    return (
        f"The inputs are ordinary, but the parameter `{wild[0].name}`{more} holds {kind}, although no loss or gradient "
        "norm of the steps before had risen."
    )


def _wild_weights(evidence: Evidence) -> str:
    wild = evidence.wild_weights
    if not wild and evidence.typical_weight > GROWN_WEIGHT:
        return (
            f"The inputs are ordinary, but weights have grown everywhere, to {evidence.typical_weight:.3g} on average."
        )
    if not wild:
        return ""
    worst = wild[0]
    more = f" and {len(wild) - 1} more" if len(wild) > 1 else ""
    size = f"has grown to {worst.magnitude:.3g}" if worst.is_finite else "is no longer finite"
    return f"The inputs are ordinary, but the parameter `{worst.name}`{more} {size}: earlier updates went too far."


def _half_precision(evidence: Evidence) -> str:
    if evidence.half_precision is None or not evidence.finite_in_float32:
        return ""
    limit = "65,504, the largest float16" if evidence.half_precision == "float16" else "what bfloat16 holds"
    return f"The same step is finite in float32, and not in {evidence.half_precision}: a value went beyond {limit}."


def _undefined_arithmetic(evidence: Evidence) -> str:
    operation = evidence.operation
    if operation is None or operation.name.removesuffix("_grad") not in _UNDEFINED_SOMEWHERE:
        return ""
    what = "has no finite slope" if operation.name.endswith("_grad") else "has no finite value"
    at = f" ({operation.place})" if operation.place else ""
    if operation.name.endswith("softmax"):
        return f"The operation `{operation.name}`{at} has no value over a row that is masked completely, all -inf."
    return f"The operation `{operation.name}`{at} {what} for the numbers that it was given; those were ordinary ones."


def _growth(evidence: Evidence) -> str:
    if evidence.recurrent_layer is None or evidence.growth < GROWTH_ALONG_SEQUENCE:
        return ""
    times = "beyond all bounds" if math.isinf(evidence.growth) else f"by a factor of {evidence.growth:.3g}"
    return f"Along the sequence values or gradients in `{evidence.recurrent_layer}` grow {times}."


def _overflow_of_one_layer(evidence: Evidence) -> str:
    """A single product of ordinary numbers cannot leave float32: only many of them, one after the other, can."""
    first, operation = evidence.first_bad, evidence.operation
    if first is None or first.direction != "forward" or not first.kind or first.from_batch:
        return ""
    if operation is None or operation.name not in _PRODUCTS:
        return ""
    inside = max((r.magnitude for r in (*first.inputs, *first.parameters.values())), default=math.inf)
    if inside > HUGE_WEIGHT or not first.parameters:
        return ""
    return (
        f"`{first.layer}` makes non-finite values of inputs and weights below {inside:.3g}, which only the same "
        "product taken again and again can do."
    )


def _recurrence(evidence: Evidence) -> str:
    return _growth(evidence) or _overflow_of_one_layer(evidence)


def _one_sample_dominates(evidence: Evidence) -> str:
    """A finite spike that is the work of few samples. Weights on their way out single some out as well."""
    if evidence.reason is not SkipReason.SPIKE or len(evidence.samples) < 4 or _has_risen(evidence):
        return ""
    for what, values in (
        ("loss", [s.loss for s in evidence.samples]),
        ("gradient norm", [s.grad_norm for s in evidence.samples]),
    ):
        sizes = np.abs(np.array(values))
        order = np.argsort(-sizes)
        typical = float(np.median(sizes))
        few = max(len(sizes) // 8, 1)
        dominant = [float(sizes[i]) for i in order[:few] if sizes[i] >= DOMINANT_RATIO * typical]
        if dominant and sum(dominant) >= DOMINANT_SHARE * float(sizes.sum()):
            ratio = dominant[0] / typical if typical > 0 else math.inf
            makes = "One sample makes" if len(dominant) == 1 else f"{len(dominant)} of {len(sizes)} samples make"
            return (
                f"{makes} most of the step's {what}; the worst has {ratio:.3g} times that of the median sample, "
                "although its inputs look ordinary: look at its label or target."
            )
    return ""


def _large_steps(evidence: Evidence) -> str:
    ratio = evidence.lr / evidence.typical_weight if evidence.typical_weight > 0 else 0.0
    if ratio >= WILD_LR_RATIO:
        return (
            f"At a learning rate of {evidence.lr:.3g} each step may change every weight by about that much, and the "
            f"typical weight is {evidence.typical_weight:.3g}."
        )
    return ""


def _risen_before(evidence: Evidence) -> str:
    if not _has_risen(evidence):
        return ""
    return f"Loss or gradient norm had grown to more than {RISEN:g} times the earlier one in the steps before."


def _amplifying_weights(evidence: Evidence) -> str:
    if evidence.gain <= GROWN_GAIN:
        return ""
    return (
        f"The samples contribute alike, and the weights have grown: the median matrix makes values "
        f"{evidence.gain:.3g} times as large as it is given them."
    )


def _whole_batch(evidence: Evidence) -> str:
    """A finite spike out of nothing that all samples share: their labels, rather than their inputs."""
    known = min(len(evidence.norms_before), len(evidence.losses_before))
    if evidence.reason is not SkipReason.SPIKE or known < LEAST_BEFORE:
        return ""
    return (
        "Loss and gradient norm were usual up to the step before, and the samples of this one look ordinary and "
        "contribute alike: look at the labels or targets of the whole batch. When they are right, a single update went "
        "too far."
    )


def _all_samples_alike(evidence: Evidence) -> str:
    if evidence.reason is not SkipReason.SPIKE:
        return ""
    return (
        "The samples are ordinary and contribute alike, and too few steps came before to tell what is usual: the "
        "weights, not the data, probably make the step large."
    )


_RULES = (
    (Cause.BAD_INPUT, _odd_inputs),
    (Cause.PARAMETER, _spoilt_parameter),
    (Cause.LEARNING_RATE, _wild_weights),
    (Cause.HALF_PRECISION, _half_precision),
    (Cause.ARITHMETIC, _undefined_arithmetic),
    (Cause.RECURRENCE, _recurrence),
    (Cause.BAD_INPUT, _one_sample_dominates),
    (Cause.LEARNING_RATE, _large_steps),
    (Cause.LEARNING_RATE, _risen_before),
    (Cause.LEARNING_RATE, _amplifying_weights),
    (Cause.BAD_INPUT, _whole_batch),
    (Cause.LEARNING_RATE, _all_samples_alike),
)

_ADVICE = {
    Cause.BAD_INPUT: (
        "Open the file at the lines below and mend or remove them; then go on with `--resume auto`. Look for a wrong "
        "unit, a missing value that was kept, a damaged file or a wrong label."
    ),
    Cause.LEARNING_RATE: (
        "Lower `optim.lr` (a third of it is a good first try) or lengthen the warm-up, and go back to a checkpoint "
        "from before the norms grew. `clip.max_norm` limits what a single step can do."
    ),
    Cause.PARAMETER: (
        "Go back to a checkpoint from before (`--resume auto`). Something wrote the value past the usual steps: look "
        "for code that changes parameters outside of the optimizer, raise `optim.eps`, and keep `stability.guard` on. "
        "When it comes back in another place, suspect the memory."
    ),
    Cause.HALF_PRECISION: (
        "Use `amp.dtype: bfloat16` where the device has it, or float32; or keep the layer named below out of half "
        "precision. When only the loss scale is too high, let it fall further with a lower `amp.min_scale`."
    ),
    Cause.ARITHMETIC: (
        "Keep the argument away from the edge: `log(x + 1e-6)`, `a / (b + 1e-6)`, `sqrt(x + 1e-12)`, or a clip; or a "
        "ready-made stable function, such as a loss over logits instead of one over probabilities."
    ),
    Cause.RECURRENCE: (
        "Limit the recurrent weights (orthogonal initial values, weight decay), shorten the sequence, use a gated cell "
        "such as LSTM, and clip: an LSTM trains well with `clip.max_norm` 1 to 5."
    ),
    Cause.TRANSIENT: (
        "Nothing in data or weights explains it. When it stays single, nothing needs to be done. When it comes back, "
        "suspect what is not part of the step itself: hardware (memory, overheating), or another process of the run."
    ),
    Cause.ON_PURPOSE: "Nothing, when that was the purpose. For a real run, remove `faults` from the recipe.",
    Cause.UNKNOWN: "Begin at the layer and operation below, and at the samples with the largest gradients.",
}
