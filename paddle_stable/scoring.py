"""Metrics of a saved checkpoint on a split, for `tools/evaluate.py`."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import final

from paddle_stable.build import prepare, use_device
from paddle_stable.checkpoint import CheckpointError, CheckpointStore
from paddle_stable.data.workers import SampleError
from paddle_stable.distributed import World
from paddle_stable.errors import ExitCode, InputError
from paddle_stable.evaluation import evaluate
from paddle_stable.recipe_io import load_recipe
from paddle_stable.resume import refuse_other_assets
from paddle_stable.stability.amp import build_precision
from paddle_stable.terminal import complain, say
from paddle_stable.training_state import StateMismatch, load_model_arrays
from paddle_stable.watchdog import Heartbeat


@final
@dataclass(frozen=True, slots=True)
class ScoringRequest:
    """What was asked for on the command line."""

    run: Path
    """Run folder, or the folder of one checkpoint."""
    split: str = "test"
    newest: bool = False
    """The newest checkpoint that verifies instead of the best one."""
    overrides: tuple[str, ...] = ()
    trust: bool = False


def score(request: ScoringRequest) -> ExitCode:
    """Print the metrics as JSON. Mistakes are printed, not raised; nothing is written."""
    try:
        store, checkpoint = find_checkpoint(request.run, newest=request.newest)
        parts = store.load(checkpoint)
        loaded = load_recipe(str(checkpoint / "recipe.yaml"), request.overrides, trust=request.trust)
        use_device(loaded.recipe)
        world = World.single()
        prepared = prepare(loaded, world)
        split = {"train": prepared.splits.train, "dev": prepared.splits.dev, "test": prepared.splits.test}[
            request.split
        ]
        if split is None:
            raise InputError.single(loaded.path, f"the recipe has no {request.split} set; --split dev or train")
        refuse_other_assets(parts.assets, prepared.task.assets(), checkpoint)
        load_model_arrays(prepared.model, parts.model)
        precision = build_precision(loaded.recipe.amp, prepared.model)
        batch_size = loaded.recipe.data.eval_batch_size
        found = evaluate(
            prepared.task, prepared.model, precision, split, batch_size=batch_size, world=world, heartbeat=Heartbeat()
        )
    except (InputError, CheckpointError, StateMismatch, SampleError, OSError) as error:
        complain(str(error))
        return ExitCode.INPUT
    # JSON has no infinity: a skill beside a perfect naive forecast is minus that.
    metrics = {name: value if math.isfinite(value) else None for name, value in found.metrics.items()}
    say(json.dumps({"checkpoint": str(checkpoint), "split": request.split, "metrics": metrics}, indent=2))
    return ExitCode.DONE


def find_checkpoint(run: Path, *, newest: bool) -> tuple[CheckpointStore, Path]:
    """The store and the checkpoint in it that is meant.

    Args:
        run: a run folder, or the folder of one checkpoint.
        newest: the newest checkpoint of a run that verifies, instead of the best one.

    Raises:
        InputError: when there is none.
    """
    if (run / "manifest.json").exists():
        return CheckpointStore(run.parent, keep_last=1), run
    store = CheckpointStore(run / "checkpoints", keep_last=1)
    path = store.newest_valid()[0] if newest else store.best()
    if path is None:
        if not store.folder.is_dir():
            raise InputError.single(
                str(run), "must be a run's folder, with checkpoints/ in it, or that of a checkpoint"
            )
        kind, way_out = ("newest valid", "name one's folder") if newest else ("best", "--newest, or name one's folder")
        raise InputError.single(str(run), f"there is no {kind} checkpoint in checkpoints/: {way_out}")
    return store, path
