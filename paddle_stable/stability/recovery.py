"""Recovery: when a run diverges, go back to a state that was good, learn more slowly, and go on past the data.

The ladder that people climb by hand (PaLM went about 100 steps back and past 200-500 batches, OPT multiplied the
learning rate, tens of times): the guard clips and skips; this goes back to the last good state in memory, multiplies
the learning rate and warms it up again; after `max_rollbacks` the run ends with an explanation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, final

import numpy as np

from paddle_stable.data.dataset import Array
from paddle_stable.recipe import RecoveryConfig
from paddle_stable.stability.step_report import SkipReason, StepReport

SMOOTHING = 0.9
"""Of the loss, before it is compared with its own best: single batches are noisy."""
ENOUGH = 10
"""Losses before their average is compared with anything, at the beginning and after a rollback."""


@final
@dataclass(frozen=True)
class Snapshot:
    """A state that was good: copies in host memory, and what belongs to them."""

    model: Mapping[str, Array]
    optimizer: Mapping[str, Array]
    state: Mapping[str, Any]
    """The part of the trainer's state that goes back with the parameters; JSON."""

    def arrays(self) -> dict[str, Array]:
        """All arrays, each under one name: what a checkpoint keeps besides `state`."""
        model = {f"model/{name}": array for name, array in self.model.items()}
        return {**model, **{f"optimizer/{name}": array for name, array in self.optimizer.items()}}

    @staticmethod
    def of(arrays: Mapping[str, Array], state: Mapping[str, Any]) -> Snapshot:
        """From what `arrays` gave."""
        parts: dict[str, dict[str, Array]] = {"model": {}, "optimizer": {}}
        for name, array in arrays.items():
            part, _, rest = name.partition("/")
            parts[part][rest] = array
        return Snapshot(parts["model"], parts["optimizer"], state)

    def is_finite(self) -> bool:
        """Whether it holds no NaN and no inf."""
        return all(bool(np.isfinite(array).all()) for array in self.arrays().values())


@final
@dataclass(frozen=True, slots=True)
class Health:
    """How the newest steps went: what is good enough to go back to, and what is divergence.

    A loss that can be negative has no "times its best": where the best is not positive, nothing counts as far above it.
    """

    loss: float | None = None
    """Smoothed over applied steps; None before the first."""
    best_loss: float | None = None
    high_steps: int = 0
    """Applied steps in a row whose smoothed loss was far above its best."""
    usable_steps: int = 0
    """Steps in a row that were neither non-finite nor a spike."""
    seen: int = 0
    """Losses in the average since it was begun, at the beginning or after a rollback."""

    def after(self, report: StepReport, config: RecoveryConfig) -> Health:
        """The health after one more step. Withheld steps and overflows say nothing about the model."""
        verdict = report.verdict
        if verdict.skipped in (SkipReason.WITHHELD, SkipReason.OVERFLOW):
            return self
        if not verdict.applied or not math.isfinite(verdict.loss):
            return replace(self, usable_steps=0)
        usable_steps = 0 if verdict.spike else self.usable_steps + 1
        # One huge value must not keep the average high for long: it counts as twice the limit.
        most = 2.0 * config.loss_factor * self.best_loss if self.best_loss and self.best_loss > 0.0 else math.inf
        value, seen = min(verdict.loss, most), self.seen + 1
        before = self.loss if self.loss is not None else value
        loss = before + max(1.0 - SMOOTHING, 1.0 / seen) * (value - before)
        if seen < ENOUGH:  # a single small loss must not be the best for ever, nor a single large one divergence
            return Health(loss, self.best_loss, 0, usable_steps, seen)
        best = loss if self.best_loss is None else min(self.best_loss, loss)
        high = best > 0.0 and loss > config.loss_factor * best
        return Health(loss, best, self.high_steps + 1 if high else 0, usable_steps, seen)


