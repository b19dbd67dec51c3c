from __future__ import annotations

import math
from typing import Any

import numpy as np
import paddle
import pytest

from paddle_stable.data.dataset import Batch
from paddle_stable.errors import InputError
from paddle_stable.recipe import FaultConfig
from paddle_stable.stability.faults import Faults, InjectedError


def network_with_gradients() -> paddle.nn.Layer:
    model = paddle.nn.Sequential(paddle.nn.Linear(2, 2), paddle.nn.Linear(2, 1))
    model(paddle.ones([3, 2])).sum().backward()
    return model


def test_nan_loss_hits_its_step_and_its_rank_only() -> None:
    faults = Faults((FaultConfig(step=5, kind="nan_loss", rank=1),), rank=1)
    loss = paddle.to_tensor(2.0)
    assert math.isnan(float(faults.spoil_loss(5, loss)))
    assert float(faults.spoil_loss(4, loss)) == 2.0
    assert float(Faults((FaultConfig(step=5, kind="nan_loss", rank=1),), rank=0).spoil_loss(5, loss)) == 2.0


@pytest.mark.parametrize(("pattern", "expected"), [("*", "0.weight"), ("1.*", "1.weight"), ("*.bias", "0.bias")])
def test_inf_grad_puts_one_inf_into_the_first_matching_parameter(pattern: str, expected: str) -> None:
    model = network_with_gradients()
    Faults((FaultConfig(step=1, kind="inf_grad", parameter=pattern),), rank=0).spoil_gradients(1, model)
    infinite = {n: int(np.isinf(p.grad.numpy()).sum()) for n, p in model.named_parameters()}
    assert infinite == {n: int(n == expected) for n in infinite}


def test_withhold_is_on_every_rank() -> None:
    for rank in (0, 1):
        faults = Faults((FaultConfig(step=3, kind="withhold"),), rank=rank)
        assert [faults.withholds(step) for step in (2, 3, 4)] == [False, True, False]


def test_without_faults_nothing_is_touched() -> None:
    faults, model = Faults((), rank=0), network_with_gradients()
    before = [p.grad.numpy().copy() for p in model.parameters()]
    loss = paddle.to_tensor(1.0)
    assert faults.spoil_loss(1, loss) is loss
    faults.spoil_gradients(1, model)
    faults.spoil_parameters(1, model)
    batch = Batch({"x": paddle.ones([2, 2])}, (0, 1))
    assert faults.spoil_batch(1, batch) is batch
    assert not faults.withholds(1)
    assert all((p.grad.numpy() == b).all() for p, b in zip(model.parameters(), before, strict=True))


def faults_of(kind: str, **values: object) -> Faults:
    return Faults((FaultConfig(step=1, kind=kind, **values),), rank=0)


@pytest.mark.parametrize(
    ("kind", "bad"), [("nan_grad", math.isnan), ("inf_grad", math.isinf), ("huge_grad", lambda value: value > 9e29)]
)
def test_one_gradient_element_is_spoiled(kind: str, bad: object) -> None:
    model = network_with_gradients()
    faults_of(kind).spoil_gradients(1, model)
    gradient = model[0].weight.grad.numpy().ravel()
    assert bad(gradient[0])  # type: ignore[operator]
    assert np.isfinite(gradient[1:]).all()


def test_a_parameter_keeps_its_nan() -> None:
    model = network_with_gradients()
    faults_of("nan_parameter", parameter="1.weight").spoil_parameters(1, model)
    assert [int(np.isnan(p.numpy()).sum()) for p in model.parameters()] == [0, 0, 1, 0]


def test_weights_grow_in_every_step_of_the_fault() -> None:
    model = network_with_gradients()
    before = model[0].weight.numpy().copy()
    faults = faults_of("grow_weights", steps=3)
    for step in range(5):
        faults.spoil_parameters(step, model)
    np.testing.assert_allclose(model[0].weight.numpy(), before * 1.1**3, rtol=1e-5)


def test_only_the_first_sample_and_only_numbers_become_nan() -> None:
    batch = Batch({"x": paddle.ones([3, 2]), "label": paddle.to_tensor([1, 2, 3])}, (0, 1, 2), 0.5)
    spoiled = faults_of("nan_input").spoil_batch(1, batch)
    assert np.isnan(spoiled["x"].numpy()).sum(axis=1).tolist() == [2, 0, 0]
    assert spoiled["label"].tolist() == [1, 2, 3]
    assert (spoiled.indices, spoiled.weight) == (batch.indices, batch.weight)
    assert np.isfinite(batch["x"].numpy()).all()


