"""Incidents explained: a step that had to be skipped is computed again on the spot, and a report says what it was.

The ordinary step pays one comparison and keeps its report. Nothing that learns is changed by an explanation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import yaml

from paddle_stable.data.dataset import Batch, Dataset
from paddle_stable.recipe import FaultConfig, ForensicsConfig
from paddle_stable.stability.incident_files import IncidentFacts, incident_folder, steps_with_incident, write_incident
from paddle_stable.stability.incident_report import as_json, as_markdown
from paddle_stable.stability.investigation import investigate
from paddle_stable.stability.monitor import Monitor
from paddle_stable.stability.recovery import Recovery
from paddle_stable.stability.replay import Replay
from paddle_stable.stability.rollback_report import RollbackFacts, changes, probable_cause
from paddle_stable.stability.rollback_report import write_report as write_rollback_report
from paddle_stable.stability.step_report import SkipReason, StepReport
from paddle_stable.training_state import model_arrays

_HISTORY = 20
EXPLAINED = (SkipReason.NONFINITE, SkipReason.SPIKE)
"""Skips that a report is written on."""


@final
@dataclass(frozen=True, slots=True)
class Incident:
    """What to say and to record about an incident."""

    tag: str
    """VisualDL tag."""
    headline: str
    text: str
    """The report in Markdown; empty where there is none."""


@final
class Forensics:
    """Explains the first incidents of a run into `<run>/incidents/`."""

    def __init__(
        self,
        config: ForensicsConfig,
        replay: Replay,
        dataset: Dataset,
        *,
        folder: Path,
        recipe_text: str,
        world_size: int,
    ) -> None:
        """Nothing is touched before the first incident.

        Args:
            config: the recipe's `forensics` section.
            replay: computes a step again.
            dataset: the training split; says where samples come from.
            folder: the run folder.
            recipe_text: the resolved recipe, which goes into every incident's folder.
            world_size: processes of the run.
        """
        self._config = config
        self._replay = replay
        self._dataset = dataset
        self._folder = folder
        self._recipe_text = recipe_text
        self._world_size = world_size
        self._history: deque[StepReport] = deque(maxlen=_HISTORY)
        self._tried = 0

    def remember(self, report: StepReport) -> None:
        """Take a finished step in: reports show the newest of them."""
        self._history.append(report)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, so that a resumed run's reports show the same steps before; JSON."""
        return {"history": [_without_chance(report).state() for report in self._history]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over the history of a checkpoint."""
        self._history = deque((StepReport.from_state(report) for report in state["history"]), maxlen=_HISTORY)

    def explain(self, report: StepReport, parts: Sequence[Batch], monitor: Monitor) -> Incident | None:
        """When a step is an incident, compute it again at once, while its parameters are still there.

        Communicates with no other process: each replays its own part, and those that see nothing write nothing.

        Args:
            report: what the step did.
            parts: this process's micro-batches of it.
            monitor: the steps before, for what is usual.

        Returns:
            None for an ordinary step, one too many, and on processes that have nothing to say.
        """
        if report.verdict.skipped not in EXPLAINED or not self._config.enabled:
            return None
        tag = f"incident/step-{report.step:06d}"
        try:
            return self._explain(tag, report, parts, monitor) if self._is_due(report) else None
        except Exception as error:  # noqa: BLE001  It must end no run, nor let other processes wait.
            return Incident(tag, f"step {report.step} could not be explained: {type(error).__name__}: {error}", "")

    def _is_due(self, report: StepReport) -> bool:
        """Whether the run has not had its reports yet; counts this one."""
        # Those on disk count, so that a resumed run goes on counting, and may write later ones anew.
        earlier = sum(step < report.step for step in steps_with_incident(self._folder, self._replay.rank))
        if max(earlier, self._tried) >= self._config.max_reports:
            return False
        self._tried += 1
        return True

    def _explain(self, tag: str, report: StepReport, parts: Sequence[Batch], monitor: Monitor) -> Incident | None:
        facts = self._facts(report, parts, monitor)
        disturbed = disturbances(_faults_of(self._recipe_text), report.step)
        findings = investigate(self._replay, facts, self._config.max_samples, disturbed=disturbed)
        if self._replay.rank > 0 and not findings.evidence.reproduced:
            return None
        folder = incident_folder(self._folder, report.step, self._replay.rank)
        text = as_markdown(findings, str(folder))
        write_incident(
            folder,
            facts,
            recipe_text=self._recipe_text,
            model=model_arrays(self._replay.model) if self._config.keep_weights else None,
            markdown=text,
            report=as_json(findings),
        )
        return Incident(tag, f"{findings.headline()}; see {folder / 'report.md'}", text)

    def explain_rollback(self, why: str, recovery: Recovery, monitor: Monitor, *, step: int, undone: int) -> Incident:
        """Report on a rollback, before it happens: the parameters still are those that the run turns back from.

        Only rank 0 writes; the parameters are the same everywhere.

        Raises:
            ValueError: when there is no good state to go back to.
        """
        if recovery.snapshot is None:
            raise ValueError("there is no good state to compare with")
        tag = f"incident/step-{step:06d}-rollback"
        try:
            facts = RollbackFacts(
                step=step,
                why=why,
                undone=undone,
                applied=recovery.snapshot.state["applied"],
                number=recovery.rollbacks + 1,
                allowed=recovery.config.max_rollbacks,
                lr_backoff=recovery.config.lr_backoff,
                parameters=changes(recovery.snapshot.model, model_arrays(self._replay.model)),
                history=tuple(self._history),
                usual_norms=_usual_norms(monitor),
            )
            cause, _ = probable_cause(facts)
            folder = self._folder / "incidents" / f"step-{step:06d}-rollback"
            text = write_rollback_report(folder, facts) if self._config.enabled else ""
        except Exception as error:  # noqa: BLE001  The other processes are about to roll back, and would wait.
            return Incident(tag, f"the rollback after step {step} could not be explained: {error}", "")
        seen = f"; see {folder / 'report.md'}" if text else ""
        return Incident(tag, f"probable cause of the rollback: {cause}{seen}", text)

    def _facts(self, report: StepReport, parts: Sequence[Batch], monitor: Monitor) -> IncidentFacts:
        return IncidentFacts(
            report=report,
            parts=tuple(parts),
            origins={index: self._dataset.origin(index) for part in parts for index in part.indices},
            history=(*self._history, report)[-_HISTORY:],
            usual_norms=_usual_norms(monitor),
            rank=self._replay.rank,
            world_size=self._world_size,
            precision_state=self._replay.precision.scaling.state(),
        )


def disturbances(faults: Iterable[FaultConfig], step: int) -> tuple[str, ...]:
    """Kinds of the recipe's faults that happen in a step, in whatever process: its update is that of all of them."""
    return tuple(dict.fromkeys(f.kind for f in faults if f.step <= step < f.step + f.steps))


def _without_chance(report: StepReport) -> StepReport:
    """What is the same in an interrupted run and in the uninterrupted one: not the times, nor a signal's stop."""
    verdict = replace(report.verdict, stop_requested=False)
    return replace(report, verdict=verdict, seconds=0.0, data_seconds=0.0)


def _faults_of(recipe_text: str) -> list[FaultConfig]:
    return [FaultConfig.model_validate(fault) for fault in yaml.safe_load(recipe_text).get("faults", ())]


def _usual_norms(monitor: Monitor) -> dict[str, float]:
    """Median gradient norm of every layer group."""
    return {tag.removeprefix("grad_norm/"): float(np.median(norms)) for tag, norms in monitor.group_norms().items()}
