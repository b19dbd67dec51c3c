"""Promise 1: a skipped step changes nothing that learns. Promise 3: one read a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest

from paddle_stable.recipe import AdaptiveClipConfig, AmpConfig, ClipConfig, ClipGroupConfig, SpikeConfig
from paddle_stable.stability.step_report import SkipReason

CLIPS = {
    **{kind: ClipConfig(kind=kind) for kind in ("global_norm", "norm", "value", "none")},
    "percentile": ClipConfig(kind="adaptive", adaptive=AdaptiveClipConfig(method="percentile", warmup_steps=1)),
    "zscore": ClipConfig(kind="adaptive", adaptive=AdaptiveClipConfig(method="zscore", warmup_steps=1)),
    "layers": ClipConfig(kind="layers", groups=(ClipGroupConfig(match="first.*", max_norm=0.01),), max_norm=0.1),
}
QUICK = {"warmup_steps": 5, "window": 10}


def poison(value: float, where: str) -> Callable[[paddle.nn.Layer], None]:
    """Put `value` into one element of the gradients that `where` names."""

    def spoil(model: paddle.nn.Layer) -> None:
        parameters = dict(model.named_parameters())
        names = [n for n, p in parameters.items() if p.grad is not None]
        unclipped = [n for n in names if not parameters[n].need_clip]
        chosen = {"first": names[:1], "middle": names[4:5], "last": names[-1:], "unclipped": unclipped, "all": names}
        for name in chosen[where]:
            addend = np.zeros(parameters[name].shape, dtype="float32")
            addend.flat[0] = value
            with paddle.no_grad():
                parameters[name].grad.add_(paddle.to_tensor(addend))

    return spoil


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["first", "middle", "last", "unclipped", "all"])
@pytest.mark.parametrize("kind", CLIPS)
def test_a_skipped_step_changes_nothing_that_learns(small_run: Any, value: float, where: str, kind: str) -> None:
    run = small_run(CLIPS[kind])
    for seed in range(2):
        assert run.step(seed).applied
    before, clip, spikes = run.digest(), run.guard.clip.state(), run.guard.spikes.state()
    verdict = run.step(7, spoil=poison(value, where))
    assert verdict.skipped is SkipReason.NONFINITE
    assert not verdict.clipped
    assert verdict.clipped_groups == {}
    assert run.digest() == before
    assert run.guard.clip.state() == clip
    assert run.guard.spikes.state() == spikes


@pytest.mark.parametrize("kind", CLIPS)
@pytest.mark.parametrize("amp", [AmpConfig(), AmpConfig(dtype="float16", emulate=True, init_scale=1.0)])
def test_a_skipped_spike_changes_nothing_that_learns(small_run: Any, kind: str, amp: AmpConfig) -> None:
    run = small_run(CLIPS[kind], amp, spike=SpikeConfig(action="skip", **QUICK))
    for seed in range(8):
        assert run.step(seed).applied
    before, clip, scale = run.digest(), run.guard.clip.state(), run.precision.scaling.state()
    verdict = run.step(9, loss_factor=1e3)
    assert verdict.skipped is SkipReason.SPIKE
    assert verdict.spike == ("loss", "norm")
    assert not verdict.clipped
    assert run.digest() == before
    assert run.guard.clip.state() == clip
    assert run.precision.scaling.state() == scale


@pytest.mark.parametrize("kind", CLIPS)
def test_a_run_with_skipped_spikes_equals_one_that_withholds_them(small_run: Any, kind: str) -> None:
    spiky, withheld = (small_run(CLIPS[kind], spike=SpikeConfig(action="skip", **QUICK)) for _ in range(2))
    for seed in range(20):
        if seed in (10, 11, 15):
            assert spiky.step(seed, loss_factor=1e3).skipped is SkipReason.SPIKE
            assert not withheld.guard.withhold().applied
        else:
            assert spiky.step(seed).applied
            assert withheld.step(seed).applied
    assert spiky.digest() == withheld.digest()
    assert spiky.guard.clip.state() == withheld.guard.clip.state()


@pytest.mark.parametrize("kind", CLIPS)
def test_a_limited_spike_is_applied_at_the_usual_norm(small_run: Any, kind: str) -> None:
    run = small_run(CLIPS[kind], spike=SpikeConfig(action="clip", **QUICK))
    for seed in range(8):
        run.step(seed)
    usual = run.guard.spikes.judge(loss=1e9, norm=1e9).usual_norm
    verdict = run.step(9, loss_factor=1e3)
    assert verdict.applied
    assert verdict.clipped
    assert verdict.spike == ("loss", "norm")
    assert verdict.grad_norm * verdict.clip_scale <= usual * (1 + 1e-9)
    if kind in ("global_norm", "none"):
        expected = min(usual, 1.0) if kind == "global_norm" else usual
        assert verdict.grad_norm * verdict.clip_scale == pytest.approx(expected, rel=1e-6)


def test_without_the_guard_no_spike_is_looked_for(small_run: Any) -> None:
    run = small_run(guard=False, spike=SpikeConfig(action="skip", **QUICK))
    for seed in range(8):
        run.step(seed)
    verdict = run.step(9, loss_factor=1e3)
    assert verdict.applied
    assert verdict.spike == ()


def test_a_wrong_loss_alone_limits_the_step(small_run: Any) -> None:
    """The norm is usual, so that nothing has to be limited; the step is still known to be out of the ordinary."""
    run = small_run(spike=SpikeConfig(**QUICK))
    for seed in range(8):
        run.step(seed)
    run.guard.begin()
    loss = (run.model(paddle.ones([16, 4])) ** 2).mean()
    loss.backward()
    verdict = run.guard.step(run.optimizer, [loss * 1e4], samples=16, applied=run.applied)
    assert verdict.applied
    assert verdict.spike == ("loss",)


def test_a_non_finite_loss_is_a_skip_even_when_gradients_are_finite(small_run: Any) -> None:
    run = small_run()
    before = run.digest()
    run.guard.begin()
    loss = run.model(paddle.ones([4, 4])).mean()
    loss.backward()
    verdict = run.guard.step(run.optimizer, [loss * math.nan], samples=4, applied=0)
    assert verdict.skipped is SkipReason.NONFINITE
    assert math.isnan(verdict.loss)
    assert run.digest() == before


def test_batch_norm_statistics_exist_move_and_are_put_back(small_run: Any) -> None:
    run = small_run()
    statistics = {n: t for n, t in run.model.state_dict().items() if n.startswith("batch_norm._")}
    assert sorted(statistics) == ["batch_norm._mean", "batch_norm._variance"]
    before = {n: t.numpy().copy() for n, t in statistics.items()}
    run.step(0, spoil=poison(math.nan, "first"))
    assert all((statistics[n].numpy() == before[n]).all() for n in statistics)
    run.step(0)
    assert all((statistics[n].numpy() != before[n]).any() for n in statistics)


def test_without_the_guard_the_same_step_destroys_everything(small_run: Any) -> None:
    run = small_run(guard=False)
    verdict = run.step(0, spoil=poison(math.nan, "first"))
    assert verdict.applied
    assert all(np.isnan(p.numpy()).all() for p in run.model.parameters() if p.need_clip and not p.stop_gradient)


def test_a_run_with_poisoned_steps_equals_one_that_withholds_them(small_run: Any) -> None:
    poisoned, withheld = small_run(), small_run()
    for seed in range(8):
        if seed in (2, 3, 6):
            assert not poisoned.step(seed, spoil=poison(math.nan, "last")).applied
            assert not withheld.guard.withhold().applied
        else:
            poisoned.step(seed)
            withheld.step(seed)
    assert poisoned.digest() == withheld.digest()
    plain = small_run()
    for seed in range(8):
        plain.step(seed)
    assert plain.digest() != poisoned.digest()


@pytest.mark.parametrize("kind", CLIPS)
@pytest.mark.parametrize("amp", [AmpConfig(), AmpConfig(dtype="float16", emulate=True)])
def test_one_read_a_step(small_run: Any, kind: str, amp: AmpConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(CLIPS[kind], amp)
    run.step(0)
    reads: list[str] = []
    tensor = type(paddle.ones([1]))
    for name in ("numpy", "item", "tolist", "__float__", "__int__", "__bool__", "__array__"):
        original = getattr(tensor, name)

        def counted(self: Any, *args: Any, _name: str = name, _original: Any = original, **kwargs: Any) -> Any:
            reads.append(_name)
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(tensor, name, counted)
    assert run.step(1).applied
    assert reads == ["numpy"]


def test_gradients_are_cleared_after_a_step_and_after_a_skip(small_run: Any) -> None:
    run = small_run()
    for spoil in (None, poison(math.inf, "all")):
        run.step(0, spoil=spoil)
        assert all(p.grad is None for p in run.gradients.parameters)


def test_an_optimizer_stepped_without_the_guard_is_an_error(small_run: Any) -> None:
    run = small_run()
    run.model(paddle.ones([4, 4])).mean().backward()
    with pytest.raises(RuntimeError, match=r"StepGuard\.step"):
        run.optimizer.step()


def test_a_sparse_embedding_is_refused_with_the_way_out(small_run: Any) -> None:
    run = small_run()
    run.model.extra = paddle.nn.Embedding(5, 4, sparse=True)
    gradients = type(run.gradients)(run.model, run.guard._world)
    run.model.extra(paddle.to_tensor([1])).sum().backward()
    with pytest.raises(TypeError, match="sparse=False"):
        gradients.refuse_sparse()


def test_every_process_hears_of_a_wish_to_stop(small_run: Any) -> None:
    run = small_run()
    run.guard.begin()
    loss = run.model(paddle.ones([4, 4])).mean()
    loss.backward()
    assert run.guard.step(run.optimizer, [loss], samples=4, applied=0, stop_vote=True).stop_requested
