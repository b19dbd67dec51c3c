"""DBNet's loss: by hand, and where it could break: nothing to find, certain and wrong, huge, half precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import paddle
import pytest

from paddle_stable.detection.loss import DbLoss, balanced_cross_entropy, dice_loss, largest, masked_l1
from paddle_stable.models.dbnet import TrainingMaps

Kind = Literal["bce", "dice"]
KINDS: tuple[Kind, ...] = ("bce", "dice")


def tensor(values: object) -> paddle.Tensor:
    return paddle.to_tensor(np.asarray(values, np.float32))


def loss_of(kind: Kind) -> DbLoss:
    return DbLoss(kind, negative_ratio=3.0, shrink_weight=5.0, threshold_weight=10.0, binary_weight=1.0)


def maps_from(logits: paddle.Tensor, threshold_logits: paddle.Tensor) -> TrainingMaps:
    """As `DbNet` makes them, [N, 1, H, W]."""
    probability, threshold = paddle.nn.functional.sigmoid(logits), paddle.nn.functional.sigmoid(threshold_logits)
    return probability, threshold, paddle.nn.functional.sigmoid(50.0 * (probability - threshold)), logits


def labels(*, text: bool) -> dict[str, paddle.Tensor]:
    shrink, threshold, band = np.zeros((2, 8, 8)), np.full((2, 8, 8), 0.3), np.zeros((2, 8, 8))
    if text:
        shrink[0, 2:4, 2:6] = 1.0
        threshold[0, 1:5, 1:7], band[0, 1:5, 1:7] = 0.6, 1.0
    return {
        "shrink_map": tensor(shrink),
        "shrink_mask": tensor(np.ones((2, 8, 8))),
        "threshold_map": tensor(threshold),
        "threshold_mask": tensor(band),
    }


def test_the_hardest_negatives_are_taken_three_for_every_positive() -> None:
    losses = [0.1, 0.9, 0.5, 0.7, 0.3, 0.2]
    logits = [math.log(math.expm1(value)) for value in losses]  # cross-entropy of a negative is softplus(logit)
    positive_logit = 0.4
    found = balanced_cross_entropy(
        tensor([*logits, positive_logit]), tensor([0, 0, 0, 0, 0, 0, 1]), tensor(np.ones(7)), 3.0
    )
    positive = math.log1p(math.exp(-positive_logit))
    assert float(found) == pytest.approx((0.9 + 0.7 + 0.5 + positive) / 4, rel=1e-5)


def test_masked_pixels_are_neither_positives_nor_negatives() -> None:
    logits, target = tensor([5.0, 4.0, -1.0, 0.5]), tensor([0, 1, 0, 1])
    found = balanced_cross_entropy(logits, target, tensor([0, 0, 1, 1]), 3.0)
    expected = (math.log1p(math.exp(-1.0)) + math.log1p(math.exp(-0.5))) / 2  # one positive, and only one negative left
    assert float(found) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 6])
def test_as_many_are_chosen_as_asked_for_whatever_the_ties(count: int) -> None:
    values, candidates = tensor([2, 1, 2, 0, 5, 9, 2]), tensor([1, 1, 1, 1, 1, 0, 1])
    chosen = largest(values, candidates, tensor(count))
    assert float(chosen.sum()) == pytest.approx(count)
    assert float(chosen[5]) == 0.0, "no candidate"
    expected = sum(sorted([2, 1, 2, 0, 5, 2], reverse=True)[:count])
    assert float((chosen * values).sum()) == pytest.approx(expected)


def test_dice_and_l1_by_hand() -> None:
    found, target, mask = tensor([0.5, 1.0, 0.0, 0.7]), tensor([1, 1, 0, 0]), tensor([1, 1, 1, 0])
    assert float(dice_loss(found, target, mask)) == pytest.approx(1 - 2 * 1.5 / (1.5 + 2), rel=1e-5)
    assert float(masked_l1(found, target, mask)) == pytest.approx(0.5 / 3, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_three_terms_are_weighted_5_10_1(kind: Kind) -> None:
    paddle.seed(3)
    maps, truth = maps_from(paddle.randn([2, 1, 8, 8]), paddle.randn([2, 1, 8, 8])), labels(text=True)
    probability, threshold, binary, logits = (one.squeeze(1) for one in maps)
    target, mask = truth["shrink_map"], truth["shrink_mask"]
    shrink = dice_loss(probability, target, mask)
    if kind == "bce":
        shrink = balanced_cross_entropy(logits, target, mask, 3.0)
    distance = masked_l1(threshold, truth["threshold_map"], truth["threshold_mask"])
    expected = 5 * float(shrink) + 10 * float(distance) + float(dice_loss(binary, target, mask))
    assert float(loss_of(kind)(maps, **truth)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize(
    "logit", [lambda x: x, lambda x: x * 0, lambda x: x * 1e4, lambda x: x * 0 + 200, lambda x: x * 0 - 200]
)
def test_loss_and_gradient_are_finite_for_any_map(
    kind: Kind, text: bool, logit: Callable[[paddle.Tensor], paddle.Tensor]
) -> None:
    """Also without text, and where probabilities are exactly 0 and 1."""
    paddle.seed(2)
    leaf = paddle.randn([2, 1, 8, 8])
    leaf.stop_gradient = False
    loss = loss_of(kind)(maps_from(logit(leaf), logit(-leaf)), **labels(text=text))
    loss.backward()
    assert np.isfinite(float(loss))
    assert np.isfinite(leaf.grad.numpy()).all()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_is_certain_and_wrong_is_still_unlearned(sign: float) -> None:
    """In float32 a probability is exactly 1 from a logit of 17 on; a loss of the probability has no gradient there."""
    leaf = paddle.full([1, 1, 8, 8], 40.0 * sign)
    leaf.stop_gradient = False
    truth = {name: value[:1] for name, value in labels(text=True).items()}
    loss_of("bce")(maps_from(leaf, paddle.zeros([1, 1, 8, 8])), **truth).backward()
    wrong = truth["shrink_map"].numpy() == (sign < 0)
    gradient = leaf.grad.numpy()[0, 0] * sign
    assert (gradient[wrong[0]] >= 0).all()
    assert gradient.max() > 0.01


def test_nothing_is_read_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    paddle.seed(1)
    maps, truth = maps_from(paddle.randn([2, 1, 8, 8]), paddle.randn([2, 1, 8, 8])), labels(text=True)

    def forbidden(self: paddle.Tensor, *_: object) -> None:
        raise AssertionError("read on the host")

    for name in ("numpy", "item", "__float__", "__int__", "__bool__", "tolist"):
        monkeypatch.setattr(paddle.Tensor, name, forbidden)
    for kind in KINDS:
        loss_of(kind)(maps, **truth)


def test_a_label_that_is_not_a_number_makes_the_loss_nan_and_not_an_error() -> None:
    target = paddle.zeros([1, 4, 4])
    target[0, 0, 0] = float("nan")
    loss = balanced_cross_entropy(paddle.zeros([1, 4, 4]), target, paddle.ones([1, 4, 4]), 3.0)
    assert np.isnan(float(loss))
