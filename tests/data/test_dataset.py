"""Samples with an identity."""

from __future__ import annotations

import paddle
import pytest

from paddle_stable.data.dataset import Batch, SampleOrigin


@pytest.mark.parametrize(("origin", "text"), [
    (SampleOrigin("a.txt", 3, "first words"), "a.txt:3 (first words)"),
    (SampleOrigin("a.jpg", 0, "640x480"), "a.jpg (640x480)"),
    (SampleOrigin("a.txt", 3, ""), "a.txt:3"),
])  # fmt: skip
def test_an_origin_reads_like_a_place_to_open(origin: SampleOrigin, text: str) -> None:
    assert str(origin) == text


def test_rows_of_a_batch_are_its_samples_alone_with_their_share_of_the_weight() -> None:
    batch = Batch({"x": paddle.arange(8).reshape([4, 2]), "y": paddle.arange(4)}, (7, 5, 3, 1), 0.25)
    rows = batch.rows(1, 3)
    assert (rows.indices, rows.size, rows.weight) == ((5, 3), 2, 0.125)
    assert (rows["x"].tolist(), rows["y"].tolist()) == ([[2, 3], [4, 5]], [1, 2])
    assert batch.size == 4
