"""What every rank of a launched pair sees of `World`; writes its findings for the test to compare."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt
import paddle

from paddle_stable import evaluation
from paddle_stable.data.dataset import Array, Batch, Dataset, Sample, SampleOrigin
from paddle_stable.data.loader import Loader, evaluation_batches, in_sample_order
from paddle_stable.data.windows import WindowPlan
from paddle_stable.distributed import World
from paddle_stable.recipe import AmpConfig
from paddle_stable.stability.amp import build_precision
from paddle_stable.task import Task
from paddle_stable.watchdog import Heartbeat

BATCH_SIZE, ACCUMULATE = 2, 2
WINDOW = BATCH_SIZE * ACCUMULATE * 2
EVALUATION_BATCH = 3
Gradients = list[npt.NDArray[np.float32]]


@final
class Points(Dataset):
    """Made-up regression samples."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(count)
        self._x = rng.normal(size=(count, 5)).astype(np.float32)
        self._y = rng.normal(size=(count, 1)).astype(np.float32)

    def __len__(self) -> int:
        return len(self._x)

    def sample(self, index: int, rng: np.random.Generator) -> Sample:
        return {"x": self._x[index], "y": self._y[index]}

    def origin(self, index: int) -> SampleOrigin:
        return SampleOrigin("points", index + 1, "")

    def lengths(self) -> None:
        return None

    def digest(self) -> str:
        return ""

    def collate(self, samples: Sequence[Sample]) -> dict[str, Array]:
        return {name: np.stack([sample[name] for sample in samples]) for name in ("x", "y")}


def model_of(seed: int) -> paddle.nn.Layer:
    """A small network with a frozen layer and BatchNorm statistics (used in evaluation mode)."""
    paddle.seed(seed)
    model = paddle.nn.Sequential(
        paddle.nn.Linear(5, 7),
        paddle.nn.Tanh(),
        paddle.nn.Linear(7, 7),
        paddle.nn.BatchNorm1D(7),
        paddle.nn.Linear(7, 1),
    )
    for parameter in model[2].parameters():
        parameter.stop_gradient = True
    model[3]._mean.set_value(paddle.full([7], float(seed)))
    model[3]._variance.set_value(paddle.full([7], float(seed + 2)))
    model.eval()
    return model


def digest(model: paddle.nn.Layer) -> dict[str, str]:
    return {name: hashlib.sha256(value.numpy().tobytes()).hexdigest() for name, value in model.state_dict().items()}


def loss_of(model: paddle.nn.Layer, batch: Batch) -> paddle.Tensor:
    return paddle.nn.functional.mse_loss(model(batch["x"]), batch["y"])


def gradients(world: World, wrapped: paddle.nn.Layer, model: paddle.nn.Layer, parts: Sequence[Batch]) -> Gradients:
    """Gradients of the mean over a window, as a training step gets them."""
    model.clear_gradients()
    for number, batch in enumerate(parts):
        with world.sync_gradients(wrapped, enabled=number == len(parts) - 1):
            (loss_of(wrapped, batch) * batch.weight * world.gradient_scale).backward()
    return [parameter.grad.numpy() for parameter in model.parameters() if not parameter.stop_gradient]


def difference(mine: Gradients, expected: Gradients) -> float:
    """Largest difference relative to the norm."""
    norm = float(np.sqrt(sum(float((part.astype(np.float64) ** 2).sum()) for part in expected)))
    return max(float(np.abs(a - b).max()) for a, b in zip(mine, expected, strict=True)) / norm


def keeps_to_itself(world: World, wrapped: paddle.nn.Layer, model: paddle.nn.Layer) -> bool:
    """Whether a micro-batch that is not the last leaves this rank's gradient its own, not averaged."""
    window = next(Loader(Points(8), WindowPlan(None, 8, 2, 2, 2, seed=1), world=world, seed=1).steps())
    own = gradients(World.single(), model, model, window.parts[:1])
    model.clear_gradients()
    with world.sync_gradients(wrapped, enabled=False):
        (loss_of(wrapped, window.parts[0]) * window.parts[0].weight).backward()
    return difference([p.grad.numpy() for p in model.parameters() if not p.stop_gradient], own) == 0.0


def compare_gradients(world: World, wrapped: paddle.nn.Layer, model: paddle.nn.Layer) -> list[dict[str, Any]]:
    """For windows of every size: this pair's gradients against those of the window computed alone, at once."""
    found = []
    for samples in range(1, WINDOW + 1):
        data = Points(samples)
        plan = WindowPlan(None, samples, BATCH_SIZE, ACCUMULATE, world.size, seed=1)
        window = next(Loader(data, plan, world=world, seed=1).steps())
        mine = gradients(world, wrapped, model, window.parts)
        alone = WindowPlan(None, samples, WINDOW, 1, 1, seed=1)
        whole = next(Loader(data, alone, world=World.single(), seed=1).steps())
        expected = gradients(World.single(), model, model, whole.parts)
        stand_ins = sum(part.weight == 0.0 for part in window.parts)
        found.append({"stand_ins": stand_ins, "difference": difference(mine, expected)})
    return found


