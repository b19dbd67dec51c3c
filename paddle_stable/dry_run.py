"""What would run: steps, parameters and memory, printed by `tools/train.py --check`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle

from paddle_stable.build import Prepared
from paddle_stable.data.dataset import Batch
from paddle_stable.distributed import World

MIB = 1024.0**2


def describe(prepared: Prepared, world: World) -> str:
    """Several lines that say what a run of this recipe does. Runs one forward pass over the longest samples."""
    recipe, splits = prepared.recipe, prepared.splits
    parameters = list(prepared.model.parameters())
    trainable = sum(int(np.prod(p.shape)) for p in parameters if not p.stop_gradient)
    total = sum(int(np.prod(p.shape)) for p in parameters)
    per_step = recipe.data.batch_size * recipe.run.accumulate * world.size
    sizes = {"training": splits.train, "dev": splits.dev, "test": splits.test}
    lines = [
        f"samples      {', '.join(f'{len(split):,} {name}' for name, split in sizes.items() if split is not None)}",
        f"steps        {prepared.total_steps:,} in all, {prepared.plan.steps_per_epoch:,} an epoch, "
        f"{per_step} samples a step ({recipe.data.batch_size} x accumulate {recipe.run.accumulate} "
        f"x {world.size} process{'es' if world.size > 1 else ''})",
        f"parameters   {total:,}, of which {trainable:,} are trained",
        f"memory       about {_memory(prepared, trainable) / MIB:,.0f} MiB a process, without Paddle itself "
        "(weights, gradients, AdamW moments, activations of one micro-batch)",
        f"writes to    {recipe.run.output_dir}",
    ]
    return "\n".join(lines)


def _memory(prepared: Prepared, trainable: int) -> float:
    """Bytes: weights as they are, gradient and two moments in float32, and what a backward pass has to keep."""
    weights = float(sum(t.size * t.element_size() for t in prepared.model.state_dict().values()))
    return weights + 3 * 4 * trainable + _activations(prepared)


def _activations(prepared: Prepared) -> float:
    """Bytes of all layers' outputs over one micro-batch of the longest samples, kept for the backward pass.

    A tensor that several layers put out, such as a block and its last sublayer, counts once. What a recurrent layer
    keeps inside is not seen.
    """
    train, size = prepared.splits.train, prepared.recipe.data.batch_size
    lengths = train.lengths()
    order = np.argsort(-lengths, kind="stable") if lengths is not None else np.arange(len(train))
    indices = tuple(int(i) for i in order[:size])
    generator = np.random.default_rng(0)
    arrays = train.collate([train.sample(index, generator) for index in indices])
    batch = Batch({name: paddle.to_tensor(array) for name, array in arrays.items()}, indices)
    with _layer_outputs(prepared.model) as outputs, paddle.no_grad():
        prepared.task.loss(prepared.model, batch)
    return float(sum(output.size * output.element_size() for output in outputs.values()))


@contextmanager
def _layer_outputs(model: paddle.nn.Layer) -> Iterator[dict[int, paddle.Tensor]]:
    """All tensors that the layers of `model` put out, by identity."""
    seen: dict[int, paddle.Tensor] = {}  # holds the tensors, so that no identity is used again

    def add(layer: paddle.nn.Layer, inputs: Any, outputs: Any) -> None:
        for output in paddle.utils.flatten(outputs):
            if isinstance(output, paddle.Tensor):
                seen[id(output)] = output

    hooks = [layer.register_forward_post_hook(add) for layer in model.sublayers()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