def test_the_loss_is_raised_or_the_forward_raises() -> None:
    assert float(faults_of("loss_spike").spoil_loss(1, paddle.to_tensor(2.0))) == 2000.0
    with pytest.raises(InjectedError, match="step 1"):
        faults_of("raise").spoil_loss(1, paddle.to_tensor(2.0))


def test_a_fault_that_would_hit_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no trainable parameter matches 'decoder"):
        faults_of("nan_parameter", parameter="decoder.*").spoil_parameters(1, network_with_gradients())


@pytest.mark.parametrize("kind", ["withhold", "nan_parameter", "nan_embedding", "grow_weights"])
def test_what_would_make_processes_differ_happens_on_all(kind: str) -> None:
    model = network_with_gradients()
    before = model[0].weight.numpy().copy()
    faults = Faults((FaultConfig(step=1, kind=kind, rank=1),), rank=0)
    faults.spoil_parameters(1, model)
    assert faults.withholds(1) or not np.array_equal(model[0].weight.numpy(), before)


def test_a_row_of_an_embedding_becomes_nan() -> None:
    model = network_with_gradients()
    faults_of("nan_embedding", parameter="0.weight", row=1).spoil_parameters(1, model)
    assert np.isnan(model[0].weight.numpy()).sum(axis=1).tolist() == [0, 2]


def test_numbers_to_be_predicted_get_a_wrong_unit() -> None:
    batch = Batch({"x": paddle.ones([3, 2]), "target": paddle.ones([3, 1])}, (0, 1, 2))
    spoiled = faults_of("corrupt_label", tensor="target").spoil_batch(1, batch)
    assert spoiled["target"].tolist() == [[1e4], [1.0], [1.0]]
    assert spoiled["x"] is batch["x"]


def test_classes_go_to_the_next_sample() -> None:
    batch = Batch({"x": paddle.ones([3, 2]), "label": paddle.to_tensor([1, 2, 3])}, (0, 1, 2))
    spoiled = faults_of("corrupt_label", tensor="lab*").spoil_batch(1, batch)
    assert spoiled["label"].tolist() == [3, 1, 2]


NUMBERS, WHOLE = {"x": paddle.ones([2, 2])}, {"ids": paddle.to_tensor([[1, 2], [3, 4]])}


@pytest.mark.parametrize(("fault", "tensors", "said"), [
    ({"kind": "nan_input"}, WHOLE, "faults.0: nan_input would change nothing: ids hold whole numbers only"),
    ({"kind": "nan_input", "rank": 1}, WHOLE, "nan_input would change nothing"),
    ({"kind": "corrupt_label"}, NUMBERS, "`tensor` has to name one of x, got '*'"),
    ({"kind": "corrupt_label", "tensor": "y*"}, NUMBERS, "`tensor` has to name one of x, got 'y*'"),
])  # fmt: skip
def test_a_fault_that_could_change_nothing_is_refused_with_the_first_batch(
    fault: dict[str, Any], tensors: dict[str, paddle.Tensor], said: str
) -> None:
    faults = Faults((FaultConfig(step=30, **fault),), rank=0)
    with pytest.raises(InputError, match="do not fit its data") as refused:
        faults.spoil_batch(1, Batch(tensors, (0, 1)))
    assert said in str(refused.value)


@pytest.mark.parametrize("label", ["label", "target", "shrink_map"])
def test_without_a_pattern_the_label_is_corrupted_and_no_input(label: str) -> None:
    batch = Batch({"inputs": paddle.ones([3, 2]), label: paddle.to_tensor([1, 2, 3])}, (0, 1, 2))
    spoiled = faults_of("corrupt_label").spoil_batch(1, batch)
    assert spoiled[label].tolist() == [3, 1, 2]
    assert spoiled["inputs"] is batch["inputs"]


def test_overflow_makes_the_way_back_too_large_for_float16() -> None:
    assert float(faults_of("overflow").spoil_backward(1, paddle.to_tensor(2.0))) == pytest.approx(2e30)
    assert float(faults_of("overflow").spoil_backward(2, paddle.to_tensor(2.0))) == 2.0
