"""An incident's folder: everything that is needed to compute the step again in another process. No pickle."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import paddle
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from paddle_stable.data.dataset import Batch, SampleOrigin
from paddle_stable.errors import InputError
from paddle_stable.stability.step_report import StepReport

Array = npt.NDArray[Any]

FACTS, RECIPE, BATCH, MODEL, REPORT = "incident.json", "recipe.yaml", "batch.safetensors", "model.safetensors", "report"
_VERSION = 1


@final
@dataclass(frozen=True)
class IncidentFacts:
    """What was known of a step when it became an incident."""

    report: StepReport
    parts: tuple[Batch, ...]
    """This process's micro-batches."""
    origins: Mapping[int, SampleOrigin]
    """Where every sample in `parts` comes from, by its position in the dataset."""
    history: tuple[StepReport, ...]
    """The newest steps, oldest first; the last one is the incident's."""
    usual_norms: Mapping[str, float]
    """Median gradient norm of every layer group in the steps before."""
    rank: int
    world_size: int
    precision_state: Mapping[str, Any]


def incident_folder(run: Path, step: int, rank: int) -> Path:
    """Where an incident goes; other processes than rank 0 have folders of their own beside rank 0's."""
    return run / "incidents" / f"step-{step:06d}{_suffix(rank)}"


def steps_with_incident(run: Path, rank: int) -> list[int]:
    """Steps about which this process has written, in order."""
    names = [folder.name for folder in (run / "incidents").glob("step-*")]
    found = [re.fullmatch(rf"step-(\d+){_suffix(rank)}", name) for name in names]
    return sorted(int(match[1]) for match in found if match is not None)


def _suffix(rank: int) -> str:
    return f"-rank-{rank}" if rank else ""


def write_incident(
    folder: Path,
    facts: IncidentFacts,
    *,
    recipe_text: str,
    model: Mapping[str, Array] | None,
    markdown: str,
    report: Mapping[str, Any],
) -> None:
    """Write the whole folder; it has its name only when it is complete. One from an earlier attempt is replaced.

    Args:
        folder: what `incident_folder` says.
        facts: what the step can be computed from again, besides recipe and weights.
        recipe_text: the resolved recipe.
        model: weights at the time, or None to leave them out.
        markdown: the report for people.
        report: the same for programs.

    Raises:
        OSError: when it cannot be written.
    """
    with written_whole(folder) as aside:
        (aside / f"{REPORT}.md").write_text(markdown, encoding="utf8")
        (aside / f"{REPORT}.json").write_text(to_json(report), encoding="utf8")
        (aside / FACTS).write_text(to_json(_facts(facts)), encoding="utf8")
        (aside / RECIPE).write_text(recipe_text, encoding="utf8")
        save_file(_batch_arrays(facts.parts), aside / BATCH)
        if model is not None:
            save_file({name: np.ascontiguousarray(array) for name, array in model.items()}, aside / MODEL)


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """A folder to write into, which gets its name only when the block is done; one from an earlier attempt is replaced.

    Raises:
        OSError: when it cannot be made or renamed.
    """
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        shutil.rmtree(folder, ignore_errors=True)
        aside.replace(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def read_incident(folder: Path) -> tuple[IncidentFacts, dict[str, Array]]:
    """The facts of an incident, and the weights at the time.

    Raises:
        InputError: when the folder is not a complete incident, or was written without weights.
    """
    missing = [name for name in (FACTS, RECIPE, BATCH, MODEL) if not (folder / name).is_file()]
    if missing:
        hint = " It was written with forensics.keep_weights: false." if missing == [MODEL] else ""
        raise InputError.single(str(folder), f"cannot be computed again: {', '.join(missing)} is missing.{hint}")
    try:
        saved = json.loads((folder / FACTS).read_text(encoding="utf8"))
        if saved["version"] != _VERSION:
            raise InputError.single(str(folder), f"expected an incident of version {_VERSION}, got {saved['version']}")
        arrays, model = load_file(folder / BATCH), load_file(folder / MODEL)
        return _facts_from(saved, arrays), model
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        raise InputError.single(str(folder), f"is damaged ({type(error).__name__}: {error})") from error


def to_json(value: Any) -> str:
    """JSON for people and strict parsers: what is not finite becomes the text "nan", "inf" or "-inf"."""
    return json.dumps(_plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _facts(facts: IncidentFacts) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "report": facts.report.state(),
        "history": [report.state() for report in facts.history],
        "usual_norms": facts.usual_norms,
        "rank": facts.rank,
        "world_size": facts.world_size,
        "precision": facts.precision_state,
        "parts": [{"positions": part.indices, "weight": part.weight} for part in facts.parts],
        "origins": {position: asdict(origin) for position, origin in facts.origins.items()},
    }


def _facts_from(saved: Mapping[str, Any], arrays: Mapping[str, Array]) -> IncidentFacts:
    parts = []
    for number, part in enumerate(saved["parts"]):
        prefix = f"{number}/"
        tensors = {n.removeprefix(prefix): paddle.to_tensor(a) for n, a in arrays.items() if n.startswith(prefix)}
        parts.append(Batch(tensors, tuple(part["positions"]), part["weight"]))
    return IncidentFacts(
        report=StepReport.from_state(saved["report"]),
        parts=tuple(parts),
        origins={int(position): SampleOrigin(**origin) for position, origin in saved["origins"].items()},
        history=tuple(StepReport.from_state(report) for report in saved["history"]),
        usual_norms=saved["usual_norms"],
        rank=saved["rank"],
        world_size=saved["world_size"],
        precision_state=saved["precision"],
    )


def _batch_arrays(parts: Sequence[Batch]) -> dict[str, Array]:
    return {
        f"{number}/{name}": np.ascontiguousarray(tensor.numpy())
        for number, part in enumerate(parts)
        for name, tensor in part.tensors.items()
    }
