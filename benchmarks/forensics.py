"""How often an incident report is right: injections with a known layer and cause, and healthy steps.

python benchmarks/forensics.py
python benchmarks/forensics.py --budget-minutes 5     then the same again goes on where it stopped

Injections act on data files, samples, weights or a layer's arithmetic, never on the probes. The rules were made with
the 20 cells of the group `rules`; the figures are those of `held-out`, and of `detector`, a task that was added after
the rules. A weight that is set to NaN or inf was "learning rate too high" until reports could tell it apart; since then
its cause is what was done. "unknown" counts as wrong. One JSON line a finished cell goes to the output file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # has to be there before denormals are flushed

from paddle_stable.tool_start import start_tool

if __name__ == "__main__":
    start_tool()  # before the first tensor

import paddle
from paddle import nn

from benchmarks.finished_cells import append, finished
from paddle_stable.build import build_trainer, prepare
from paddle_stable.data.dataset import Array, Batch
from paddle_stable.data.loader import Window
from paddle_stable.distributed import World
from paddle_stable.recipe_io import load_recipe
from paddle_stable.stability.causes import Cause
from paddle_stable.stability.probes import LOSS, NETWORK
from paddle_stable.stability.running_statistics import RunningStatistics
from paddle_stable.stability.step_report import SkipReason
from paddle_stable.trainer import Trainer
from paddle_stable.training_state import load_model_arrays, model_arrays

RECIPES = {
    "lstm": ROOT / "configs" / "lstm_forecast.yaml",
    "ernie": ROOT / "configs" / "ernie_cls.yaml",
    "dbnet": ROOT / "configs" / "dbnet_det.yaml",
}
GROUPS = ("rules", "held-out", "detector", "healthy")
MOST_STEPS = 60
HALF = {"amp.dtype": "float16", "amp.emulate": True, "amp.init_scale": 1.0, "amp.min_scale": 1.0}
FILE = {"data.scaling": "robust", "data.policy.missing": "keep", "data.policy.jump": "keep"}


@final
@dataclass(frozen=True)
class Injection:
    """What is done to a run; every part is optional."""

    overrides: Mapping[str, Any] = field(default_factory=dict)
    csv: Callable[[list[str]], list[str]] | None = None
    """Changes the lines of the data file."""
    network: Callable[[nn.Layer], nn.Layer] | None = None
    """Changes the network before it is trained."""
    weights: Callable[[nn.Layer], None] | None = None
    """Changes weights after some steps."""
    sample: Callable[[dict[str, Array]], None] | None = None
    """Changes the arrays of one batch, after some steps."""
    reason: SkipReason = SkipReason.NONFINITE
    """A spike is a finite step that is declared one."""


@final
@dataclass(frozen=True)
class Cell:
    """One run with one injection, and what its report has to say."""

    name: str
    group: str
    task: str
    cause: Cause
    layer: str | None
    """First non-finite layer; None where nothing is non-finite."""
    injection: Injection
    steps_before: int = 5


# ------------------------------------------------------------------------------------------------------- arithmetic


@final
class Behind(nn.Layer):
    """A layer and something computed from its output."""

    def __init__(self, inner: nn.Layer, compute: Callable[[paddle.Tensor], paddle.Tensor]) -> None:
        super().__init__()
        self.inner = inner
        self._compute = compute

    def forward(self, *inputs: Any, **named: Any) -> paddle.Tensor:
        return self._compute(self.inner(*inputs, **named))


@final
class Scale(nn.Layer):
    """Multiplies by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return x * self._factor


@final
class Repeated(nn.Layer):
    """The same linear layer again and again: a recurrence without a name."""

    def __init__(self, width: int, times: int, radius: float, *, inside: bool) -> None:
        super().__init__()
        self._times, self._inside = times, inside
        self.cell = nn.Linear(width, width, weight_attr=nn.initializer.Assign(np.eye(width, dtype="float32") * radius))

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        for _ in range(self._times):
            x = paddle.matmul(x, self.cell.weight) if self._inside else self.cell(x)
        return x


