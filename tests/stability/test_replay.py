"""A replay computes what the step computed, names the operation, and is silent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn

from paddle_stable.stability.probes import LOSS, FirstBad
from paddle_stable.stability.replay import Operation
from paddle_stable.trainer import Trainer

from .incident_sample import open_run, spoiled, take_steps


def behind_the_head(compute: Any) -> Any:
    """A network whose head has something behind it."""

    class Behind(nn.Layer):
        def __init__(self, inner: nn.Layer) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: paddle.Tensor) -> paddle.Tensor:
            return compute(self.inner(x))

    def change(model: Any) -> Any:
        model.head = Behind(model.head)
        return model

    return change


def replayed_parts(trainer: Trainer) -> Any:
    return next(trainer.loader.steps()).parts


def name_operation(trainer: Trainer) -> Operation | None:
    """The operation in the layer that the probes find."""
    replay, parts = trainer.forensics._replay, replayed_parts(trainer)
    probes = replay.probe(1, parts)
    first = next(iter(probes.forward_suspects(loss_is_finite=False)), None) or probes.first_bad_backward()
    assert first is not None
    return replay.name_operation(1, parts, first)


@pytest.mark.parametrize("overrides", [
    {}, {"task__dropout": 0.5}, {"run__accumulate": 3},
    {"amp__dtype": "float16", "amp__emulate": True, "amp__init_scale": 64.0},
], ids=["plain", "dropout", "accumulated", "float16"])  # fmt: skip
def test_loss_and_norm_are_those_of_the_step(tmp_path: Path, overrides: dict[str, Any]) -> None:
    trainer = open_run(tmp_path, **overrides)
    window = next(trainer.loader.steps())
    replayed = trainer.forensics._replay.run(1, window.parts)
    verdict = trainer.train_step(iter([window])).verdict
    assert replayed.loss == pytest.approx(verdict.loss, rel=1e-6)
    assert replayed.grad_norm == pytest.approx(verdict.grad_norm, rel=1e-5)
    assert replayed.is_finite


@pytest.mark.parametrize("factor", [0.25, 2.0])
def test_the_scale_of_several_processes_does_not_change_the_norm(tmp_path: Path, factor: float) -> None:
    trainer = open_run(tmp_path)
    replay, parts = trainer.forensics._replay, replayed_parts(trainer)
    one, several = (replace(replay, gradient_scale=scale).run(1, parts) for scale in (1.0, factor))
    assert several.loss == one.loss
    assert several.grad_norm == pytest.approx(one.grad_norm, rel=1e-6)


def test_what_is_harmless_in_the_forward_pass_does_not_hide_the_operation_of_the_backward_pass(tmp_path: Path) -> None:
    def compute(x: paddle.Tensor) -> paddle.Tensor:
        ignored = paddle.exp(-(paddle.reciprocal(x * 0.0) ** 2))  # of inf: 0
        return paddle.sqrt(x * 0.0) + ignored.detach()

    operation = name_operation(open_run(tmp_path, behind_the_head(compute)))
    assert operation is not None
    assert (operation.name, operation.direction) == ("sqrt_grad", "backward")


def test_the_first_bad_micro_batch_is_found(tmp_path: Path) -> None:
    trainer = open_run(tmp_path, run__accumulate=3)
    window = next(trainer.loader.steps())
    bad = spoiled(window).parts[0]
    assert trainer.forensics._replay.run(1, (*window.parts[:2], bad)).first_bad_part == 2
    assert trainer.forensics._replay.run(1, (window.parts[0], bad, window.parts[1])).first_bad_part == 1


@pytest.mark.parametrize(("compute", "name", "direction"), [
    (lambda x: paddle.log(x * 0.0), "log", "forward"),
    (lambda x: x / (x * 0.0), "divide", "forward"),
    (lambda x: paddle.sqrt(x * 0.0), "sqrt_grad", "backward"),
], ids=["log", "divide", "sqrt"])  # fmt: skip
def test_the_operation_is_named_with_the_statement_that_called_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], compute: Any, name: str, direction: str
) -> None:
    trainer = open_run(tmp_path, behind_the_head(compute))
    capfd.readouterr()
    operation = name_operation(trainer)
    said = capfd.readouterr()
    assert operation is not None
    assert (operation.name, operation.direction) == (name, direction)
    assert operation.place.split(":")[0].endswith("test_replay.py")
    assert operation.layers == (("the network", "head") if direction == "forward" else ())
    assert said.out + said.err == ""  # Paddle prints a page
    assert paddle.get_flags(["FLAGS_check_nan_inf"]) == {"FLAGS_check_nan_inf": False}


def test_a_sound_step_has_no_bad_operation(tmp_path: Path) -> None:
    trainer = open_run(tmp_path)
    parts = replayed_parts(trainer)
    for first in (FirstBad("lstm", "LSTM", "forward", "output", call=1), FirstBad(LOSS, "", "backward", "gradient")):
        assert trainer.forensics._replay.name_operation(1, parts, first) is None


def test_checking_ends_also_after_an_error_of_another_kind(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def refuse(x: paddle.Tensor) -> paddle.Tensor:
        raise ValueError("not today")

    trainer = open_run(tmp_path, behind_the_head(refuse))
    with pytest.raises(ValueError, match="not today"):
        trainer.forensics._replay.name_operation(1, replayed_parts(trainer), FirstBad(LOSS, "", "forward", "its value"))
    assert paddle.get_flags(["FLAGS_check_nan_inf"]) == {"FLAGS_check_nan_inf": False}
    print("heard again", flush=True)
    assert "heard again" in capfd.readouterr().out


def test_float32_tells_an_overflow_of_half_precision_from_others(tmp_path: Path) -> None:
    half = {"amp__dtype": "float16", "amp__emulate": True, "amp__init_scale": 1.0}
    trainer = open_run(tmp_path, behind_the_head(nn.Identity()), **half)
    take_steps(trainer, trainer.loader.steps(), 1)
    trainer.model.head.inner.weight.set_value(np.full([16, 2], 9e5, dtype="float32"))
    replay, parts = trainer.forensics._replay, replayed_parts(trainer)
    assert not replay.run(1, parts).is_finite
    assert replay.run(1, parts, full_precision=True).is_finite
    assert not replay.run(1, parts).is_finite  # half precision is back
