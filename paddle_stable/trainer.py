"""Trainer: one loop that spells out what happens."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, final

import paddle

from paddle_stable.background_saving import BackgroundSaving
from paddle_stable.checkpoint import CheckpointError, CheckpointParts, CheckpointStore, NonFiniteState
from paddle_stable.checkpoint_folder import non_finite_names
from paddle_stable.data.dataset import Batch, Dataset, Splits
from paddle_stable.data.loader import Loader, Window
from paddle_stable.distributed import World
from paddle_stable.errors import Diverged, StepFailed, Stopped
from paddle_stable.evaluation import Evaluation, evaluate
from paddle_stable.progress import Best, Progress
from paddle_stable.recipe import Recipe
from paddle_stable.schedule import Schedule
from paddle_stable.seeding import seed_step
from paddle_stable.stability.amp import Precision
from paddle_stable.stability.bad_samples import BadSamples
from paddle_stable.stability.faults import Faults
from paddle_stable.stability.forensics import EXPLAINED, Forensics, Incident
from paddle_stable.stability.guard import StepGuard
from paddle_stable.stability.monitor import Monitor, Totals
from paddle_stable.stability.quarantine import Quarantine
from paddle_stable.stability.recovery import Recovery, Snapshot
from paddle_stable.stability.step_report import SkipReason, StepReport, Verdict
from paddle_stable.stop_signal import StopSignal
from paddle_stable.task import Task
from paddle_stable.training_state import load_model_arrays, load_optimizer_arrays, model_arrays, optimizer_arrays
from paddle_stable.watchdog import Heartbeat
from paddle_stable.writers import NoRecord, Writers


@final
@dataclass
class Trainer:
    """Everything a run consists of, put together by `build.build_trainer`."""

    recipe: Recipe
    recipe_text: str
    task: Task
    splits: Splits
    world: World
    model: paddle.nn.Layer
    network: paddle.nn.Layer
    """`model`, or its data-parallel wrapper when there are several processes."""
    optimizer: paddle.optimizer.Optimizer
    precision: Precision
    guard: StepGuard
    schedule: Schedule
    loader: Loader
    faults: Faults
    monitor: Monitor
    recovery: Recovery
    bad_samples: BadSamples
    quarantine: Quarantine
    forensics: Forensics
    store: CheckpointStore
    saving: BackgroundSaving
    best: Best
    progress: Progress = field(default_factory=Progress)
    writers: Writers = field(default_factory=NoRecord)
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    dev_metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the newest evaluation on the dev set; empty before the first."""
    incident: Incident | None = None
    """What there is to say about the newest step, when it was an incident."""
    not_saved: str = ""
    """Why the last checkpoint could not be written, when training ended for another reason before that was known."""

    def fit(self, stop: StopSignal) -> None:
        """Train until the last step or until patience runs out.

        Args:
            stop: tells when a signal has asked for an end; entered by the caller, who outlives the loop.

        Raises:
            Diverged: after too many unusable steps in a row, or when parameters are no longer finite.
            Stopped: after a signal, with a checkpoint of the last finished step.
            StepFailed: when an operation raises.
            SampleError: when a sample cannot be prepared.
            CheckpointError: when a checkpoint cannot be written; the earlier ones are intact.
        """
        try:
            self._fit(stop)
            self.finish_saving()
        finally:
            self._leave_no_save_behind()

    def _fit(self, stop: StopSignal) -> None:
        run = self.recipe.run
        windows = self.loader.steps()
        self._keep_good_state()
        while self.progress.step < self.schedule.total and not self.out_of_patience():
            # A checkpoint that could not be written in the meantime is a reason to stop, for all processes at once.
            report = self.train_step(windows, stop_vote=stop.received is not None or self.saving.has_failed)
            self._record(report)
            self._go_back_when_diverged(report.verdict)
            evaluated, best_saved = self._due(run.eval_every), self.best
            improved = self._evaluate_dev() if evaluated else False
            if improved or (evaluated if run.save_every is None else self._due(run.save_every)):
                self._save_or_go_back(best_saved, is_best=improved)
            if report.verdict.stop_requested:
                raise Stopped(self._save_for_a_stop())

    def train_step(self, windows: Iterator[Window], *, stop_vote: bool = False) -> StepReport:
        """Run one optimizer step over the next window and say what it did."""
        started = time.perf_counter()
        epoch = self.loader.position.epoch + self.loader.position.window / self.loader.steps_per_epoch
        window = next(windows)
        waited = time.perf_counter() - started
        step = self.progress.step + 1
        self.heartbeat.begin_step(step)
        applied = self.progress.applied  # a skipped step must not use up learning rate
        lr = self.schedule.lr(applied) * self.recovery.lr_factor(applied)
        self.optimizer.set_lr(lr)
        parts = tuple(self.faults.spoil_batch(step, batch) for batch in window.parts)
        if self.faults.withholds(step) or not window.samples:
            verdict = self.guard.withhold()
        else:
            self.faults.spoil_parameters(step, self.model)
            verdict = self._attempt(step, parts, stop_vote=stop_vote)
        report = StepReport(step, epoch, verdict, lr, seconds=time.perf_counter() - started, data_seconds=waited)
        # Both look at the samples once more, while the parameters are still those of the step.
        self.incident = self.forensics.explain(report, parts, self.monitor)
        if verdict.skipped in EXPLAINED:
            self.world.meet()  # the process that met the cause has had much more to compute
        if verdict.skipped is SkipReason.NONFINITE:
            verdict = self._without_bad_samples(step, replace(window, parts=parts), verdict, stop_vote=stop_vote)
            report = replace(report, verdict=verdict, seconds=time.perf_counter() - started)
        self.progress = self.progress.after(verdict)
        self.forensics.remember(report)
        return report

    def _attempt(self, step: int, parts: Sequence[Batch], *, stop_vote: bool) -> Verdict:
        """Forward and backward over this process's micro-batches, then the guard's decision."""
        seed_step(self.recipe.run.seed, self.world.rank, step)
        self.guard.begin()
        losses = []
        for batch in parts:
            try:
                # Gradients are added up over the processes once, with the last micro-batch.
                with self.world.sync_gradients(self.network, enabled=batch is parts[-1]):
                    with self.precision.autocast():
                        loss = self.task.loss(self.network, batch)
                    loss = self.faults.spoil_loss(step, loss) * batch.weight
                    self.precision.backward(self.faults.spoil_backward(step, loss) * self.world.gradient_scale)
            except Exception as error:
                raise StepFailed(self._what_failed(step, batch, error)) from error
            losses.append(loss)
        self.faults.spoil_gradients(step, self.model)
        samples = sum(batch.size for batch in parts if batch.weight > 0.0)
        return self.guard.step(
            self.optimizer, losses, samples=samples, applied=self.progress.applied, stop_vote=stop_vote
        )

    def _without_bad_samples(self, step: int, window: Window, verdict: Verdict, *, stop_vote: bool) -> Verdict:
        """Blame the samples that are not finite on their own; with `drop`, do the step without them."""
        drops = self.recipe.stability.bad_samples == "drop"
        # A parameter that is not finite spoils the samples that use it: none of them is to blame.
        if not (drops or self.quarantine.is_wanted) or self._is_model_spoilt():
            return verdict
        bad = self.bad_samples.find(step, window.parts)
        if len(bad) == len(window.samples) > 1:
            return verdict  # what all of them meet is in the model
        self._put_into_quarantine(step, bad)
        if not drops or not bad or len(bad) == len(window.samples):
            return verdict
        kept = self.loader.without(window, bad)
        again = self._attempt(step, kept.parts, stop_vote=stop_vote)
        if again.applied:
            self.writers.note(f"step {step}: done without {len(bad)} of its samples, not finite on their own")
        return replace(again, dropped=len(bad) if again.applied else 0)

    def _put_into_quarantine(self, step: int, bad: frozenset[int]) -> None:
        entering = self.quarantine.blame(bad, step)
        if not entering:
            return
        self.loader.leave_out(self.quarantine.left_out)
        if self.world.is_main:
            self.quarantine.write(self.store.folder.parent, self.splits.train)
        for index in sorted(entering):
            self.writers.note(f"step {step}: left out from now on: {self.splits.train.origin(index)}")

    def evaluate(self, dataset: Dataset) -> Evaluation:
        """Metrics of the present parameters over a split."""
        return evaluate(
            self.task,
            self.model,
            self.precision,
            dataset,
            batch_size=self.recipe.data.eval_batch_size,
            world=self.world,
            heartbeat=self.heartbeat,
        )

    def save(self, *, is_best: bool) -> None:
        """Begin to write a checkpoint of the last finished step, on rank 0; training may go on when this returns.

        Raises:
            NonFiniteState: when a parameter or a moment is not finite. Nothing is written then.
            CheckpointError: when the checkpoint before could not be written; the earlier ones are intact.
        """
        failure: Exception | None = None
        if self.world.is_main:
            try:
                self._finish_saving_here()
                self.saving.begin(self.progress.step, self._parts(), best=is_best, records=self.writers)
            except (NonFiniteState, CheckpointError) as error:
                failure = error
        self._agree_on_failure(failure)

    def finish_saving(self) -> None:
        """Wait until the newest checkpoint is on the disk. All processes call it.

        Raises:
            CheckpointError: when it could not be written; the earlier ones are intact.
        """
        try:
            self._finish_saving_here()
        except CheckpointError as error:
            self._agree_on_failure(error)
        self._agree_on_failure(None)

    def _agree_on_failure(self, failure: Exception | None) -> None:
        """Raise on all processes, and the same: those that heard nothing would wait for rank 0 in the next step."""
        agreed = self.world.agree_max({type(None): 0, CheckpointError: 1, NonFiniteState: 2}[type(failure)])
        self.heartbeat.beat()
        if agreed:
            elsewhere = NonFiniteState([]) if agreed == 2 else CheckpointError("rank 0 could not save; it says why")
            raise failure or elsewhere

    def _finish_saving_here(self) -> None:
        saved = self.saving.finish()
        if saved is not None:
            self.writers.note(saved)

    def _leave_no_save_behind(self) -> None:
        """Wait for a save when training ends for another reason, which a failure of the save is not to hide."""
        try:
            said = self.saving.finish()
        except CheckpointError as error:
            said = self.not_saved = str(error)
        if said is not None:
            with contextlib.suppress(OSError):  # on a full disk the log cannot be written either
                self.writers.note(said)

    def out_of_patience(self) -> bool:
        """Whether `run.early_stop` evaluations in a row were no better."""
        patience = self.recipe.run.early_stop
        return patience is not None and self.best.evaluations_since >= patience

    def state(self) -> dict[str, Any]:
        """Everything besides model and optimizer that a resumed run needs; JSON."""
        return {
            "progress": self.progress.state(),
            "position": self.loader.position.state(),
            "best": self.best.state(),
            "amp": self.precision.scaling.state(),
            "clip": self.guard.clip.state(),
            "spikes": self.guard.spikes.state(),
            "recovery": self.recovery.state(),
            "quarantine": self.quarantine.state(),
            "monitor": self.monitor.state(),
            "forensics": self.forensics.state(),
            "dev_metrics": dict(self.dev_metrics),
            "plan": self.loader.plan_facts(),
            "training_data": self.loader.data_digest,
        }

    def _parts(self) -> CheckpointParts:
        memory = self.saving.memory()
        return CheckpointParts(
            model=model_arrays(self.model, memory),
            optimizer=optimizer_arrays(self.optimizer, self.model, memory),
            state=self.state(),
            assets={**self.task.assets(), "recipe.yaml": self.recipe_text},
            snapshot=self.recovery.snapshot.arrays() if self.recovery.snapshot is not None else {},
        )

    def _record(self, report: StepReport) -> None:
        if self.saving.has_saved:
            self._finish_saving_here()
        self.monitor.update(report)
        self.recovery.observe(report)
        log = report.step % self.recipe.run.log_every == 0 or report.step == self.schedule.total
        self.writers.step(report, self.monitor.scalars() if log else None)
        if self.incident is not None:
            self._write_down(self.incident)

    def _write_down(self, incident: Incident) -> None:
        self.writers.note(incident.headline)
        self.writers.text(incident.tag, incident.text, self.progress.step)

    def _go_back_when_diverged(self, verdict: Verdict) -> None:
        """Roll back when the run has diverged, or keep its state when that is due and good."""
        limit = self.recipe.stability.max_consecutive_skips
        why = self.recovery.divergence(self.progress.unusable_in_a_row, limit)
        # Without a rollback left, a spike is skipped like any other: it is no reason to end a run.
        if verdict.skipped is SkipReason.SPIKE and self.guard.spikes.rolls_back and self.recovery.is_possible:
            why = f"{' and '.join(verdict.spike)} far beyond the usual (stability.spike.action: rollback)"
        if why is None and verdict.skipped is SkipReason.NONFINITE and self._is_model_spoilt():
            why = "a parameter is not finite"  # no step can be used from here on
        if why is None and not self._keep_good_state():
            why = "a parameter or a moment is not finite"
        if why is not None:
            self._go_back(why)

    def _is_model_spoilt(self) -> bool:
        """Whether the model holds NaN or inf, on any process: all have to go back then, or none."""
        return bool(self.world.agree_max(int(bool(non_finite_names(model_arrays(self.model))))))

    def _save_or_go_back(self, best_saved: Best, *, is_best: bool) -> None:
        """Save; or, where the state is not finite, return to the last good one.

        What could not be saved is not the best: `best_saved`, which is on the disk, stays it.
        """
        try:
            self.save(is_best=is_best)
        except NonFiniteState as error:
            self._go_back(str(error))
            self.best = replace(best_saved, evaluations_since=self.best.evaluations_since)

    def _save_for_a_stop(self) -> str:
        """Save where a signal ends the run. Returns what to say of it."""
        stopped = f"stopped by a signal after step {self.progress.step}"
        try:
            self.save(is_best=False)
        except NonFiniteState as error:
            # Going back here would be a step at which the uninterrupted run does not: it is done again instead.
            self.finish_saving()
            return (
                f"{stopped}; {error}. From the checkpoint before (or the beginning) the run will be as without the stop"
            )
        self.finish_saving()
        return f"{stopped}; checkpoint saved"

    def _go_back(self, why: str) -> None:
        """Roll back to the last good state.

        Raises:
            Diverged: when there is no good state or no rollback left.
        """
        snapshot = self.recovery.snapshot
        if snapshot is None or not self.recovery.is_possible:
            raise Diverged(
                f"{why} at step {self.progress.step}, after {self.recovery.rollbacks} rollbacks. "
                f"{self.monitor.explain_skips()}"
            )
        undone = self.progress.applied - snapshot.state["applied"]
        if self.world.is_main:
            self._write_down(
                self.forensics.explain_rollback(
                    why, self.recovery, self.monitor, step=self.progress.step, undone=undone
                )
            )
        self._roll_back(snapshot)
        self.writers.note(
            f"step {self.progress.step}: rolled back, {why}. {undone} applied steps are undone; going on past the data "
            f"that did it, at {self.recovery.lr_factor(10**9):g} of the scheduled learning rate"
        )

    def _keep_good_state(self) -> bool:
        """Keep the present state for a rollback when that is due. False: it was, and the state is not finite."""
        if not self.recovery.wants_snapshot(self.progress.applied):
            return True
        state = {
            "applied": self.progress.applied,
            "amp": self.precision.scaling.state(),
            "clip": self.guard.clip.state(),
            "spikes": self.guard.spikes.state(),
            "evaluations_since": self.best.evaluations_since,
            "totals": asdict(self.monitor.totals),
        }
        kept = Snapshot(model_arrays(self.model), optimizer_arrays(self.optimizer, self.model), state)
        if self.world.agree_max(int(not kept.is_finite())):
            return False
        self.recovery.keep(kept, self.progress.applied)
        return True

    def _roll_back(self, snapshot: Snapshot) -> None:
        """Put the good state back; steps, loader and records go on."""
        state = snapshot.state
        load_model_arrays(self.model, snapshot.model)
        load_optimizer_arrays(self.optimizer, self.model, snapshot.optimizer)
        self.precision.scaling.load_state(state["amp"])
        self.guard.clip.load_state(state["clip"])
        self.guard.spikes.load_state(state["spikes"])
        # A better checkpoint that was saved in between stays the best: it is on disk, verified and finite.
        self.best = replace(self.best, evaluations_since=state["evaluations_since"])
        self.monitor.rolled_back(Totals(**state["totals"]))
        self.progress = self.progress.rolled_back(state["applied"])
        self.recovery.rolled_back(self.progress.applied)

    def _due(self, every: int | None) -> bool:
        """Every so many steps, or at the end of an epoch; always after the last step."""
        at_end = self.progress.step == self.schedule.total
        if every is None:
            return at_end or self.loader.position.window == 0
        return at_end or self.progress.step % every == 0

    def _evaluate_dev(self) -> bool:
        """Evaluate on the dev set; true when it is the best so far."""
        metrics = self.dev_metrics = self.evaluate(self.splits.dev).metrics
        self.best = self.best.after(self.progress.step, metrics[self.best.metric])
        self.writers.evaluation(self.progress.step, metrics)
        if self.world.is_main:
            parameters = {
                f"parameters/{name}": p.astype("float32").numpy()
                for name, p in self.model.named_parameters()
                if not p.stop_gradient
            }
            self.writers.histograms(self.progress.step, {**self.monitor.group_norms(), **parameters})
        return self.best.evaluations_since == 0 and self.best.value is not None

    def _what_failed(self, step: int, batch: Batch, error: Exception) -> str:
        self.saving.wait()
        origins = [str(self.splits.train.origin(index)) for index in batch.indices]
        newest = self.store.newest_valid()[0] if self.world.is_main else None
        kept = f"The last checkpoint is {newest}." if newest else "There is no checkpoint yet."
        if not self.world.is_main:
            kept = "Rank 0 has the checkpoints."
        shown = "\n".join(f"  {origin}" for origin in origins[:64])
        return f"step {step} failed with {type(error).__name__}: {error}\nSamples in it:\n{shown}\n{kept}"
