"""An incident computed again from its folder, in a process that knows nothing else of the run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import final

from paddle_stable.build import build_trainer, prepare, use_device
from paddle_stable.distributed import World
from paddle_stable.errors import InputError
from paddle_stable.recipe_io import load_recipe
from paddle_stable.stability.forensics import disturbances
from paddle_stable.stability.incident_files import RECIPE, REPORT, read_incident
from paddle_stable.stability.incident_report import Findings
from paddle_stable.stability.investigation import investigate
from paddle_stable.stability.replay import Replay
from paddle_stable.training_state import StateMismatch, load_model_arrays


@final
@dataclass(frozen=True)
class Reproduction:
    """What came out, beside what the run had found."""

    findings: Findings
    cause_then: str
    layer_then: str | None
    """The first non-finite layer that the run had found."""

    @property
    def cause_now(self) -> str:
        """The cause found in this process."""
        return self.findings.diagnosis.cause.value

    @property
    def layer_now(self) -> str | None:
        """The first non-finite layer found in this process."""
        first = self.findings.evidence.first_bad
        return first.layer if first is not None else None

    @property
    def is_same(self) -> bool:
        """Whether cause and first layer are those that the run had found."""
        return (self.cause_now, self.layer_now) == (self.cause_then, self.layer_then)


def reproduce(folder: Path, *, trust: bool = False) -> Reproduction:
    """Build the recipe's model with the incident's weights, and investigate the incident's samples again.

    The recipe's data files are read as well, because the model is built from what is in them (vocabulary, features);
    the samples themselves come from the folder.

    Args:
        folder: `<run>/incidents/step-000123`, or that of another process, `step-000123-rank-1`.
        trust: allow a task outside `paddle_stable.tasks`.

    Raises:
        InputError: when the folder is incomplete or damaged, or the data files no longer fit it.
    """
    if folder.name.endswith("-rollback"):
        raise InputError.single(
            str(folder), f"a rollback has no step to compute again; its {REPORT}.md says what is known"
        )
    incidents = sorted(path.name for path in (folder / "incidents").glob("step-*"))
    if incidents:
        names = ", ".join(incidents)
        raise InputError.single(str(folder), f"is a run; name one of its incidents in {folder}/incidents: {names}")
    facts, weights = read_incident(folder)
    loaded = load_recipe(str(folder / RECIPE), trust=trust)
    use_device(loaded.recipe)
    prepared = prepare(loaded, World.single())
    with TemporaryDirectory() as aside:  # nothing is written into it; a trainer just has a folder
        trainer = build_trainer(prepared, World.single(), folder=Path(aside))
    try:
        load_model_arrays(trainer.model, weights)
    except StateMismatch as error:
        raise InputError.single(
            str(folder), f"{error} The data files that the model is built from have changed since; put them back."
        ) from error
    trainer.precision.scaling.load_state(dict(facts.precision_state))
    replay = Replay(
        trainer.model,
        trainer.task,
        trainer.precision,
        prepared.statistics,
        loaded.recipe.run.seed,
        facts.rank,
        float(facts.world_size),
    )
    disturbed = disturbances(loaded.recipe.faults, facts.report.step)
    findings = investigate(replay, facts, loaded.recipe.forensics.max_samples, disturbed=disturbed)
    return Reproduction(findings, *_found_then(folder / f"{REPORT}.json"))


def _found_then(path: Path) -> tuple[str, str | None]:
    """Cause and first layer that the run had found."""
    try:
        then = json.loads(path.read_text(encoding="utf8"))
        return str(then["cause"]), then["first_bad"]["layer"] if then["first_bad"] is not None else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError.single(str(path), f"cannot be read ({type(error).__name__}: {error})") from error