def ragged(rank: int) -> list[Array]:
    """Arrays that differ between ranks in number, shape and type."""
    if rank == 0:
        return []
    return [
        np.arange(6, dtype=np.int64).reshape(2, 3)[:, ::2],
        np.zeros((0, 4), dtype=np.float32),
        np.array(-0.0),
        np.array([np.nan, np.inf, 1e-300]),
        np.array(["读书", "a"]),
        np.array([[True], [False]]),
    ]


def evaluate(world: World, model: paddle.nn.Layer) -> dict[str, str]:
    data = Points(4 * EVALUATION_BATCH + 1)  # five batches: the ranks have different numbers of them
    with paddle.no_grad():
        mine = [
            (batch.indices, {"y": model(batch["x"]).numpy()})
            for batch in evaluation_batches(data, EVALUATION_BATCH, world)
        ]
    outputs = in_sample_order(mine, len(data), world)
    return {name: f"{rows.dtype}{rows.shape}{rows.tobytes().hex()}" for name, rows in outputs.items()}


class OfItsOwn(Task):
    """Its metric is another one on every rank, as the last bit of a sum may be."""

    metric_names: ClassVar[Mapping[str, bool]] = {"rank": True}

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def outputs(self, model: paddle.nn.Layer, batch: Batch) -> dict[str, Array]:
        return {"y": batch["y"].numpy()}

    def metrics(self, outputs: Mapping[str, Array], dataset: Dataset) -> dict[str, float]:
        return {"rank": float(self._rank)}


OfItsOwn.__abstractmethods__ = frozenset()  # trains nothing and builds nothing


def agreed_metrics(world: World, model: paddle.nn.Layer) -> dict[str, float]:
    """What an evaluation says on this rank."""
    precision = build_precision(AmpConfig(), model)
    return dict(
        evaluation.evaluate(
            OfItsOwn(world.rank), model, precision, Points(5), batch_size=2, world=world, heartbeat=Heartbeat()
        ).metrics
    )


def one_batch_only(world: World) -> list[int]:
    """A split with fewer batches than ranks."""
    mine = [(batch.indices, {"row": batch["y"].numpy()}) for batch in evaluation_batches(Points(2), 4, world)]
    return list(in_sample_order(mine, 2, world)["row"].shape)


def summed(world: World, array: Array) -> list[Any]:
    tensor = paddle.to_tensor(array)
    world.sum_(tensor)
    return [str(tensor.numpy().dtype), list(tensor.shape), tensor.numpy().tolist()]


def meets(world: World, folder: Path) -> list[bool]:
    """Whether this rank leaves a meeting only after the other has come, whichever of the two is late."""
    found = []
    for late in (0, 1, 1, 0):
        flag = folder / f"meeting-{len(found)}"
        if world.rank == late:
            time.sleep(0.3)
            flag.touch()
        world.meet()
        found.append(flag.exists())
    return found


def main(folder: Path) -> None:
    world = World.from_environment()
    model = model_of(seed=world.rank)
    own = digest(model)
    wrapped = world.wrap(model)
    found = {
        "rank": world.rank,
        "size": world.size,
        "is_main": world.is_main,
        "own": own,
        "shared": digest(model),
        "sums": [summed(world, np.array(value) * (world.rank + 1)) for value in ([1.5, -2.0], 3.0, [[4]], np.zeros(0))],
        "float32_sum": summed(world, np.array([0.1, 0.2], np.float32)),
        "gathered": [
            [f"{array.dtype}{array.shape}{array.tobytes().hex()}" for array in arrays]
            for arrays in world.gather_arrays(ragged(world.rank))
        ],
        "nothing_gathered": [len(arrays) for arrays in world.gather_arrays([])],
        "agreed": [world.agree_max(3 * world.rank), world.agree_max(-world.rank), world.agree_max(0)],
        "keeps_to_itself": keeps_to_itself(world, wrapped, model),
        "gradients": compare_gradients(world, wrapped, model),
        "evaluated": evaluate(world, model),
        "evaluated_alone": evaluate(World.single(), model),
        "one_batch_only": one_batch_only(world),
        "metrics": agreed_metrics(world, model),
        "meets": meets(world, folder),
    }
    (folder / f"rank{world.rank}.json").write_text(json.dumps(found))
    world.meet()
    world.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