@final
@dataclass(frozen=True, slots=True)
class Setback:
    """What rollbacks have done to the learning rate."""

    rollbacks: int = 0
    applied: int = 0
    """Updates that were left after the newest rollback."""

    def lr_factor(self, applied: int, config: RecoveryConfig) -> float:
        """Factor on the scheduled learning rate after `applied` updates: backed off, and warmed up again."""
        if self.rollbacks == 0:
            return 1.0
        warm = min((applied - self.applied + 1) / (config.rewarm_steps + 1), 1.0)
        return float(config.lr_backoff**self.rollbacks) * warm


@final
class Recovery:
    """Decides when a state is worth keeping and when to go back to it. Touches no tensor.

    Fed with verdicts, which are the same on every process, all processes decide alike.
    """

    def __init__(self, config: RecoveryConfig) -> None:
        """Start without a snapshot."""
        self.config = config
        """The recipe's `stability.recovery`."""
        self._health = Health()
        self._setback = Setback()
        self._kept_at = 0
        self.snapshot: Snapshot | None = None
        """The last good state."""

    @property
    def is_possible(self) -> bool:
        """Whether there is a rollback left."""
        return self.snapshot is not None and self._setback.rollbacks < self.config.max_rollbacks

    @property
    def rollbacks(self) -> int:
        """Rollbacks so far."""
        return self._setback.rollbacks

    def lr_factor(self, applied: int) -> float:
        """Factor on the scheduled learning rate of the next step after `applied` updates."""
        return self._setback.lr_factor(applied, self.config)

    def observe(self, report: StepReport) -> None:
        """Take one more step in."""
        self._health = self._health.after(report, self.config)

    def wants_snapshot(self, applied: int) -> bool:
        """Whether the present state is due, and the newest steps were good enough for it to be kept."""
        if self.config.max_rollbacks == 0:
            return False
        if self.snapshot is None:
            return True
        healthy = self._health.usable_steps >= self.config.healthy_steps and self._health.high_steps == 0
        return healthy and applied - self._kept_at >= self.config.snapshot_every

    def keep(self, snapshot: Snapshot, applied: int) -> None:
        """Make this the state to go back to. It has to be finite, on every process."""
        self.snapshot, self._kept_at = snapshot, applied

    def divergence(self, unusable_in_a_row: int, limit: int) -> str | None:
        """Why the run cannot go on from here, in words; None when it can.

        Args:
            unusable_in_a_row: newest steps that were skipped as non-finite or spike.
            limit: `stability.max_consecutive_skips`.
        """
        if unusable_in_a_row >= limit:
            return f"{limit} steps in a row could not be used (stability.max_consecutive_skips)"
        health, config = self._health, self.config
        if config.max_rollbacks and health.high_steps >= config.loss_steps and health.loss and health.best_loss:
            return (
                f"the smoothed loss has been above {config.loss_factor:g} times its best for {config.loss_steps} steps "
                f"({health.loss:.4g}, best {health.best_loss:.4g})"
            )
        return None

    def diverging_at_the_end(self) -> str | None:
        """Why a run that has come to its last step has not ended well, in words; None when it has."""
        health, factor = self._health, self.config.loss_factor
        if self.config.max_rollbacks and health.high_steps and health.loss and health.best_loss:
            return f"the smoothed loss ends above {factor:g} times its best ({health.loss:.4g}, {health.best_loss:.4g})"
        return None

    def rolled_back(self, applied: int) -> None:
        """The parameters are those of the snapshot again, after `applied` updates."""
        self._setback = Setback(self._setback.rollbacks + 1, applied)
        # The best loss stays: what comes after has to reach it again.
        self._health = replace(self._health, loss=None, high_steps=0, usable_steps=0, seen=0)

    def state(self) -> dict[str, Any]:
        """For a checkpoint, without the snapshot's arrays; JSON."""
        return {
            "health": asdict(self._health),
            "setback": asdict(self._setback),
            "kept_at": self._kept_at,
            "snapshot": dict(self.snapshot.state) if self.snapshot is not None else None,
        }

    def load_state(self, state: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """From a checkpoint; `arrays` are those of the snapshot."""
        self._health = Health(**state["health"])
        self._setback = Setback(**state["setback"])
        self._kept_at = state["kept_at"]
        self.snapshot = Snapshot.of(arrays, state["snapshot"]) if state["snapshot"] is not None else None
