"""Model and optimizer as arrays: complete, copied, and put back bit for bit, whatever Paddle calls its tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import paddle
import pytest
from paddle import nn

from paddle_stable.digest import digest
from paddle_stable.training_state import (
    HostMemory,
    StateMismatch,
    current_environment,
    environment_changes,
    load_model_arrays,
    load_optimizer_arrays,
    model_arrays,
    optimizer_arrays,
)

# Paddle's BatchNorm1D says so at every training step.
pytestmark = pytest.mark.filterwarnings("ignore:When training, we now always track global mean and variance")


class Network(nn.Layer):
    """Everything that makes state awkward: LSTM, BatchNorm, a layer used twice, buffers, a part that may be unused."""

    def __init__(self, vocabulary: int = 11) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(vocabulary, 6)
        self.lstm = nn.LSTM(6, 8, num_layers=2, dropout=0.1)
        self.norm = nn.BatchNorm1D(8)
        self.head = nn.Linear(8, 3)
        self.again = self.head
        self.extra = nn.Linear(3, 3)
        self.register_buffer("positions", paddle.arange(4))
        self.register_buffer("scratch", paddle.ones([2]), persistable=False)

    def forward(self, ids: paddle.Tensor, use_extra: bool = False) -> paddle.Tensor:
        hidden, _ = self.lstm(self.embeddings(ids))
        logits = self.again(self.norm(hidden[:, -1]))
        return self.extra(logits) if use_extra else logits


def adamw(model: nn.Layer, **options: Any) -> paddle.optimizer.AdamW:
    return paddle.optimizer.AdamW(0.01, parameters=[p for p in model.parameters() if not p.stop_gradient], **options)


def train(
    model: nn.Layer,
    optimizer: paddle.optimizer.AdamW,
    steps: range,
    *,
    use_extra: Callable[[int], bool] = lambda _: False,
) -> list[float]:
    losses = []
    for step in steps:
        paddle.seed(step)
        ids = paddle.randint(0, 11, [5, 4])
        loss = (model(ids, use_extra(step)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad(set_to_zero=False)
        losses.append(float(loss))
    return losses


def both_digests(model: nn.Layer, optimizer: paddle.optimizer.AdamW) -> tuple[str, str]:
    return digest(model_arrays(model)), digest(optimizer_arrays(optimizer, model))


def half(dtype: str) -> tuple[nn.Layer, paddle.optimizer.AdamW]:
    """A model in half precision with master weights, as AMP level O2 makes it."""
    model = nn.Linear(4, 3).to(dtype=dtype)
    return model, adamw(model, multi_precision=True)


def test_every_tensor_of_the_model_is_there_under_one_name() -> None:
    model = Network()
    names = list(model_arrays(model))
    assert [name for name in names if name.startswith("lstm.")] == [
        f"lstm.{kind}_l{layer}" for layer in range(2) for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    ]
    assert {"norm._mean", "norm._variance", "positions", "head.weight"} <= set(names)
    assert not [name for name in names if name.startswith(("again", "scratch"))]
    held = {id(tensor) for key, tensor in model.state_dict().items()}
    assert len(names) == len(held)
    assert all(np.array_equal(array, model.state_dict()[name].numpy()) for name, array in model_arrays(model).items())


@pytest.mark.parametrize("memory", [None, HostMemory()], ids=["new memory", "memory that is used again"])
@pytest.mark.parametrize("vocabulary", [11, 12_000], ids=["small tensors", "a large one"])
def test_arrays_do_not_move_with_training(vocabulary: int, memory: HostMemory | None) -> None:
    model = Network(vocabulary)
    optimizer = adamw(model)
    train(model, optimizer, range(2))
    for steps in (range(2, 4), range(4, 6)):  # the first time, the memory has no room yet
        if memory is not None:
            memory.rewind()
        arrays, moments = model_arrays(model, memory), optimizer_arrays(optimizer, model, memory)
        before = digest(arrays), digest(moments)
        assert before == both_digests(model, optimizer)
        train(model, optimizer, steps)
        assert (digest(arrays), digest(moments)) == before
        assert both_digests(model, optimizer)[0] != before[0]
        assert both_digests(model, optimizer)[1] != before[1]


def test_memory_is_used_again_and_gives_every_array_a_place_of_its_own() -> None:
    memory, shapes = HostMemory(), [((), "int64"), ((3, 5), "float16"), ((0, 2), "float32"), ((7,), "bool")]
    places = []
    for _ in range(3):
        memory.rewind()
        taken = [memory.take(shape, np.dtype(kind)) for shape, kind in shapes]
        assert [(array.shape, array.dtype.name) for array in taken] == shapes
        for number, array in enumerate(taken):
            array.fill(number % 2)
        assert [set(array.reshape(-1).tolist()) for array in taken] == [{0}, {1.0}, set(), {True}]
        places.append([array.ctypes.data for array in taken if array.size])
    assert places[1] == places[2]
    assert all(place % 64 == places[1][0] % 64 for place in places[1])


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_fresh_model_and_optimizer_go_on_bit_for_bit(at: int) -> None:
    model = Network()
    optimizer = adamw(model)
    train(model, optimizer, range(at))
    arrays, moments = model_arrays(model), optimizer_arrays(optimizer, model)
    losses = train(model, optimizer, range(at, at + 3))

    other = Network()  # numbered otherwise by Paddle
    other_optimizer = adamw(other)
    load_model_arrays(other, arrays)
    load_optimizer_arrays(other_optimizer, other, moments)
    assert both_digests(other, other_optimizer) == (digest(arrays), digest(moments))
    assert train(other, other_optimizer, range(at, at + 3)) == losses
    assert both_digests(other, other_optimizer) == both_digests(model, optimizer)


@pytest.mark.parametrize("at", [0, 2])
def test_a_run_rolls_back_to_an_earlier_state_even_to_before_its_first_step(at: int) -> None:
    model = Network()
    optimizer = adamw(model)
    train(model, optimizer, range(at))
    arrays, moments = model_arrays(model), optimizer_arrays(optimizer, model)
    losses = train(model, optimizer, range(at, at + 3))
    after = both_digests(model, optimizer)
    load_model_arrays(model, arrays)
    load_optimizer_arrays(optimizer, model, moments)
    assert both_digests(model, optimizer) == (digest(arrays), digest(moments))
    assert train(model, optimizer, range(at, at + 3)) == losses
    assert both_digests(model, optimizer) == after


@pytest.mark.parametrize("first_used", [1, 3])
def test_a_part_that_is_used_only_now_and_then_keeps_its_moments(first_used: int) -> None:
    """Moments that no step has touched since loading must still be in the next copy."""

    def use_extra(step: int) -> bool:
        return step in (first_used, 5)

    model = Network()
    optimizer = adamw(model)
    train(model, optimizer, range(2), use_extra=use_extra)
    arrays, moments = model_arrays(model), optimizer_arrays(optimizer, model)
    assert ("extra.weight/moment1" in moments) is (first_used < 2)
    train(model, optimizer, range(2, 6), use_extra=use_extra)

    other = Network()
    other_optimizer = adamw(other)
    load_model_arrays(other, arrays)
    load_optimizer_arrays(other_optimizer, other, moments)
    train(other, other_optimizer, range(2, 3), use_extra=use_extra)
    again = Network()
    again_optimizer = adamw(again)
    load_model_arrays(again, model_arrays(other))
    load_optimizer_arrays(again_optimizer, again, optimizer_arrays(other_optimizer, other))
    train(again, again_optimizer, range(3, 6), use_extra=use_extra)
    assert both_digests(again, again_optimizer) == both_digests(model, optimizer)


def test_loading_takes_no_step_of_the_optimizer() -> None:
    """A step outside the guard is an error of its own, and would run the clip."""

    class Clip(paddle.nn.ClipGradByGlobalNorm):
        def __call__(self, params_grads: Any) -> Any:
            raise AssertionError("the optimizer was stepped")

    model = Network()
    optimizer = adamw(model)
    train(model, optimizer, range(1))
    other = Network()
    other_optimizer = adamw(other, grad_clip=Clip(1.0))
    before = digest(model_arrays(other))
    load_optimizer_arrays(other_optimizer, other, optimizer_arrays(optimizer, model))
    assert digest(model_arrays(other)) == before


def test_keys_are_the_models_names_whichever_optimizer_made_them() -> None:
    model = Network()
    train(model, adamw(model), range(1))
    second = adamw(model)  # Paddle numbers its accumulators from 1, because those of the first exist
    train(model, second, range(1))
    keys = set(optimizer_arrays(second, model))
    assert {key.partition("/")[2] for key in keys} == {"moment1", "moment2", "beta1_pow", "beta2_pow"}
    assert "embeddings.weight/moment1" in keys
    assert "lstm.weight_hh_l1/beta2_pow" in keys


def test_frozen_parameters_have_no_moments() -> None:
    model = Network()
    model.embeddings.weight.stop_gradient = True
    optimizer = adamw(model)
    train(model, optimizer, range(1))
    moments = optimizer_arrays(optimizer, model)
    assert not [key for key in moments if key.startswith("embeddings")]
    other = Network()
    other.embeddings.weight.stop_gradient = True
    other_optimizer = adamw(other)
    load_optimizer_arrays(other_optimizer, other, moments)
    assert digest(optimizer_arrays(other_optimizer, other)) == digest(moments)


def test_moments_of_a_parameter_that_is_frozen_now_are_refused_and_nothing_changes() -> None:
    model = Network()
    optimizer = adamw(model)
    train(model, optimizer, range(1))
    other = Network()
    other.embeddings.weight.stop_gradient = True
    other_optimizer = adamw(other)
    with pytest.raises(StateMismatch) as caught:
        load_optimizer_arrays(other_optimizer, other, optimizer_arrays(optimizer, model))
    assert set(caught.value.unexpected) == {
        f"embeddings.weight/{kind}" for kind in ("moment1", "moment2", "beta1_pow", "beta2_pow")
    }
    assert optimizer_arrays(other_optimizer, other) == {}


def test_the_largest_second_moment_of_amsgrad_is_kept() -> None:
    model = Network()
    optimizer = adamw(model, amsgrad=True)
    train(model, optimizer, range(2))
    moments = optimizer_arrays(optimizer, model)
    assert "head.weight/moment2_max" in moments
    other = Network()
    other_optimizer = adamw(other, amsgrad=True)
    load_optimizer_arrays(other_optimizer, other, moments)
    assert digest(optimizer_arrays(other_optimizer, other)) == digest(moments)
    plain = adamw(other)
    with pytest.raises(StateMismatch, match="moment2_max"):
        load_optimizer_arrays(plain, other, moments)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_and_master_weights_keep_their_type_and_bits(dtype: str) -> None:
    model = half(dtype)[0]
    arrays = model_arrays(model)
    assert arrays["weight"].dtype == (np.float16 if dtype == "float16" else ml_dtypes.bfloat16)
    random = np.random.default_rng(1)
    moments = {}
    for name, shape in (("weight", (4, 3)), ("bias", (3,))):
        for kind, size in (("moment1", shape), ("moment2", shape), ("master_weight", shape)):
            moments[f"{name}/{kind}"] = random.standard_normal(size).astype(np.float32)
        moments[f"{name}/beta1_pow"] = np.array([0.81], np.float32)
        moments[f"{name}/beta2_pow"] = np.array([0.998], np.float32)
    other, other_optimizer = half(dtype)
    load_model_arrays(other, arrays)
    load_optimizer_arrays(other_optimizer, other, moments)
    assert both_digests(other, other_optimizer) == (digest(arrays), digest(moments))
    load_optimizer_arrays(other_optimizer, other, {key: array * 2 for key, array in moments.items()})
    assert digest(optimizer_arrays(other_optimizer, other)) == digest({k: a * 2 for k, a in moments.items()})
    load_optimizer_arrays(other_optimizer, other, {})
    assert optimizer_arrays(other_optimizer, other) == {}
    without_master = {key: array for key, array in moments.items() if "master" not in key}
    with pytest.raises(StateMismatch, match=r"missing: bias/master_weight, weight/master_weight"):
        load_optimizer_arrays(other_optimizer, other, without_master)


def test_every_difference_of_a_model_is_named_at_once_and_nothing_changes() -> None:
    model = Network()
    arrays = model_arrays(Network())
    del arrays["norm._mean"]
    arrays["head.scale"] = np.ones(3, np.float32)
    arrays["head.weight"] = arrays["head.weight"].T
    arrays["extra.bias"] = arrays["extra.bias"].astype(np.float64)
    before = digest(model_arrays(model))
    with pytest.raises(StateMismatch) as caught:
        load_model_arrays(model, arrays)
    assert digest(model_arrays(model)) == before
    assert str(caught.value) == (
        "The saved model does not fit; nothing was loaded.\n"
        "  missing: norm._mean\n"
        "  unexpected: head.scale\n"
        "  of another shape or type: extra.bias (expected float32[3], found float64[3]), "
        "head.weight (expected float32[8, 3], found float32[3, 8])"
    )


@pytest.mark.parametrize("when", ["fresh", "in the middle of a run"])
def test_every_difference_of_an_optimizer_is_named_at_once_and_nothing_changes(when: str) -> None:
    model = Network()
    optimizer = adamw(model)
    train(model, optimizer, range(1))
    moments = optimizer_arrays(optimizer, model)
    del moments["head.weight/moment2"]
    moments["tail.weight/moment1"] = moments["head.weight/moment1"]
    moments["head.bias/moment3"] = moments["head.bias/moment1"]
    moments["head.bias/moment1"] = np.ones(4, np.float32)
    other = Network()
    other_optimizer = adamw(other)
    if when != "fresh":
        train(other, other_optimizer, range(1))
    before = digest(optimizer_arrays(other_optimizer, other))
    with pytest.raises(StateMismatch) as caught:
        load_optimizer_arrays(other_optimizer, other, moments)
    assert caught.value.missing == ("head.weight/moment2",)
    assert caught.value.unexpected == ("head.bias/moment3", "tail.weight/moment1")
    assert caught.value.misshapen == ("head.bias/moment1 (expected float32[3], found float32[4])",)
    assert digest(optimizer_arrays(other_optimizer, other)) == before


def test_state_of_a_parameter_that_the_model_does_not_have_is_not_dropped_silently() -> None:
    model = Network()
    optimizer = adamw(model)
    train(model, optimizer, range(1))
    with pytest.raises(StateMismatch) as caught:
        optimizer_arrays(optimizer, model.head)
    assert any("moment1" in name for name in caught.value.unexpected)


def test_loading_keeps_the_same_tensors_so_the_optimizer_and_the_lstm_go_on_with_them() -> None:
    model = Network()
    tensors = [id(p) for p in model.parameters()]
    load_model_arrays(model, model_arrays(Network()))
    assert [id(p) for p in model.parameters()] == tensors


def test_the_environment_says_what_the_last_bit_depends_on() -> None:
    found = current_environment()
    assert found["device"] in ("cpu", "gpu", "xpu")
    assert found["threads"] == 1
    assert found["world_size"] == 1
    assert found["paddlepaddle version"] == paddle.__version__


def test_every_change_of_the_environment_is_named() -> None:
    saved = {"device": "cpu", "threads": 1, "python": "3.11.4"}
    assert environment_changes(saved, dict(saved)) == []
    assert environment_changes(saved, {"device": "gpu", "threads": 1, "world_size": 2}) == [
        "device cpu → gpu", "python 3.11.4 → unknown", "world_size unknown → 2"
    ]  # fmt: skip
