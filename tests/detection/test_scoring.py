"""Precision and recall by ICDAR-2015's rules: by hand, and beside PaddleOCR's counts (README.md here)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from paddle_stable.data.detection_labels import TextRegion
from paddle_stable.detection.scoring import TextCounts, match_texts, total

Floats = npt.NDArray[np.float32]


def box(left: float, top: float, width: float, height: float) -> Floats:
    right, bottom = left + width, top + height
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32)


def text(points: Floats, *, ignore: bool = False) -> TextRegion:
    return TextRegion(points, ignore, "text")


def counts(detected: list[Floats], regions: list[TextRegion]) -> tuple[int, int, int]:
    found = match_texts(detected, regions).counts()
    return found.labelled, found.detected, found.matched


def test_more_than_half_of_the_union_is_a_match() -> None:
    label = [text(box(0, 0, 30, 10))]
    assert counts([box(0, 0, 30, 10)], label) == (1, 1, 1)
    assert counts([box(9, 0, 30, 10)], label) == (1, 1, 1)  # 21 / 39
    assert counts([box(10, 0, 30, 10)], label) == (1, 1, 0)  # 20 / 40 is not more than a half
    assert counts([box(11, 0, 30, 10)], label) == (1, 1, 0)


def test_matches_are_one_to_one() -> None:
    one, other = text(box(0, 0, 30, 10)), text(box(0, 50, 30, 10))
    assert counts([box(0, 0, 30, 10), box(1, 0, 30, 10)], [one]) == (1, 2, 1)
    assert counts([box(0, 0, 30, 10)], [one, text(box(1, 0, 30, 10))]) == (2, 1, 1)
    assert counts([box(0, 50, 30, 10), box(0, 0, 30, 10)], [one, other]) == (2, 2, 2)


def test_what_lies_in_an_ignored_text_does_not_count() -> None:
    ignored = text(box(0, 0, 100, 20), ignore=True)
    assert counts([box(0, 0, 100, 20)], [ignored]) == (0, 0, 0)
    assert counts([box(80, 0, 30, 20)], [ignored]) == (0, 0, 0)  # two thirds of it inside
    assert counts([box(85, 0, 30, 20)], [ignored]) == (0, 1, 0)  # a half is not more than a half
    assert counts([], [ignored, text(box(0, 50, 10, 10))]) == (1, 0, 0)
    # Also when it would be a text that counts: the rule comes before the match.
    assert counts([box(0, 0, 30, 10)], [text(box(0, 0, 30, 10)), ignored]) == (1, 0, 0)


def test_an_outline_that_crosses_itself_counts_with_its_area() -> None:
    bow_tie = np.array([[0, 0], [30, 10], [30, 0], [0, 10]], np.float32)
    assert counts([bow_tie], [text(box(0, 0, 30, 10))]) == (1, 1, 0)  # half of the area
    assert counts([bow_tie], []) == (0, 1, 0)


def test_scores_are_of_all_texts_not_means_over_images() -> None:
    whole = total([TextCounts(1, 1, 1), TextCounts(9, 4, 1), TextCounts(0, 0, 0)])
    assert whole == TextCounts(10, 5, 2)
    assert whole.scores() == pytest.approx({"precision": 0.4, "recall": 0.2, "hmean": 4 / 15})


@pytest.mark.parametrize("found", [TextCounts(), TextCounts(3, 0, 0), TextCounts(0, 3, 0), TextCounts(3, 3, 0)])
def test_nothing_is_divided_by_zero(found: TextCounts) -> None:
    assert found.scores() == {"precision": 0.0, "recall": 0.0, "hmean": 0.0}


def test_counts_are_those_of_paddleocr() -> None:
    cases = json.loads((Path(__file__).parent / "paddleocr_counts.json").read_text(encoding="utf-8"))
    assert len(cases) == 12
    for case in cases:
        regions = [text(np.array(label["points"], np.float32), ignore=label["ignore"]) for label in case["labels"]]
        detected = [np.array(points, np.float32) for points in case["detected"]]
        assert list(counts(detected, regions)) == case["counts"]
