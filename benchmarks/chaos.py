"""Faults of every kind, at every moment, in every task: what becomes of the runs, unattended.

python benchmarks/chaos.py
python benchmarks/chaos.py --budget-minutes 5        then the same again goes on where it stopped
python benchmarks/chaos.py --unguarded               the negative control: the same faults without guard and recovery

Every cell is a whole run of `tools/train.py` at the recipe's smoke sizes on made-up data. A run has kept its learning
when its last dev metric has at least 70 % of the gain over the naive answer that a clean run has; all others have to
end with a code and a reason in `exit.json`. One JSON line a finished cell goes to the output file.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # has to be there before denormals are flushed

from paddle_stable.tool_start import start_tool

if __name__ == "__main__":
    start_tool()  # before the first tensor

from benchmarks.finished_cells import append, finished
from paddle_stable.build import prepare
from paddle_stable.data.dataset import NaiveAnswer
from paddle_stable.data.workers import prepare as prepare_batch
from paddle_stable.distributed import World
from paddle_stable.errors import ExitCode
from paddle_stable.recipe_io import load_recipe
from paddle_stable.run import TrainingRequest, run_training

RECIPES = ("ernie_cls", "lstm_forecast", "dbnet_det")
STEPS = 60
MOMENTS = {"early": 12, "middle": 28, "late": 44}
KEPT = 0.7
GUARDED: Mapping[str, Any] = {
    "run.epochs": None,
    "run.steps": STEPS,
    "run.log_every": STEPS,
    "run.eval_every": STEPS // 2,
    "stability.max_consecutive_skips": 4,
    "stability.spike.warmup_steps": 8,
    "stability.recovery.snapshot_every": 5,
    "stability.recovery.healthy_steps": 2,
    "stability.recovery.rewarm_steps": 3,
    "stability.recovery.loss_steps": 3,
    "forensics.max_samples": 8,
}
"""The defaults are made for runs of thousands of steps; these for runs of 60."""
UNGUARDED: Mapping[str, Any] = {
    "stability.guard": False,
    "stability.spike.action": "none",
    "stability.recovery.max_rollbacks": 0,
    "forensics.enabled": False,
}
HALF = {"amp.dtype": "float16", "amp.emulate": True, "amp.init_scale": 1024.0}
FATAL = ("nan_loss", "nan_grad", "inf_grad", "nan_parameter", "nan_embedding", "nan_burst", "overflow_fp16")
"""Faults that end every run in which nobody looks: the negative control has to fail in all of them."""


@final
@dataclass(frozen=True, slots=True)
class Subject:
    """A task at its smoke sizes."""

    name: str
    config: str
    values: Mapping[str, Any]
    """Overrides that make it use made-up data."""
    naive: NaiveAnswer
    embedding: Mapping[str, Any]
    """A row of a parameter that the data really use, for `nan_embedding`."""
    label: str
    """The batch's tensor with what is to be predicted."""


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    task: str
    fault: str
    moment: str
    guarded: bool

    @property
    def name(self) -> str:
        """Under which its result is kept."""
        return f"{self.task}/{self.fault}/{self.moment}/{'guarded' if self.guarded else 'unguarded'}"


COMPOSED: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "nan_burst": ({"kind": "nan_loss", "steps": 3}, {}),
    "overflow_fp16": ({"kind": "overflow", "steps": 2}, HALF),
    "weights_grow": ({"kind": "grow_weights", "steps": 8}, {}),
    "sustained_divergence": ({"kind": "grow_weights", "steps": 2 * STEPS}, {"run.steps": 2 * STEPS}),
    "nan_input": ({"kind": "nan_input"}, {"stability.bad_samples": "skip"}),
    "bad_input_dropped": ({"kind": "nan_input"}, {"stability.bad_samples": "drop"}),
    "spike_rolled_back": (
        {"kind": "loss_spike"},
        {"stability.spike.action": "rollback", "stability.spike.rebaseline_after": 3},
    ),
}
"""Faults under a name of their own: what they are made of, and what the recipe needs besides."""


def faults_of(name: str, step: int, subject: Subject) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
    """The recipe's `faults:` for a named fault that begins in a step, and what else it needs."""
    fault, recipe = COMPOSED.get(name, ({"kind": name}, {}))
    places = {"nan_embedding": subject.embedding, "corrupt_label": {"tensor": subject.label}}
    return [{"step": step, **fault, **places.get(name, {})}], recipe