@final
class LogForecaster(nn.Layer):
    """An LSTM whose own forward pass, between its layers, takes a logarithm of zero."""

    def __init__(self, lstm: nn.Layer, head: nn.Layer) -> None:
        super().__init__()
        self.lstm, self.head = lstm, head

    def forward(self, inputs: paddle.Tensor) -> paddle.Tensor:
        states, _ = self.lstm(inputs)
        return self.head(paddle.log(nn.functional.relu(states[:, -1])))


def log_of_zero(x: paddle.Tensor) -> paddle.Tensor:
    return paddle.log(nn.functional.relu(x))


def division_by_zero(x: paddle.Tensor) -> paddle.Tensor:
    return x / (x - x[:1])


def slope_of_sqrt(x: paddle.Tensor) -> paddle.Tensor:
    return paddle.sqrt(nn.functional.relu(x))


def slope_of_deviation(x: paddle.Tensor) -> paddle.Tensor:
    return x + (x * 0.0).std(axis=-1, keepdim=True)


def reciprocal_root(x: paddle.Tensor) -> paddle.Tensor:
    return paddle.rsqrt(nn.functional.relu(x))


def entropy(x: paddle.Tensor) -> paddle.Tensor:
    p = nn.functional.relu(x)
    return x - p * paddle.log(p)


def negative_power(x: paddle.Tensor) -> paddle.Tensor:
    return nn.functional.relu(x) ** -0.5


def behind(path: str, compute: Callable[[paddle.Tensor], paddle.Tensor]) -> Callable[[nn.Layer], nn.Layer]:
    return lambda model: put(model, path, lambda layer: Behind(layer, compute))


def scaled(path: str, factor: float) -> Callable[[nn.Layer], nn.Layer]:
    return lambda model: put(model, path, lambda layer: nn.Sequential(("inner", layer), ("scale", Scale(factor))))


def repeated(path: str, width: int, times: int, radius: float, *, inside: bool) -> Callable[[nn.Layer], nn.Layer]:
    def change(model: nn.Layer) -> nn.Layer:
        part = Repeated(width, times, radius, inside=inside)
        return put(model, path, lambda layer: nn.Sequential(("inner", layer), ("loop", part)))

    return change


def plain_recurrence(kind: str, radius: float) -> Callable[[nn.Layer], nn.Layer]:
    """A recurrent network without gates in place of the LSTM, its recurrent weights `radius` times the identity."""

    def change(model: nn.Layer) -> nn.Layer:
        hidden = model.lstm.hidden_size
        if kind == "relu":
            network = nn.SimpleRNN(model.lstm.input_size, hidden, activation="relu")
            recurrent = network.weight_hh_l0
        else:
            network = nn.RNN(nn.SimpleRNNCell(model.lstm.input_size, hidden, activation="relu"))
            recurrent = network.cell.weight_hh
        recurrent.set_value(paddle.eye(hidden) * radius)
        return put(model, "lstm", lambda _: network)

    return change


def put(model: nn.Layer, path: str, change: Callable[[nn.Layer], nn.Layer]) -> nn.Layer:
    """Replace one layer of a model."""
    owner, _, name = path.rpartition(".")
    parent = dict(model.named_sublayers(include_self=True))[owner]
    setattr(parent, name, change(getattr(parent, name)))
    return model


# ------------------------------------------------------------------------------------------------ weights and samples


def spoil(parameter: str, value: float, *, part: float = 0.0) -> Callable[[nn.Layer], None]:
    """Set the first element, or a part of all elements with both signs, to a value."""

    def change(model: nn.Layer) -> None:
        tensor = dict(model.named_parameters())[parameter]
        values = tensor.numpy().copy()
        flat = values.reshape(-1)
        count = max(int(part * flat.size), 1)
        flat[:count] = value * np.where(np.arange(count) % 3 == 1, -1.0, 1.0)
        tensor.set_value(values)

    return change


