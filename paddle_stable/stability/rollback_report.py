"""The report on a rollback: from where to where, what the parameters and the last steps looked like, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from paddle_stable.data.dataset import Array
from paddle_stable.stability.incident_files import REPORT, to_json, written_whole
from paddle_stable.stability.incident_report import cell, history_table, number, table
from paddle_stable.stability.step_report import SkipReason, StepReport

_SHOWN = 10
GROWN = 3.0
"""Root mean square of a parameter, now over then: training a good state on changes it by far less."""
MOSTLY_SKIPPED = 0.5


@final
@dataclass(frozen=True, slots=True)
class ParameterChange:
    """What became of a parameter since the good state."""

    name: str
    then: float
    """Root mean square in the good state."""
    now: float
    """The same when the run turned back, over finite values."""
    nonfinite: int
    """Values that are NaN or inf now."""

    @property
    def growth(self) -> float:
        """Now over then; inf with a value that is not finite. What was nothing has no size that it could outgrow: 1."""
        if self.nonfinite:
            return math.inf
        return self.now / self.then if self.then > 0.0 else 1.0


@final
@dataclass(frozen=True)
class RollbackFacts:
    """What is known about a rollback at the moment at which it happens."""

    step: int
    """Attempted steps so far."""
    why: str
    undone: int
    """Applied steps that it takes back."""
    applied: int
    """Updates that the good state has seen."""
    number: int
    """Which rollback of the run it is, from 1."""
    allowed: int
    """`stability.recovery.max_rollbacks`."""
    lr_backoff: float
    parameters: tuple[ParameterChange, ...]
    history: tuple[StepReport, ...]
    """The newest steps, oldest first."""
    usual_norms: Mapping[str, float]
    """Median gradient norm of every layer group."""


def changes(then: Mapping[str, Array], now: Mapping[str, Array]) -> tuple[ParameterChange, ...]:
    """What became of every parameter, those that changed most first."""
    found = []
    for name, before in then.items():
        finite = np.isfinite(now[name])
        found.append(ParameterChange(name, _rms(before), _rms(now[name][finite]), int((~finite).sum())))
    return tuple(sorted(found, key=lambda change: -change.growth))


def probable_cause(facts: RollbackFacts) -> tuple[str, str]:
    """The probable cause in plain words, and what to do."""
    broken = [change.name for change in facts.parameters if change.nonfinite]
    grown = [change for change in facts.parameters if change.growth > GROWN]
    skipped = [r.verdict.skipped for r in facts.history if r.verdict.skipped is not None]
    reason = skipped[-1] if skipped and len(skipped) >= MOSTLY_SKIPPED * len(facts.history) else None
    if broken:
        return (
            f"{len(broken)} parameters hold NaN or inf, `{broken[0]}` among them",
            "An update or something outside the training step wrote them. When it comes back, lower optim.lr, "
            "raise optim.eps, and keep stability.guard on.",
        )
    if grown:
        return (
            f"the weights grew: `{grown[0].name}` is {grown[0].growth:.3g} times as large as in the good state",
            "The learning rate is too high for this stage: lower optim.lr, lengthen the warm-up, or clip lower.",
        )
    if reason is SkipReason.NONFINITE:
        return (
            f"{len(skipped)} of the last {len(facts.history)} steps were not finite although all parameters are",
            "Look at the incident reports of those steps. When single samples did it, stability.bad_samples: drop goes "
            "on without them; otherwise it is the loss or the number format.",
        )
    if reason is SkipReason.SPIKE:
        return (
            f"{len(skipped)} of the last {len(facts.history)} steps were far beyond the usual",
            "The data have changed, or the run is on its way out of a narrow valley: lower optim.lr.",
        )
    return (
        "the loss rose while parameters and gradients kept their size",
        "Look at the data of those steps (order, labels), and lower optim.lr.",
    )


def as_json(facts: RollbackFacts) -> dict[str, Any]:
    """For programs."""
    cause, advice = probable_cause(facts)
    parameters = [{**asdict(change), "growth": change.growth} for change in facts.parameters[:_SHOWN]]
    return {**asdict(facts), "cause": cause, "advice": advice, "parameters": parameters}


def as_markdown(facts: RollbackFacts) -> str:
    """For people."""
    cause, advice = probable_cause(facts)
    rows = [
        ("after step", f"{facts.step:,}"),
        ("good state", f"after {facts.applied:,} updates; {facts.undone:,} later ones are undone"),
        ("rollback", f"{facts.number} of at most {facts.allowed}"),
        ("learning rate from now on", f"{facts.lr_backoff**facts.number:g} of the scheduled one, after warming up"),
    ]
    return "\n".join(
        [
            f"# Rolled back after step {facts.step}",
            "",
            f"**Why:** {facts.why}.",
            "",
            f"**Probable cause:** {cause}.",
            "",
            f"**What to do:** {advice}",
            "",
            table(("", ""), rows),
            "",
            *_parameters(facts.parameters),
            *_layers(facts),
            history_table(facts.history),
        ]
    )


def write_report(folder: Path, facts: RollbackFacts) -> str:
    """Write both forms; the folder has its name only when it is complete. Returns the Markdown.

    Raises:
        OSError: when it cannot be written.
    """
    text = as_markdown(facts)
    with written_whole(folder) as aside:
        (aside / f"{REPORT}.md").write_text(text, encoding="utf8")
        (aside / f"{REPORT}.json").write_text(to_json(as_json(facts)), encoding="utf8")
    return text


def _parameters(parameters: Sequence[ParameterChange]) -> list[str]:
    rows = [
        (f"`{cell(c.name)}`", number(c.then), number(c.now), str(c.nonfinite or ""), number(c.growth))
        for c in parameters[:_SHOWN]
    ]
    heads = ("parameter", "root mean square in the good state", "now", "NaN or inf", "ratio")
    return ["## Parameters that changed most since the good state", "", table(heads, rows), ""]


def _layers(facts: RollbackFacts) -> list[str]:
    """Of the newest step whose gradients were computed: a withheld one has none."""
    known = [report.verdict.group_norms for report in facts.history if report.verdict.group_norms]
    norms = known[-1] if known else {}
    if not norms:
        return []
    rows = []
    for group, norm in sorted(norms.items(), key=lambda item: -item[1] if math.isfinite(item[1]) else -math.inf):
        usual = facts.usual_norms.get(group)
        ratio = f"{norm / usual:,.3g}" if usual and math.isfinite(norm) else ""
        rows.append((f"`{group}`", number(norm), number(usual) if usual is not None else "not known yet", ratio))
    heads = ("layer", "gradient norm", "usual (median)", "ratio")
    return ["## The largest gradients by layer in the last step", "", table(heads, rows[:_SHOWN]), ""]


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values.astype(np.float64))))) if values.size else 0.0
