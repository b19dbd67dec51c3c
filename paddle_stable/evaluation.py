"""Metrics of a model over a split: the same numbers, bit for bit, for any number of processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import paddle

from paddle_stable.data.dataset import Array, Dataset
from paddle_stable.data.loader import evaluation_batches, in_sample_order
from paddle_stable.distributed import World
from paddle_stable.stability.amp import Precision
from paddle_stable.task import Task
from paddle_stable.watchdog import Heartbeat


@final
@dataclass(frozen=True)
class Evaluation:
    """What a model did on a split."""

    metrics: Mapping[str, float]
    outputs: Mapping[str, Array]
    """What `Task.outputs` returned, first axis in the order of the split's samples."""


def evaluate(
    task: Task,
    model: paddle.nn.Layer,
    precision: Precision,
    dataset: Dataset,
    *,
    batch_size: int,
    world: World,
    heartbeat: Heartbeat,
) -> Evaluation:
    """Run a split through the model (the layer itself, not its data-parallel wrapper).

    Batches are whole and fixed, a function of split and batch size, and are dealt to the processes; their outputs are
    gathered and put into the order of the samples before any metric is computed.
    """
    was_training = model.training
    model.eval()
    try:
        with paddle.no_grad(), precision.autocast():
            mine = []
            for batch in evaluation_batches(dataset, batch_size, world):
                mine.append((batch.indices, task.outputs(model, batch)))
                heartbeat.beat()
    finally:
        if was_training:
            model.train()
    outputs = in_sample_order(mine, len(dataset), world)
    metrics = task.metrics(outputs, dataset)
    # Those of rank 0: a sum may end in another bit on another machine, and what is best, when to save and when to stop
    # follow from them, on all processes alike.
    values = world.gather_arrays([np.array(list(metrics.values()), np.float64)])[0][0]
    return Evaluation(dict(zip(metrics, values.tolist(), strict=True)), outputs)