def enlarge(factor: float) -> Callable[[nn.Layer], None]:
    """What a diverging run does to its weights."""

    def change(model: nn.Layer) -> None:
        for tensor in model.parameters():
            if not tensor.stop_gradient:
                tensor.set_value(tensor.numpy() * factor)

    return change


def element(
    name: str, index: tuple[int, ...], value: float, *, times: bool = False
) -> Callable[[dict[str, Any]], None]:
    """Set one number of one sample, or multiply it."""

    def change(arrays: dict[str, Array]) -> None:
        arrays[name][index] = arrays[name][index] * value if times else value

    return change


def cell_of_csv(line: int, column: int, value: str) -> Callable[[list[str]], list[str]]:
    """Replace one field of the data file; `line` counts from 1."""

    def change(lines: list[str]) -> list[str]:
        fields = lines[line - 1].split(",")
        fields[column] = value
        return [*lines[: line - 1], ",".join(fields), *lines[line:]]

    return change


# -------------------------------------------------------------------------------------------------------------- cells

LONG = {"data.lookback": 90}
LINEAR = "ernie.encoder.layers.0.linear1"
QUERY = "ernie.encoder.layers.0.self_attn.q_proj"


def cells() -> list[Cell]:
    """All cells: 20 for the rules, 40 held out, 10 of the detector, 10 healthy."""
    return [*_for_the_rules(), *_held_out(), *_detector(), *_healthy()]


def _for_the_rules() -> Iterator[Cell]:
    spike = SkipReason.SPIKE

    def cell(name: str, task: str, cause: Cause, layer: str | None, **injection: Any) -> Cell:
        return Cell(f"rules/{task}/{name}", "rules", task, cause, layer, Injection(**injection))

    bad, rate, half = Cause.BAD_INPUT, Cause.LEARNING_RATE, Cause.HALF_PRECISION
    spoilt, sums, loops = Cause.PARAMETER, Cause.ARITHMETIC, Cause.RECURRENCE
    yield cell("nan in a sample", "lstm", bad, "lstm", sample=element("inputs", (3, 5, 0), np.nan))
    yield cell("nan in a target", "lstm", bad, LOSS, sample=element("target", (2, 0), np.nan))
    yield cell("missing in the file", "lstm", bad, "lstm", csv=cell_of_csv(100, 1, ""), overrides=FILE)
    yield cell("unit error, finite", "lstm", bad, None, sample=element("target", (1, 0), 1e4), reason=spike)
    yield cell("inf in the head", "lstm", spoilt, "head", weights=spoil("head.weight", np.inf))
    yield cell("nan in the lstm", "lstm", spoilt, "lstm", weights=spoil("lstm.weight_hh_l0", np.nan))
    yield cell("all weights x 30", "lstm", rate, None, weights=enlarge(30.0), reason=spike)
    yield cell("optim.lr 5", "lstm", rate, None, overrides={"optim.lr": 5.0}, reason=spike)
    yield cell("log", "lstm", sums, "head", network=behind("head", log_of_zero))
    yield cell("slope of sqrt", "lstm", sums, "head", network=behind("head", slope_of_sqrt))
    yield cell("relu recurrence", "lstm", loops, "lstm", network=plain_recurrence("relu", 4.0), overrides=LONG)
    yield cell("loop", "lstm", loops, "head.loop.cell", network=repeated("head", 2, 150, 2.0, inside=False))
    yield cell("activation", "lstm", half, "head.scale", network=scaled("head", 1e6), overrides=HALF)
    yield cell(
        "loss scale", "lstm", half, "head",
        overrides={**HALF, "amp.init_scale": 2.0**23, "amp.min_scale": 2.0**23},
    )  # fmt: skip
    yield cell("inf in a query", "ernie", spoilt, QUERY, weights=spoil(f"{QUERY}.weight", np.inf))
    yield cell("huge in a linear", "ernie", rate, LINEAR, weights=spoil(f"{LINEAR}.weight", 3e38, part=1.0))
    yield cell("log", "ernie", sums, LINEAR, network=behind(LINEAR, log_of_zero))
    yield cell("division", "ernie", sums, "classifier", network=behind("classifier", division_by_zero))
    yield cell("activation", "ernie", half, f"{LINEAR}.scale", network=scaled(LINEAR, 1e7), overrides=HALF)
    yield cell(
        "loop", "ernie", loops, "classifier.loop.cell", network=repeated("classifier", 2, 200, 2.0, inside=False)
    )


