"""The loss of DBNet: probability, threshold and binary map against what the labels say.

None of its terms is a mean over samples: each is a ratio of sums over the pixels of the whole batch, so that a batch
with little text weighs its text more. Half batches, and micro-batches of `run.accumulate`, therefore give another
gradient than a whole batch, quite apart from BatchNorm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import paddle

from paddle_stable.models.dbnet import TrainingMaps

_EPSILON = 1e-6


@final
@dataclass(frozen=True, slots=True)
class DbLoss:
    """`shrink_weight` L_s + `threshold_weight` L_t + `binary_weight` L_b (Liao et al. 2020, eq. 5)."""

    shrink: Literal["bce", "dice"]
    """L_s. bce: cross-entropy with hard negatives, the paper's; dice: as PaddleOCR's recipes have it."""
    negative_ratio: float
    """bce: that many hard negatives for every positive pixel."""
    shrink_weight: float
    threshold_weight: float
    binary_weight: float

    def __call__(
        self,
        maps: TrainingMaps,
        *,
        shrink_map: paddle.Tensor,
        shrink_mask: paddle.Tensor,
        threshold_map: paddle.Tensor,
        threshold_mask: paddle.Tensor,
    ) -> paddle.Tensor:
        """Loss as float32 []. Nothing is read on the host, and no shape depends on the labels.

        Args:
            maps: what the network returns in training.
            shrink_map: 1 inside shrunk texts, 0 elsewhere; like all of them float32 [N, H, W].
            shrink_mask: 0 where the shrink map does not count.
            threshold_map: what the threshold should be.
            threshold_mask: 1 where the threshold map counts.
        """
        probability, threshold, binary, logits = (found.squeeze(1) for found in maps)
        if self.shrink == "bce":
            shrink = balanced_cross_entropy(logits, shrink_map, shrink_mask, self.negative_ratio)
        else:
            shrink = dice_loss(probability, shrink_map, shrink_mask)
        return (
            self.shrink_weight * shrink
            + self.threshold_weight * masked_l1(threshold, threshold_map, threshold_mask)
            + self.binary_weight * dice_loss(binary, shrink_map, shrink_mask)
        )


def balanced_cross_entropy(
    logits: paddle.Tensor, target: paddle.Tensor, mask: paddle.Tensor, negative_ratio: float
) -> paddle.Tensor:
    """Mean cross-entropy over all positive pixels and the hardest negative ones of the batch; float32 [].

    `negative_ratio` negatives for every positive, as far as there are so many: a batch without text has no loss. From
    logits, because a probability that has become exactly 0 or 1 on the wrong side has no gradient any more.
    """
    losses = paddle.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    positive, negative = target * mask, (1.0 - target) * mask
    positives = positive.sum()
    wanted = paddle.minimum(negative.sum(), (positives * negative_ratio).floor())
    chosen = largest(losses.detach(), negative, wanted)
    return (losses * (positive + chosen)).sum() / (positives + wanted + _EPSILON)


def largest(values: paddle.Tensor, candidates: paddle.Tensor, count: paddle.Tensor) -> paddle.Tensor:
    """Weights that choose the `count` largest values: 1 above the smallest chosen one, a fraction on a tie with it.

    The count is a tensor that stays where it is: shapes are fixed, all values are sorted, and the smallest chosen one
    is looked up.

    Args:
        values: not negative, any shape.
        candidates: 1 where a value may be chosen, 0 elsewhere, of the same shape.
        count: how many, at most the number of candidates; float32 [].
    """
    # NaN in a label or an image makes the count NaN, which is no place to look up. The loss is NaN all the same.
    count = paddle.where(paddle.isfinite(count), count, paddle.zeros_like(count))
    ranked = paddle.where(candidates > 0, values, paddle.full_like(values, -1.0))
    in_order = paddle.sort(ranked.flatten(), descending=True)
    smallest = in_order.gather((count - 1.0).clip(min=0.0).astype("int64").reshape([1]))
    above = (ranked > smallest).astype("float32")
    tied = (ranked == smallest).astype("float32")
    share = (count - above.sum()).clip(min=0.0) / tied.sum()
    return (above + tied * share) * (count > 0).astype("float32")


def dice_loss(found: paddle.Tensor, target: paddle.Tensor, mask: paddle.Tensor) -> paddle.Tensor:
    """1 - 2 |found x target| / (|found| + |target|) over the masked pixels of the batch; float32 [], from 0 to 1."""
    overlap = (found * target * mask).sum()
    return 1.0 - 2.0 * overlap / ((found * mask).sum() + (target * mask).sum() + _EPSILON)


def masked_l1(found: paddle.Tensor, target: paddle.Tensor, mask: paddle.Tensor) -> paddle.Tensor:
    """Mean absolute difference over the masked pixels of the batch; float32 [], 0 where there are none."""
    return ((found - target).abs() * mask).sum() / (mask.sum() + _EPSILON)
