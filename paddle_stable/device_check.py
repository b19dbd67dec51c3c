"""Which promises hold on this machine's device: what a CPU cannot show, run by `make check-device`.

Every check trains a small recipe for a few steps through the same code as a real run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import paddle

from paddle_stable.build import build_trainer, prepare, use_device
from paddle_stable.digest import digest
from paddle_stable.distributed import World
from paddle_stable.errors import InputError
from paddle_stable.recipe_io import load_recipe
from paddle_stable.resume import restore
from paddle_stable.stability.step_report import StepReport
from paddle_stable.trainer import Trainer
from paddle_stable.training_state import model_arrays, optimizer_arrays

STEPS = 16
PRECISIONS: Mapping[str, Mapping[str, Any]] = {
    "float32": {},
    "float16 O1": {"amp.dtype": "float16", "amp.level": "O1"},
    "float16 O2": {"amp.dtype": "float16", "amp.level": "O2"},
    "bfloat16 O1": {"amp.dtype": "bfloat16", "amp.level": "O1"},
    "bfloat16 O2": {"amp.dtype": "bfloat16", "amp.level": "O2"},
    "float16 emulated": {"amp.dtype": "float16", "amp.emulate": True},
}


@final
@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report."""

    precision: str
    promise: str
    held: bool | None
    """None: this device cannot do it, `detail` says why."""
    detail: str = ""

    def __str__(self) -> str:
        word = {True: "held", False: "BROKEN", None: "not possible"}[self.held]
        return f"{self.precision:<17} {word:<13} {self.promise}{f' ({self.detail})' if self.detail else ''}"


@final
class DeviceCheck:
    """Runs the checks of one recipe on one device."""

    def __init__(self, recipe: str, device: str, folder: Path) -> None:
        """`folder` takes sample data and checkpoints; the caller removes it."""
        self._recipe = recipe
        self._folder = folder
        task = load_recipe(recipe).task_class
        self._values = {
            **task.write_sample_data(folder / "data"),
            "run.device": device,
            "run.deterministic": True,
            "run.steps": STEPS,
            "run.eval_every": STEPS,
            "run.output_dir": str(folder / "run"),
        }

    def run(self) -> Iterator[Check]:
        """All checks, one after the other; an exception is a broken promise, not an end."""
        promises: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
            "a poisoned step changes nothing that learns": self._poison,
            "one device-to-host read a step": self._reads,
            "gradients are those of float32": self._close_to_float32,
            "a resumed run equals the uninterrupted one": self._resume,
            "overflow lowers the loss scale and recovers": self._overflow,
        }
        for precision, values in PRECISIONS.items():
            for promise, check in promises.items():
                try:
                    wrong = check(values)
                    yield Check(precision, promise, held=not wrong, detail=wrong)
                except InputError as error:
                    yield Check(precision, "any", held=None, detail=error.problems[0].message)
                    break
                except Exception as error:  # noqa: BLE001 - the next promise is still worth a look
                    yield Check(precision, promise, held=False, detail=f"{type(error).__name__}: {error}")

    def _trainer(self, values: Mapping[str, Any], name: str) -> Trainer:
        loaded = load_recipe(self._recipe, smoke=True, set_values={**self._values, **values})
        use_device(loaded.recipe)
        world = World.single()
        return build_trainer(prepare(loaded, world), world, folder=self._folder / name)

    def _poison(self, values: Mapping[str, Any]) -> str:
        faults = [{"step": 3, "kind": "nan_loss"}, {"step": 7, "kind": "nan_loss"}]
        withheld = [{"step": 3, "kind": "withhold"}, {"step": 7, "kind": "withhold"}]
        ends = []
        for chosen in (faults, withheld):
            trainer = self._trainer({**values, "faults": chosen}, "poison")
            _steps(trainer, STEPS)
            ends.append(_digest(trainer))
        return "" if ends[0] == ends[1] else "differs from a run that withholds the same steps"

    def _reads(self, values: Mapping[str, Any]) -> str:
        trainer = self._trainer(values, "reads")
        _steps(trainer, 2)
        windows = trainer.loader.steps()
        with counted_reads() as reads:
            trainer.train_step(windows)
        return "" if len(reads) <= 1 else f"{len(reads)}: {', '.join(reads)}"

    def _close_to_float32(self, values: Mapping[str, Any]) -> str:
        norms = []
        for chosen in ({}, values):
            reports = _steps(self._trainer(chosen, "norms"), STEPS)
            norms.append(next(r.verdict.grad_norm for r in reports if r.verdict.applied))
        return "" if abs(norms[1] / norms[0] - 1.0) < 0.05 else f"first norm {norms[1]:.4g}, in float32 {norms[0]:.4g}"

    def _resume(self, values: Mapping[str, Any]) -> str:
        whole = self._trainer(values, "whole")
        _steps(whole, STEPS)
        first = self._trainer(values, "first")
        _steps(first, STEPS // 2)
        first.save(is_best=False)
        first.finish_saving()
        second = self._trainer(values, "first")
        path = second.store.newest_valid()[0]
        if path is None:
            return "the checkpoint does not verify"
        restore(second, path)
        _steps(second, STEPS - STEPS // 2)
        return "" if _digest(whole) == _digest(second) else "parameters or moments differ"

    def _overflow(self, values: Mapping[str, Any]) -> str:
        if values.get("amp.dtype") != "float16":
            return ""
        trainer = self._trainer({**values, "amp.init_scale": 2.0**40, "amp.max_scale": 2.0**40}, "overflow")
        before = _digest(trainer)
        report = _steps(trainer, 1)[0]
        if report.verdict.applied or _digest(trainer) != before:
            return "a scale of 2^40 did not lead to a skip that changes nothing"
        reports = _steps(trainer, 40)
        return "" if reports[-1].verdict.applied else "still overflowing after 40 steps"


@contextmanager
def counted_reads() -> Iterator[list[str]]:
    """Collects the names of the tensor methods that copy to the host, as they are called."""
    tensor = type(paddle.ones([1]))
    names = ("numpy", "item", "tolist", "__float__", "__int__", "__bool__", "__array__")
    originals = {name: getattr(tensor, name) for name in names}
    reads: list[str] = []

    def counting(name: str) -> Callable[..., Any]:
        def read(self: Any, *args: Any, **kwargs: Any) -> Any:
            reads.append(name)
            return originals[name](self, *args, **kwargs)

        return read

    for name in names:
        setattr(tensor, name, counting(name))
    try:
        yield reads
    finally:
        for name, original in originals.items():
            setattr(tensor, name, original)


def _steps(trainer: Trainer, count: int) -> list[StepReport]:
    windows = trainer.loader.steps()
    reports = []
    for _ in range(count):
        report = trainer.train_step(windows)
        trainer.monitor.update(report)
        reports.append(report)
    return reports


def _digest(trainer: Trainer) -> str:
    arrays = {**model_arrays(trainer.model), **optimizer_arrays(trainer.optimizer, trainer.model)}
    return digest({name: np.asarray(array) for name, array in arrays.items()})