def _held_out() -> Iterator[Cell]:
    def cell(name: str, task: str, cause: Cause, layer: str | None, **injection: Any) -> Cell:
        return Cell(f"held-out/{task}/{name}", "held-out", task, cause, layer, Injection(**injection), steps_before=7)

    yield from _held_out_lstm(cell)
    yield from _held_out_ernie(cell)


def _held_out_lstm(cell: Callable[..., Cell]) -> Iterator[Cell]:
    spike, bad, rate, half = SkipReason.SPIKE, Cause.BAD_INPUT, Cause.LEARNING_RATE, Cause.HALF_PRECISION
    spoilt, sums, loops = Cause.PARAMETER, Cause.ARITHMETIC, Cause.RECURRENCE
    yield cell("inf in a sample", "lstm", bad, "lstm", sample=element("inputs", (0, 0, 1), np.inf))
    yield cell("nan in the last row", "lstm", bad, "lstm", sample=element("inputs", (9, 11, 1), np.nan))
    yield cell("-inf in a target", "lstm", bad, LOSS, sample=element("target", (7, 1), -np.inf))
    yield cell("huge target", "lstm", bad, LOSS, sample=element("target", (5, 0), 1e30))
    yield cell("missing in the file", "lstm", bad, "lstm", csv=cell_of_csv(61, 2, ""), overrides=FILE)
    yield cell("1e30 in the file", "lstm", bad, LOSS, csv=cell_of_csv(140, 1, "1e30"), overrides=FILE)
    yield cell(
        "unit error in the file, finite",
        "lstm",
        bad,
        None,
        csv=cell_of_csv(40, 1, "9500"),
        overrides=FILE,
        reason=spike,
    )
    yield cell("unit error, finite", "lstm", bad, None, sample=element("target", (4, 1), 3e3), reason=spike)
    yield cell("wrong target, finite", "lstm", bad, None, sample=element("target", (6,), 40.0), reason=spike)
    yield cell("-inf in the head's bias", "lstm", spoilt, "head", weights=spoil("head.bias", -np.inf))
    yield cell("huge in the head", "lstm", rate, "head", weights=spoil("head.weight", 3e38, part=1.0))
    yield cell("inf in the lstm's input", "lstm", spoilt, "lstm", weights=spoil("lstm.weight_ih_l0", np.inf, part=0.2))
    yield cell("all weights x 1e20", "lstm", rate, LOSS, weights=enlarge(1e20))
    yield cell("all weights x 100, finite", "lstm", rate, None, weights=enlarge(100.0), reason=spike)
    yield cell("optim.lr 20, finite", "lstm", rate, None, overrides={"optim.lr": 20.0}, reason=spike)
    yield cell("division", "lstm", sums, "head", network=behind("head", division_by_zero))
    yield cell("log between the layers", "lstm", sums, NETWORK, network=lambda m: LogForecaster(m.lstm, m.head))
    yield cell("reciprocal root", "lstm", sums, "dropout", network=behind("dropout", reciprocal_root))
    yield cell("slope of a deviation", "lstm", sums, "head", network=behind("head", slope_of_deviation))
    yield cell("recurrent cell", "lstm", loops, "lstm.cell", network=plain_recurrence("cell", 5.0), overrides=LONG)
    yield cell("relu recurrence", "lstm", loops, "lstm", network=plain_recurrence("relu", 8.0), overrides=LONG)
    yield cell(
        "relu recurrence, finite", "lstm", loops, None,
        network=plain_recurrence("relu", 1.3), overrides={"data.lookback": 60}, reason=spike,
    )  # fmt: skip
    yield cell("loop in a layer", "lstm", loops, "head.loop", network=repeated("head", 2, 90, 4.0, inside=True))
    yield cell("activation", "lstm", half, "dropout.scale", network=scaled("dropout", 1e6), overrides=HALF)
    yield cell(
        "loss scale", "lstm", half, "head",
        overrides={**HALF, "amp.init_scale": 2.0**24, "amp.min_scale": 2.0**24},
    )  # fmt: skip


