"""AdamW on one flat list of parameters."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

import paddle
from paddle import nn

from paddle_stable.errors import InputError, Problem
from paddle_stable.recipe import GroupConfig, OptimConfig
from paddle_stable.stability.clip import PlannedClip

_NORMALISATION = (
    nn.LayerNorm,
    nn.GroupNorm,
    nn.BatchNorm,
    nn.BatchNorm1D,
    nn.BatchNorm2D,
    nn.BatchNorm3D,
    nn.SyncBatchNorm,
    nn.InstanceNorm1D,
    nn.InstanceNorm2D,
    nn.InstanceNorm3D,
)


def apply_groups(model: paddle.nn.Layer, groups: tuple[GroupConfig, ...], recipe_file: str) -> None:
    """Freeze parameters and set their learning-rate factors, as `optim.groups` says; the first match wins.

    Raises:
        InputError: for patterns that match no parameter (a mistyped name must not be ignored), and when nothing is
            left to train.
    """
    unused = dict(enumerate(groups))
    for name, parameter in model.named_parameters():
        for index, group in enumerate(groups):
            if fnmatchcase(name, group.match):
                unused.pop(index, None)
                parameter.optimize_attr["learning_rate"] = group.lr_scale
                if group.freeze:
                    parameter.stop_gradient = True
                    parameter.trainable = False
                break
    names = ", ".join(name for name, _ in list(model.named_parameters())[:6])
    problems = [
        Problem(recipe_file, 0, f"optim.groups.{index}.match: {group.match!r} is the first match of no parameter; "
                f"the first names are {names} …")
        for index, group in unused.items()
    ]  # fmt: skip
    if not any(not p.stop_gradient for p in model.parameters()):
        problems.append(
            Problem(recipe_file, 0, "optim.groups: every parameter is frozen, so there is nothing to train")
        )
    if problems:
        raise InputError("The parameter groups do not fit the model:", problems)


def build_optimizer(model: paddle.nn.Layer, config: OptimConfig, planned_clip: PlannedClip) -> paddle.optimizer.AdamW:
    """AdamW over the trainable parameters; its learning rate is set anew before every step.

    Parameter groups in Paddle's sense are not used: with them the clip runs once a group and is no longer global.
    """
    decayed = set(_decayed_names(model))
    beta1, beta2 = config.betas
    return paddle.optimizer.AdamW(
        learning_rate=config.lr,
        beta1=beta1,
        beta2=beta2,
        epsilon=config.eps,
        parameters=[p for p in model.parameters() if not p.stop_gradient],
        weight_decay=config.weight_decay,
        apply_decay_param_fun=lambda name: name in decayed,
        grad_clip=planned_clip,
    )


def _decayed_names(model: paddle.nn.Layer) -> Iterator[str]:
    """Paddle's names of the parameters that weight decay applies to: all but biases and normalisation layers."""
    for _, layer in model.named_sublayers(include_self=True):
        if isinstance(layer, _NORMALISATION):
            continue
        for name, parameter in layer.named_parameters(include_sublayers=False):
            if not name.rpartition(".")[2].startswith("bias"):
                yield parameter.name