IMPOSSIBLE = (("ernie_cls", "nan_input"), ("ernie_cls", "bad_input_dropped"))
"""Texts are whole numbers, of which none can be NaN."""
HOPELESS = ("sustained_divergence", "raise")
"""No trainer goes on learning under these: the run has to end, and say why."""
FAULTS = (
    "nan_loss", "nan_burst", "nan_grad", "inf_grad", "huge_grad", "loss_spike", "spike_rolled_back", "overflow",
    "overflow_fp16", "nan_input", "bad_input_dropped", "nan_parameter", "nan_embedding", "corrupt_label",
    "weights_grow", "sustained_divergence", "raise",
)  # fmt: skip


def subjects(folder: Path) -> Iterator[Subject]:
    """Every task whose recipe is there, with made-up data in `folder`."""
    for name in RECIPES:
        config = ROOT / "configs" / f"{name}.yaml"
        if not config.exists():
            continue
        values = load_recipe(str(config)).task_class.write_sample_data(folder / name)
        values |= {"run.output_dir": str(folder / "unused")}
        prepared = prepare(load_recipe(str(config), smoke=True, set_values=values), World.single())
        if prepared.splits.naive is None:
            raise ValueError(f"{name}: there is nothing to compare with")
        arrays = prepare_batch(prepared.splits.train, (0,), seed=0, epoch=0)
        names = [n for n, p in prepared.model.named_parameters() if p.ndim > 1]
        words = next((a for a in arrays.values() if a.dtype.kind == "i" and a.ndim > 1), None)
        row = int(words[0, 1]) if words is not None else 0
        label = next(n for n in arrays if n in ("label", "labels", "target", "shrink_map"))
        yield Subject(name, str(config), values, prepared.splits.naive, {"parameter": names[0], "row": row}, label)


def run_cell(cell: Cell, subject: Subject, folder: Path) -> dict[str, Any]:
    """Train once; what came out, without judgement."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    faults: list[dict[str, Any]] = []
    extra: Mapping[str, Any] = {}
    if cell.fault != "clean":
        faults, extra = faults_of(cell.fault, MOMENTS[cell.moment], subject)
    values = {**subject.values, **GUARDED, "run.output_dir": str(run), "faults": faults, **extra}
    if not cell.guarded:
        values |= UNGUARDED
    overrides = tuple(f"{key}={json.dumps(value)}" for key, value in values.items())
    said = io.StringIO()
    started = time.perf_counter()
    logging.disable(logging.CRITICAL)  # the console's handler was made for the real stderr
    try:
        with redirect_stdout(said), redirect_stderr(said):
            code = run_training(TrainingRequest(subject.config, overrides, smoke=True))
    finally:
        logging.disable(logging.NOTSET)
    if code is ExitCode.INPUT:
        raise RuntimeError(f"{cell.name}: {said.getvalue()}")
    reason = json.loads((run / "exit.json").read_text(encoding="utf8"))["reason"]
    return {
        "cell": cell.name,
        "code": int(code),
        "reason": reason,
        "metric": last_metric(run, subject.naive.metric),
        "naive": subject.naive.value,
        "seconds": round(time.perf_counter() - started, 2),
        "traceback": "Traceback" in said.getvalue() and cell.fault != "raise",
    }


def last_metric(run: Path, metric: str) -> float | None:
    """The dev metric after the last step, None when the run did not come to it."""
    value = None
    for line in (run / "metrics.jsonl").read_text(encoding="utf8").splitlines():
        record = json.loads(line)
        if record["kind"] == "scalars" and record["step"] == STEPS:
            value = record["scalars"].get(f"eval/{metric}", value)
    return value


def kept(result: Mapping[str, Any], clean: Mapping[str, Any]) -> float:
    """The part of the clean run's gain over the naive answer that is left; 0 without a last metric."""
    if result["metric"] is None or not np.isfinite(result["metric"]):
        return 0.0
    return float((result["metric"] - result["naive"]) / (clean["metric"] - clean["naive"]))


def verdict(result: Mapping[str, Any], clean: Mapping[str, Any]) -> str:
    """kept: enough was learned; explained: it ended with a code and a reason; lost: neither."""
    if result["code"] == 0 and kept(result, clean) >= KEPT:
        return "kept"
    return "explained" if result["code"] in (1, 3) and result["reason"] and not result["traceback"] else "lost"