def _held_out_ernie(cell: Callable[..., Cell]) -> Iterator[Cell]:
    spike, rate, half = SkipReason.SPIKE, Cause.LEARNING_RATE, Cause.HALF_PRECISION
    spoilt, sums, loops = Cause.PARAMETER, Cause.ARITHMETIC, Cause.RECURRENCE
    words, norm = "ernie.embeddings.word_embeddings", "ernie.encoder.layers.0.norm1"
    value, out = "ernie.encoder.layers.0.self_attn.v_proj", "ernie.encoder.layers.0.linear2"
    yield cell("nan in the embeddings", "ernie", spoilt, words, weights=spoil(f"{words}.weight", np.nan, part=1.0))
    yield cell("inf in a norm", "ernie", spoilt, norm, weights=spoil(f"{norm}.weight", np.inf))
    yield cell("nan in a value", "ernie", spoilt, value, weights=spoil(f"{value}.bias", np.nan))
    yield cell(
        "nan in the pooler", "ernie", spoilt, "ernie.pooler.dense", weights=spoil("ernie.pooler.dense.bias", np.nan)
    )
    yield cell("inf in the second linear", "ernie", spoilt, out, weights=spoil(f"{out}.bias", -np.inf, part=0.5))
    yield cell("inf in the classifier", "ernie", spoilt, "classifier", weights=spoil("classifier.weight", -np.inf))
    yield cell("all weights x 50, finite", "ernie", rate, None, weights=enlarge(50.0), reason=spike)
    yield cell("optim.lr 3, finite", "ernie", rate, None, overrides={"optim.lr": 3.0}, reason=spike)
    yield cell("log in a query", "ernie", sums, QUERY, network=behind(QUERY, log_of_zero))
    yield cell("power", "ernie", sums, out, network=behind(out, negative_power))
    yield cell("slope of sqrt", "ernie", sums, LINEAR, network=behind(LINEAR, slope_of_sqrt))
    yield cell("entropy", "ernie", sums, "ernie.pooler.dense", network=behind("ernie.pooler.dense", entropy))
    yield cell("activation", "ernie", half, f"{value}.scale", network=scaled(value, 3e6), overrides=HALF)
    yield cell(
        "loss scale", "ernie", half, "classifier",
        overrides={**HALF, "amp.init_scale": 2.0**24, "amp.min_scale": 2.0**24},
    )  # fmt: skip
    yield cell("loop", "ernie", loops, "classifier.loop", network=repeated("classifier", 2, 100, 3.0, inside=True))


def _detector() -> Iterator[Cell]:
    spike, bad, rate = SkipReason.SPIKE, Cause.BAD_INPUT, Cause.LEARNING_RATE
    spoilt, sums, half = Cause.PARAMETER, Cause.ARITHMETIC, Cause.HALF_PRECISION
    stem, stage, neck, head = "backbone.stem.0", "backbone.stages.1.0", "neck.p3_conv", "head.thresh.conv1"

    def cell(name: str, cause: Cause, layer: str | None, **injection: Any) -> Cell:
        return Cell(f"detector/{name}", "detector", "dbnet", cause, layer, Injection(**injection))

    yield cell("nan in an image", bad, stem, sample=element("image", (2, 1, 30, 30), np.nan))
    yield cell("inf in an image", bad, stem, sample=element("image", (0, 0, 0, 63), np.inf))
    yield cell("nan in a threshold map", bad, LOSS, sample=element("threshold_map", (1, 30, 30), np.nan))
    yield cell("inf in a convolution", spoilt, stage, weights=spoil(f"{stage}.weight", np.inf))
    yield cell("nan in a head", spoilt, "head.binarize.conv3", weights=spoil("head.binarize.conv3.weight", np.nan))
    yield cell("optim.lr 30, finite", rate, None, overrides={"optim.lr": 30.0}, reason=spike)
    yield cell("log in the neck", sums, neck, network=behind(neck, log_of_zero))
    yield cell("slope of sqrt in a head", sums, head, network=behind(head, slope_of_sqrt))
    yield cell("activation in the neck", half, f"{neck}.scale", network=scaled(neck, 1e7), overrides=HALF)
    yield cell("activation in the stem", half, f"{stem}.scale", network=scaled(stem, 1e6), overrides=HALF)


