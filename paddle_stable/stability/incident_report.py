"""The incident report: what a replay found, written for a person and for a program."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

from paddle_stable.stability.causes import Diagnosis, Evidence, InputFinding, SampleLoss
from paddle_stable.stability.incident_files import IncidentFacts
from paddle_stable.stability.probes import LOSS, NETWORK, FirstBad
from paddle_stable.stability.step_report import SkipReason, StepReport

_SHOWN_SAMPLES = 10
_SHOWN_LAYERS = 10
_SHOWN_GAPS = 5


@final
@dataclass(frozen=True)
class Findings:
    """All that was found out about an incident."""

    facts: IncidentFacts
    evidence: Evidence
    diagnosis: Diagnosis
    replayed_loss: float
    replayed_norm: float
    seconds: float
    """What finding out took."""
    samples_left_out: int = 0
    """Samples of the step that were not computed alone, because of `forensics.max_samples`."""
    not_computed: tuple[str, ...] = ()
    """What else could not be computed, and why."""

    def headline(self) -> str:
        """One line: what happened and why."""
        where = _where(self.evidence.first_bad)
        at = f", first at {where}" if where else ""
        return f"step {self.facts.report.step} explained: {self.diagnosis.title}{at}"

    def ranked_samples(self) -> list[SampleLoss]:
        """The samples that were computed alone: non-finite ones first, then by gradient norm and loss."""
        return ranked(self.evidence.samples)


def ranked(samples: Sequence[SampleLoss]) -> list[SampleLoss]:
    """The worst first: non-finite ones, then by gradient norm and loss."""

    def badness(sample: SampleLoss) -> tuple[bool, float, float]:
        norm, loss = sample.grad_norm, abs(sample.loss)
        return (
            not sample.is_finite,
            norm if math.isfinite(norm) else math.inf,
            loss if math.isfinite(loss) else math.inf,
        )

    return sorted(samples, key=badness, reverse=True)


def as_json(findings: Findings) -> dict[str, Any]:
    """The report for programs; `incident_files.to_json` writes it."""
    facts, evidence, first = findings.facts, findings.evidence, findings.evidence.first_bad
    odd = {finding.position: finding for finding in evidence.odd_inputs}
    return {
        "step": facts.report.step,
        "skipped": facts.report.verdict.skipped,
        "cause": findings.diagnosis.cause,
        "disturbed": list(evidence.disturbed),
        "because": findings.diagnosis.because,
        "advice": findings.diagnosis.advice,
        "reproduced": evidence.reproduced,
        "loss": facts.report.verdict.loss,
        "grad_norm": facts.report.verdict.grad_norm,
        "replayed": {"loss": findings.replayed_loss, "grad_norm": findings.replayed_norm},
        "first_bad": asdict(first) if first is not None else None,
        "operation": asdict(evidence.operation) if evidence.operation is not None else None,
        "finite_in_float32": evidence.finite_in_float32,
        "wild_weights": [asdict(finding) for finding in evidence.wild_weights],
        "growth": {"layer": evidence.recurrent_layer, "factor": evidence.growth},
        "samples": [
            {
                **asdict(sample),
                **_origin(facts, sample.position),
                "odd": odd[sample.position].what if sample.position in odd else None,
            }
            for sample in findings.ranked_samples()
        ],
        "samples_left_out": findings.samples_left_out,
        "not_computed": list(findings.not_computed),
        "layers": [
            {"layer": group, "grad_norm": norm, "usual": facts.usual_norms.get(group)}
            for group, norm in _largest_norms(facts)
        ],
        "history": [asdict(report) for report in facts.history],
        "rank": facts.rank,
        "world_size": facts.world_size,
        "seconds": findings.seconds,
    }


def as_markdown(findings: Findings, folder: str) -> str:
    """The report for people; `folder` is where it will stand."""
    facts = findings.facts
    sections = [
        _head(findings),
        _origin_of_it(findings.evidence),
        _samples(findings),
        _gaps(findings),
        _layers(facts),
        history_table(facts.history),
        _way_to_reproduce(facts, folder, findings.seconds),
    ]
    return "\n".join(section for section in sections if section)


def _head(findings: Findings) -> str:
    report, diagnosis = findings.facts.report, findings.diagnosis
    verdict = report.verdict
    match verdict.skipped:
        case SkipReason.SPIKE:
            what = "was skipped: loss or gradient was far beyond the usual"
        case None:
            what = "led to a rollback"
        case _:
            what = "was skipped: loss or gradient was not finite"
    again = "the same" if findings.evidence.reproduced else "usable"
    rows = [
        ("step", f"{report.step:,} (epoch {report.epoch:.2f})"),
        ("loss", number(verdict.loss)),
        ("gradient norm", f"{number(verdict.grad_norm)} before clipping"),
        ("learning rate", number(report.lr)),
        ("number format", _number_format(findings.facts.precision_state)),
        ("samples", f"{verdict.samples}" + _of_this_process(findings.facts)),
        (
            "computed again",
            f"{again}: loss {number(findings.replayed_loss)}, gradient norm {number(findings.replayed_norm)}",
        ),
    ]
    return "\n".join(
        [
            f"# Step {report.step} {what}",
            "",
            f"**Probable cause: {diagnosis.title}.** {diagnosis.because}",
            "",
            f"**What to do:** {diagnosis.advice}",
            "",
            *_of_other_processes(findings),
            "What is reported here has changed nothing that learns. With `stability.bad_samples: drop` the step may "
            "have been done again without some of its samples; `run.log` then says so.",
            "",
            table(("", ""), rows),
            "",
        ]
    )


def _of_other_processes(findings: Findings) -> list[str]:
    if findings.facts.world_size == 1 or findings.evidence.reproduced:
        return []
    step = findings.facts.report.step
    said = (
        f"This is about the samples of rank {findings.facts.rank} only. When the step was spoilt on another process, "
        f"that one has a report of its own beside this one: `step-{step:06d}-rank-…`."
    )
    return [said, ""]


def _of_this_process(facts: IncidentFacts) -> str:
    if facts.world_size == 1:
        return ""
    mine = sum(part.size for part in facts.parts if part.weight > 0)
    return f" on {facts.world_size} processes; {mine} on rank {facts.rank}, which this report is about"


def _number_format(precision: Mapping[str, Any]) -> str:
    scale = f", loss scale {precision['scale']:g}" if precision["dtype"] == "float16" else ""
    return f"{precision['dtype']}{scale}"


def _origin_of_it(evidence: Evidence) -> str:
    first, operation = evidence.first_bad, evidence.operation
    if not evidence.reproduced:
        return ""
    lines = ["## Where it began", ""]
    if first is None:
        lines.append("No value was non-finite: the step was only much larger than usual.")
    else:
        kind = f" ({first.kind})" if first.kind else ""
        lines.append(
            f"The first non-finite tensor: **{first.tensor}** of {_name(first.layer)}{kind}, in the {first.direction} "
            "pass."
        )
        if first.from_batch:
            lines.append("The layer was given it by the batch; its own arithmetic is not to blame.")
    if operation is not None:
        at = f", called at `{operation.place}`" if operation.place else ""
        lines.append(f"The operation: `{operation.name}`{at}.")
    if first is not None:
        lines += ["", _ranges(first)]
    if evidence.wild_weights:
        rows = [(f"`{w.name}`", number(w.magnitude)) for w in evidence.wild_weights[:_SHOWN_LAYERS]]
        lines += ["", "Parameters out of range:", "", table(("parameter", "largest magnitude"), rows)]
    return "\n".join([*lines, ""])


def _ranges(first: FirstBad) -> str:
    forward = first.direction == "forward"
    into, out = ("input", "output") if forward else ("gradient from behind", "gradient passed on")
    rows = [(into, str(r)) for r in first.inputs] + [(out, str(r)) for r in first.outputs]
    rows += [(f"`{name}`" if forward else f"gradient of `{name}`", str(r)) for name, r in first.parameters.items()]
    return table(("tensor", "range"), rows) if rows else ""


def _samples(findings: Findings) -> str:
    samples, facts = findings.ranked_samples(), findings.facts
    if not samples:
        return ""
    odd: dict[int, InputFinding] = {finding.position: finding for finding in findings.evidence.odd_inputs}
    spoilt = sum(not sample.is_finite for sample in samples)
    said = f"{spoilt} of {len(samples)} are not finite on their own." if spoilt else "Each is finite on its own."
    if spoilt == len(samples) > 1:
        said = "None is finite on its own: this is not the work of single samples."
    left_out = (
        f" {findings.samples_left_out} more were not tried (`forensics.max_samples`)."
        if findings.samples_left_out
        else ""
    )
    rows = []
    for rank, sample in enumerate(samples[:_SHOWN_SAMPLES], start=1):
        origin = facts.origins[sample.position]
        where = f"{origin.file}:{origin.line}" if origin.line else origin.file
        note = odd[sample.position].what if sample.position in odd else ""
        rows.append(
            (str(rank), number(sample.loss), number(sample.grad_norm), f"`{cell(where)}`", cell(origin.excerpt), note)
        )
    heads = ("", "own loss", "own gradient norm", "where", "excerpt", "remarkable")
    more = f"\n\nThe other {len(samples) - _SHOWN_SAMPLES} are in report.json." if len(samples) > _SHOWN_SAMPLES else ""
    return "\n".join(
        [
            "## Samples, the worst first",
            "",
            f"Computed one by one. {said}{left_out}",
            "",
            table(heads, rows) + more,
            "",
        ]
    )


def _gaps(findings: Findings) -> str:
    """What could not be computed, and why: some networks do not run on one sample alone."""
    gaps = findings.not_computed
    if not gaps:
        return ""
    lines = [f"- {cell(gap)}" for gap in gaps[:_SHOWN_GAPS]]
    if len(gaps) > _SHOWN_GAPS:
        lines.append(f"- and {len(gaps) - _SHOWN_GAPS} more; report.json has them")
    return "\n".join(["## Not computed", "", *lines, ""])


def _layers(facts: IncidentFacts) -> str:
    norms = _largest_norms(facts)
    if not norms:
        return ""
    if not any(math.isfinite(norm) for norm in facts.report.verdict.group_norms.values()):
        medians = ", ".join(f"`{group}` {number(norm)}" for group, norm in facts.usual_norms.items())
        before = f"Usual, as the median of the steps before: {medians}." if medians else "There was no step before."
        return f"## Gradients by layer\n\nNone is finite. {before}\n"
    rows = []
    for group, norm in norms:
        usual = facts.usual_norms.get(group)
        ratio = f"{norm / usual:,.3g} x" if usual and math.isfinite(norm) else ""
        rows.append((f"`{group}`", number(norm), number(usual) if usual is not None else "not known yet", ratio))
    heads = ("layer", "gradient norm", "usual (median)", "ratio")
    return "\n".join(["## The largest gradients by layer", "", table(heads, rows), ""])


def _largest_norms(facts: IncidentFacts) -> list[tuple[str, float]]:
    def size(item: tuple[str, float]) -> float:
        return item[1] if math.isfinite(item[1]) else math.inf

    return sorted(facts.report.verdict.group_norms.items(), key=size, reverse=True)[:_SHOWN_LAYERS]


def history_table(history: Sequence[StepReport]) -> str:
    """The section with the newest steps."""
    rows = []
    for report in reversed(history):
        verdict = report.verdict
        if verdict.skipped is not None:
            what = f"skipped: {verdict.skipped.value}"
        else:
            what = f"clipped to {verdict.clip_scale:.3g} of it" if verdict.clipped else "applied"
        rows.append((f"{report.step}", number(verdict.loss), number(verdict.grad_norm), number(report.lr), what))
    heads = ("step", "loss", "gradient norm", "learning rate", "what became of it")
    title = f"The last {len(rows)} steps, newest first" if len(rows) > 1 else "There was no step before"
    return "\n".join([f"## {title}", "", table(heads, rows), ""])


def _way_to_reproduce(facts: IncidentFacts, folder: str, seconds: float) -> str:
    return "\n".join(
        [
            "## Compute it again",
            "",
            "```",
            f"python tools/diagnose.py {folder}",
            "```",
            "",
            "The folder holds the recipe, the samples as the network got them, and the weights of that moment. This "
            f"report took {seconds:.1f} s to make.",
            "",
        ]
    )


def _where(first: FirstBad | None) -> str:
    return f"{_name(first.layer)} ({first.direction})" if first is not None else ""


def _name(layer: str) -> str:
    return layer if layer in (LOSS, NETWORK) else f"`{layer}`"


def number(value: float) -> str:
    """Four digits, for a table."""
    return f"{value:.4g}" if math.isfinite(value) else str(value).replace("nan", "NaN")


def cell(text: str) -> str:
    """Text that cannot break a table, in a code span or not."""
    # An even number of backslashes before a `|` would leave it unescaped: each gets one of its own.
    return re.sub(r"(\\*)\|", r"\1\1\\|", re.sub(r"[\r\n]+", " ", text))


def _origin(facts: IncidentFacts, position: int) -> dict[str, Any]:
    return asdict(facts.origins[position])


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