def cells_of(names: Sequence[str], *, guarded: bool) -> list[Cell]:
    """The clean runs first, then task by task in turn, so that a partial run has seen all of them."""
    moments = MOMENTS if guarded else {"middle": MOMENTS["middle"]}
    kinds = FAULTS if guarded else FATAL
    clean = [Cell(name, "clean", "", guarded=True) for name in names]
    cells = [Cell(n, fault, moment, guarded) for moment in moments for fault in kinds for n in names]
    return clean + [cell for cell in cells if (cell.task, cell.fault) not in IMPOSSIBLE]


def table(results: Sequence[Mapping[str, Any]], cells: Sequence[Cell]) -> str:
    """What came out, a line a fault and a column a moment: k kept, e explained, L lost; tasks in order."""
    by_name = {result["cell"]: result for result in results}
    names = list(dict.fromkeys(cell.task for cell in cells))
    clean = {name: by_name.get(Cell(name, "clean", "", guarded=True).name) for name in names}
    counts = {"kept": 0, "explained": 0, "lost": 0}
    lines = [
        f"tasks, in this order: {', '.join(names)}. k: kept, e: explained end, L: lost, -: not run yet, .: cannot be"
    ]
    moments = list(dict.fromkeys(cell.moment for cell in cells if cell.moment))
    lines.append(f"{'fault':<22}" + "".join(f"{moment:<10}" for moment in moments))
    for fault in dict.fromkeys(cell.fault for cell in cells if cell.fault != "clean"):
        marks = []
        for moment in moments:
            mark = ""
            for name in names:
                cell = next((c for c in cells if (c.task, c.fault, c.moment) == (name, fault, moment)), None)
                if cell is None:
                    mark += "."
                    continue
                result, reference = by_name.get(cell.name), clean[name]
                if result is None or reference is None:
                    mark += "-"
                    continue
                what = verdict(result, reference)
                counts[what] += 1
                mark += {"kept": "k", "explained": "e", "lost": "L"}[what]
            marks.append(mark)
        lines.append(f"{fault:<22}" + "".join(f"{mark:<10}" for mark in marks))
    total, planned = sum(counts.values()), sum(cell.fault != "clean" for cell in cells)
    parts = ", ".join(f"{count} {what}" for what, count in counts.items())
    lines.append(f"{total} of {planned} cells: {parts}")
    survivable = [
        verdict(by_name[cell.name], clean[cell.task] or {})
        for cell in cells
        if cell.name in by_name and cell.fault not in ("clean", *HOPELESS)
    ]
    if survivable:
        share = survivable.count("kept") / len(survivable)
        lines.append(f"of the {len(survivable)} without {' and '.join(HOPELESS)}, {share:.1%} kept their learning")
    for name, result in clean.items():
        if result is not None:
            lines.append(f"{name}: clean {result['metric']:.4f}, naive {result['naive']:.4f}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when no cell is lost (or, without the guard, when every fatal one fails); 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unguarded", action="store_true", help="the negative control")
    parser.add_argument("--output", type=Path, default=Path("runs/chaos.jsonl"), help="one JSON line a finished cell")
    parser.add_argument("--budget-minutes", type=float, default=float("inf"))
    parser.add_argument("--tasks", nargs="*", help="only these recipes")
    parser.add_argument("--faults", nargs="*", choices=FAULTS, help="only these")
    parser.add_argument("--moments", nargs="*", choices=MOMENTS, help="only these")
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + 60 * options.budget_minutes
    done = finished(options.output)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        known = {s.name: s for s in subjects(folder) if not options.tasks or s.name in options.tasks}
        cells = [
            cell
            for cell in cells_of(list(known), guarded=not options.unguarded)
            if cell.fault == "clean"
            or ((not options.faults or cell.fault in options.faults)
                and (not options.moments or cell.moment in options.moments))
        ]  # fmt: skip
        known_cells = {result["cell"] for result in done}
        for cell in cells:
            if cell.name in known_cells:
                continue
            if time.monotonic() > deadline:
                break
            done.append(run_cell(cell, known[cell.task], folder))
            append(options.output, done[-1])
    print(table(done, cells))
    return conclusion(done, cells)


def conclusion(results: Sequence[Mapping[str, Any]], cells: Sequence[Cell]) -> int:
    """The exit code."""
    by_name = {result["cell"]: result for result in results}
    judged = [
        (cell, verdict(by_name[cell.name], by_name[f"{cell.task}/clean//guarded"]))
        for cell in cells
        if cell.fault != "clean" and cell.name in by_name
    ]
    wrong = [cell for cell, what in judged if what == ("lost" if cell.guarded else "kept")]
    for cell in wrong:
        print(f"{'lost' if cell.guarded else 'survived without a guard'}: {cell.name} {by_name[cell.name]}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
