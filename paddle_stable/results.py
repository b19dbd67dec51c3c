"""What a finished run has come to: the best checkpoint on the test set, and advice for the next run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paddle_stable.checkpoint import CheckpointError
from paddle_stable.stability.advice import Clipping, NaiveComparison, advice
from paddle_stable.stability.clip import GlobalNormClip
from paddle_stable.trainer import Trainer
from paddle_stable.training_state import load_model_arrays


def conclude(trainer: Trainer, folder: Path) -> dict[str, Any]:
    """Evaluate the best checkpoint, write `results.json` and pictures, and say it all in the log.

    Every process takes part in the evaluation; rank 0 writes. The trainer's model holds the best weights afterwards.
    """
    best = _load_best(trainer)
    name, split = ("test", trainer.splits.test) if trainer.splits.test is not None else ("dev", trainer.splits.dev)
    evaluation = trainer.evaluate(split)
    facts = dict(trainer.splits.facts or {})
    totals = trainer.monitor.totals
    results = {
        "checkpoint": best.name if best is not None else None,
        "split": name,
        "metrics": dict(evaluation.metrics),
        "data": facts,
        "steps": {
            "attempted": trainer.progress.step,
            "applied": totals.applied,
            "undone": totals.undone,
            "skipped": dict(totals.skips),
        },
        "rollbacks": totals.rollbacks,
        "dropped_samples": totals.dropped_samples,
        "clip_rate": totals.clip_rate,
    }
    if not trainer.world.is_main:
        return results
    (folder / "results.json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf8")
    trainer.writers.note(_report(results))
    try:
        for tag, path in trainer.task.pictures(evaluation.outputs, split, folder).items():
            trainer.writers.image(tag, trainer.progress.step, path)
    except OSError as error:  # the run is done, and its results are written
        trainer.writers.note(f"pictures and forecasts of the {name} set could not be written: {error}")
    trainer.writers.hyper_parameters(
        hyper_parameters(trainer), {f"{name}/{k}": v for k, v in evaluation.metrics.items()}
    )
    return results


def _load_best(trainer: Trainer) -> Path | None:
    """Put the best weights into the model; or leave the last ones there, when not every process can read the best.

    Returns:
        The best checkpoint; None when the last weights are what will be evaluated.
    """
    best, problem = trainer.store.best(), ""
    try:
        model = trainer.store.load(best).model if best is not None else None
    except CheckpointError as error:
        model, problem = None, str(error)
    # A disk that is damaged must not keep a run of a week from its end.
    if trainer.world.agree_max(int(bool(problem))):
        trainer.writers.note(
            f"The best checkpoint cannot be used, the results are those of the last weights. {problem or best}"
        )
        return None
    if model is not None:
        load_model_arrays(trainer.model, model)
    return best


def hyper_parameters(trainer: Trainer) -> dict[str, float | int | str]:
    """The values that runs are usually compared by."""
    recipe = trainer.recipe
    return {
        "lr": recipe.optim.lr,
        "batch_size": recipe.data.batch_size * recipe.run.accumulate * trainer.world.size,
        "weight_decay": recipe.optim.weight_decay,
        "schedule": recipe.schedule.kind,
        "clip": recipe.clip.kind,
        "max_norm": recipe.clip.max_norm,
        "amp": recipe.amp.dtype,
        "seed": recipe.run.seed,
        "steps": trainer.schedule.total,
    }


def final_advice(trainer: Trainer) -> list[str]:
    """What the run's figures say about its recipe."""
    naive, dev_metrics = trainer.splits.naive, trainer.dev_metrics
    comparison = None
    if naive is not None and naive.metric in dev_metrics:
        comparison = NaiveComparison(
            metric=naive.metric,
            value=dev_metrics[naive.metric],
            naive=naive.value,
            naive_answer=naive.words,
            higher_is_better=trainer.task.metric_names[naive.metric],
        )
    recipe = trainer.recipe
    bound = GlobalNormClip(recipe.clip.max_norm, recipe.clip.schedule).bound(trainer.progress.applied)
    return advice(
        trainer.monitor,
        clipping=Clipping(recipe.clip, bound, trainer.task.model_kind),
        amp=recipe.amp,
        comparison=comparison,
        diverging=trainer.recovery.diverging_at_the_end() is not None,
    )


def _report(results: Mapping[str, Any]) -> str:
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in results["metrics"].items())
    lines = [f"{results['split']} set, checkpoint {results['checkpoint'] or 'none (last weights)'}: {metrics}"]
    beside = [f"{k} {_shown(v)}" for k, v in results["data"].items() if k.startswith(f"{results['split']}_")]
    if beside:
        lines.append(f"beside it: {', '.join(beside)}")
    steps = results["steps"]
    skipped = ", ".join(f"{count} {reason}" for reason, count in steps["skipped"].items() if count)
    lines.append(
        f"steps: {steps['attempted']} attempted, {steps['applied']} applied, {steps['undone']} undone, "
        f"skipped: {skipped or 'none'}; "
        f"clip rate {results['clip_rate']:.1%}"
    )
    return "\n".join(lines)


def _shown(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4f}"