def _healthy() -> Iterator[Cell]:
    """Steps that are declared incidents although nothing is wrong with them."""
    for number in range(10):
        task = ("lstm", "ernie")[number % 2]
        reason = SkipReason.NONFINITE if number % 4 < 2 else SkipReason.SPIKE
        overrides: dict[str, Any] = {"run.seed": 10 + number}
        if number in (4, 5):
            overrides |= {**HALF, "amp.init_scale": 16.0}
        yield Cell(
            f"healthy/{task}/{number} {reason.value}", "healthy", task, Cause.TRANSIENT, None,
            Injection(overrides=overrides, reason=reason), steps_before=3 + number,
        )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ running


def run_cell(cell: Cell) -> dict[str, Any]:
    """Train until the injection has made an incident, and hold its report against what is known."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        trainer = _trainer(cell, folder)
        _train_into_it(trainer, cell)
        reports = sorted((folder / "run" / "incidents").glob("step-*/report.json"))
        if len(reports) != 1:
            return {"cell": cell.name, "group": cell.group, "error": f"expected one report, got {len(reports)}"}
        found = json.loads(reports[0].read_text(encoding="utf8"))
    layer = found["first_bad"]["layer"] if found["first_bad"] else None
    return {
        "cell": cell.name,
        "group": cell.group,
        "cause": found["cause"],
        "cause_expected": cell.cause.value,
        "layer": layer,
        "layer_expected": cell.layer,
        "operation": found["operation"]["name"] if found["operation"] else None,
        "seconds": round(found["seconds"], 3),
    }


def _trainer(cell: Cell, folder: Path) -> Trainer:
    recipe, injection = RECIPES[cell.task], cell.injection
    values = load_recipe(str(recipe)).task_class.write_sample_data(folder / "data")
    if injection.csv is not None:
        path = Path(values["data.file"])
        lines = injection.csv(path.read_text(encoding="utf8").splitlines())
        path.write_text("\n".join(lines) + "\n", encoding="utf8")
    values |= {
        "run.output_dir": str(folder / "run"),
        "forensics.max_reports": 1,
        "run.steps": 200,
        **injection.overrides,
    }
    if recipe.stem.startswith("lstm"):  # the rules were frozen on these
        values = {"data.scaling": "standard", "task.loss": "mse", **values}
    prepared = prepare(
        load_recipe(
            str(recipe),
            smoke=True,
            set_values={"stability.bad_samples": "skip", "stability.quarantine.after": None, **values},
        ),
        World.single(),
    )
    if injection.network is not None:
        model = injection.network(prepared.model)
        prepared = replace(prepared, model=model, statistics=RunningStatistics(model))
    return build_trainer(prepared, World.single(), folder=folder / "run")


def _train_into_it(trainer: Trainer, cell: Cell) -> None:
    injection = cell.injection
    windows: Iterator[Window] = trainer.loader.steps()
    arithmetic = injection.network is not None and injection.reason is SkipReason.NONFINITE
    before = 0 if arithmetic else cell.steps_before
    for _ in range(before):
        if _step(trainer, windows):
            return
    if injection.weights is not None:
        injection.weights(trainer.model)
    if injection.sample is not None:
        windows = iter([_changed(next(windows), injection.sample)])
    if cell.group == "healthy" or injection.reason is SkipReason.SPIKE:
        _declare(trainer, windows, cell)
        return
    for _ in range(1 if injection.sample is not None else MOST_STEPS):
        if _step(trainer, windows):
            return


def _step(trainer: Trainer, windows: Iterator[Window]) -> bool:
    """One step; true when it was an incident."""
    report = trainer.train_step(windows)
    trainer.monitor.update(report)
    return trainer.incident is not None


def _declare(trainer: Trainer, windows: Iterator[Window], cell: Cell) -> None:
    """Do a finite step, take it back, and have it explained as if it had been skipped."""
    window = next(windows)
    if cell.injection.csv is not None:  # the first one that holds the changed line
        while not any(float(np.abs(part["target"].numpy()).max()) > 1e3 for part in window.parts):
            window = next(windows)
    before = model_arrays(trainer.model)
    report = trainer.train_step(iter([window]))
    load_model_arrays(trainer.model, before)
    norm = report.verdict.grad_norm
    if cell.group == "healthy":  # what was seen then is not what comes out now
        norm = float("nan") if cell.injection.reason is SkipReason.NONFINITE else 40.0 * norm
    verdict = replace(report.verdict, skipped=cell.injection.reason, grad_norm=norm)
    trainer.incident = trainer.forensics.explain(replace(report, verdict=verdict), window.parts, trainer.monitor)


def _changed(window: Window, change: Callable[[dict[str, Array]], None]) -> Window:
    first = window.parts[0]
    arrays = {name: tensor.numpy().copy() for name, tensor in first.tensors.items()}
    change(arrays)
    batch = Batch({name: paddle.to_tensor(array) for name, array in arrays.items()}, first.indices, first.weight)
    return replace(window, parts=(batch, *window.parts[1:]))


# ------------------------------------------------------------------------------------------------------------ figures


def is_right(result: Mapping[str, Any], what: str) -> bool:
    """Whether the cause, or the layer, of a finished cell is the known one."""
    return "error" not in result and result[what] == result[f"{what}_expected"]


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Shares of right answers by group, and every wrong one."""
    lines = ["| group | cells | first layer right | cause right |", "| --- | --- | --- | --- |"]
    for group in GROUPS:
        mine = [r for r in results if r["group"] == group]
        # Only where something is non-finite there is a first layer to find.
        layered = [r for r in mine if r.get("layer_expected") is not None or "error" in r]
        shares = [_share(layered, "layer"), _share(mine, "cause")]
        lines.append(f"| {group} | {len(mine)} | {' | '.join(shares)} |")
    wrong = [r for r in results if not (is_right(r, "cause") and is_right(r, "layer"))]
    lines += ["", *(f"wrong: {json.dumps(r, ensure_ascii=False)}" for r in wrong)]
    return "\n".join(lines)


def _share(results: Sequence[Mapping[str, Any]], what: str) -> str:
    right = sum(is_right(r, what) for r in results)
    return f"{right} of {len(results)} ({right / len(results):.0%})" if results else "-"


def main() -> int:
    """Run the cells that are not in the output file yet, then print the table of all that are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "benchmarks" / "forensics.jsonl")
    parser.add_argument("--budget-minutes", type=float, default=30.0, help="begin no further cell after that")
    parser.add_argument("--only", default="", metavar="TEXT", help="cells with this in their name")
    arguments = parser.parse_args()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    done = {result["cell"]: result for result in finished(arguments.output)}
    deadline = time.monotonic() + 60.0 * arguments.budget_minutes
    left = [cell for cell in cells() if cell.name not in done and arguments.only in cell.name]
    for cell in left:
        if time.monotonic() > deadline:
            break
        done[cell.name] = run_cell(cell)
        append(arguments.output, done[cell.name])
    print(table([done[cell.name] for cell in cells() if cell.name in done]))
    missing = sum(cell.name not in done for cell in cells())
    if missing:
        print(f"{missing} cells are left; the same command goes on with them.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
