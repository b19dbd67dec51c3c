"""Labelled texts: every mistake is found before the first step, and what is read is what stands in the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddle_stable.data.text import (
    TextDataset,
    TextFiles,
    load_text_files,
    read_labels,
    read_text_file,
)
from paddle_stable.data.vocabulary import SPECIAL_TOKENS, TextTokenizer, Vocabulary
from paddle_stable.errors import SHOWN_PROBLEMS, InputError, Problem

LABELS = ("negative", "positive")


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def rows_of(path: Path) -> list[tuple[str, str, int]]:
    file = read_text_file(path, LABELS)
    assert file.problems == ()
    return [(row.text, row.label, row.line) for row in file.rows]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param("好\tpositive\n差\tnegative\n", [("好", "positive", 1), ("差", "negative", 2)], id="local format"),
        pytest.param("好\tpositive", [("好", "positive", 1)], id="no line feed at the end"),
        pytest.param("好\tpositive\r\n差\tnegative\r\n", [("好", "positive", 1), ("差", "negative", 2)], id="CRLF"),
        pytest.param("\ufeff好\tpositive\n", [("好", "positive", 1)], id="byte order mark"),
        pytest.param(
            "\n好\tpositive\n \t \n\r\n差\tnegative\n\n", [("好", "positive", 2), ("差", "negative", 5)], id="blank"
        ),
        pytest.param("label\ttext_a\npositive\t好\n", [("好", "positive", 2)], id="header"),
        pytest.param("qid\tlabel\ttext_a\n7\tpositive\t好\n", [("好", "positive", 2)], id="header with qid"),
        pytest.param("text_a\tlabel\n好\tpositive\n", [("好", "positive", 2)], id="header in another order"),
        pytest.param("text\tlabel\n好\tpositive\n", [("好", "positive", 2)], id="header of the local format"),
        pytest.param("Text\tLABEL\r\n好\tpositive\n", [("好", "positive", 2)], id="the same in capitals and CRLF"),
        pytest.param("Label\tText_A\npositive\t好\n", [("好", "positive", 2)], id="header in capitals"),
        pytest.param("\tlabel\ttext_a\n0\tpositive\t好\n", [("好", "positive", 2)], id="header with pandas' index"),
        pytest.param("\ufefflabel\ttext_a\r\npositive\t好\r\n", [("好", "positive", 2)], id="header, mark and CRLF"),
        pytest.param(" 好 吃 \t positive \n", [("好 吃", "positive", 1)], id="white space around"),
        pytest.param('"好\tpositive\n', [('"好', "positive", 1)], id="a quote is text"),
    ],
)
def test_both_formats_are_read_and_chosen_by_the_header(
    tmp_path: Path, content: str, expected: list[tuple[str, str, int]]
) -> None:
    assert rows_of(write(tmp_path / "x.txt", content)) == expected


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"])
def test_other_line_separators_are_part_of_a_text(tmp_path: Path, separator: str) -> None:
    path = write(tmp_path / "x.txt", f"好{separator}吃\tpositive\n差\tnegative\n")
    assert rows_of(path) == [(f"好{separator}吃", "positive", 1), ("差", "negative", 2)]


BAD_LINES = {
    "好": "expected text<TAB>label, found 0 tabs instead of 1.",
    "好\t吃\tpositive": "expected text<TAB>label, found 2 tabs instead of 1.",
    "好\tpostive": "unknown label 'postive': expected one of negative, positive.",
    "positive\t好": "unknown label '好': expected one of negative, positive. "
    "The columns look swapped: expected text<TAB>label.",
    "\tpositive": "the text is empty.",
    " \u3000\tpositive": "the text is empty.",
    "好\t": "unknown label '': expected one of negative, positive.",
    "好\0\tpositive": "control character U+0000 in the line. Remove it.",
    "好\x1b[0m\tpositive": "control character U+001B in the line. Remove it.",
    "好\x9f\tpositive": "control character U+009F in the line. Remove it.",
    "好\r吃\tpositive": "control character U+000D in the line. Remove it.",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "x.txt", f"好\tpositive\n{line}\n差\tnegative\n")
    file = read_text_file(path, LABELS)
    assert file.problems == (Problem(str(path), 2, BAD_LINES[line]),)
    assert [row.line for row in file.rows] == [1, 3]


def test_bytes_that_are_not_utf8_are_named_with_their_place(tmp_path: Path) -> None:
    path = write(tmp_path / "x.txt", "好\tpositive\n".encode() + "很好\tpositive\n".encode("gbk"))
    assert read_text_file(path).problems == (
        Problem(str(path), 2, "not UTF-8: byte 0xba at position 1. Save the file as UTF-8."),
    )


def test_an_empty_label_is_a_problem_when_any_label_may_occur(tmp_path: Path) -> None:
    path = write(tmp_path / "x.txt", "好\t\n")
    assert read_text_file(path).problems == (Problem(str(path), 1, "the label is empty."),)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "there is no text in it"),
        ("\n\r\n \n", "there is no text in it"),
        ("label\ttext_a\n", "there is no text in it"),
        ("qid\ttext_a\n1\t好\n", "the header has no label column: found qid, text_a"),
        ("label\ttext_a\ttext_b\n1\t好\t差\n", "pairs of texts are not supported"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_without_usable_texts_is_a_problem(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "x.txt"
    if content is not None:
        write(path, content)
    (problem,) = read_text_file(path, LABELS).problems
    assert message in problem.message


def test_a_folder_is_a_problem(tmp_path: Path) -> None:
    (problem,) = read_text_file(tmp_path).problems
    assert "cannot be read: Is a directory" in problem.message


# ---- all files together


GOOD = {
    "train": "好\tpositive\n差\tnegative\n不错\tpositive\n很差\tnegative\n",
    "dev": "满意\tpositive\n失望\tnegative\n",
    "test": "喜欢\tpositive\n后悔\tnegative\n",
}


def load(folder: Path, contents: Mapping[str, str | bytes], **options: Any) -> TextFiles:
    paths = {name: write(folder / f"{name}.txt", content) for name, content in contents.items()}
    defaults: dict[str, Any] = {"labels": None, "overlap": "warn", "bad_samples": "stop", "max_bad_samples": 0}
    return load_text_files(paths, **{**defaults, **options})


def problems_of(folder: Path, contents: Mapping[str, str | bytes], **options: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        load(folder, contents, **options)
    return [str(problem).removeprefix(f"{folder}/") for problem in caught.value.problems]


def test_good_files_give_no_warnings_and_sorted_labels(tmp_path: Path) -> None:
    files = load(tmp_path, GOOD)
    assert files.labels == LABELS
    assert files.warnings == ()
    assert {name: len(file.rows) for name, file in files.splits.items()} == {"train": 4, "dev": 2, "test": 2}


def test_the_label_file_decides_the_order_and_what_may_occur(tmp_path: Path) -> None:
    labels = write(tmp_path / "label.txt", "positive\nnegative\nneutral\n")
    assert load(tmp_path, GOOD, labels=labels).labels == ("positive", "negative", "neutral")


def test_problems_of_all_files_come_together(tmp_path: Path) -> None:
    contents = {
        "train": GOOD["train"] + "没有\n\tpositive\n",
        "dev": GOOD["dev"] + "好吃\tpostive\n",
        "test": GOOD["test"].encode() + b"\xff\tpositive\n",
    }
    assert [problem.split("  ")[0] for problem in problems_of(tmp_path, contents)] == [
        "train.txt:5",
        "train.txt:6",
        "dev.txt:3",
        "test.txt:3",
    ]


def test_a_missing_file_does_not_hide_the_problems_of_another(tmp_path: Path) -> None:
    paths = {"train": write(tmp_path / "train.txt", "没有\n" + GOOD["train"]), "dev": tmp_path / "none.txt"}
    with pytest.raises(InputError) as caught:
        load_text_files(paths, labels=None, overlap="warn", bad_samples="stop", max_bad_samples=0)
    assert [problem.line for problem in caught.value.problems] == [1, 0]


def test_many_problems_are_cut_and_the_rest_is_counted_by_file(tmp_path: Path) -> None:
    contents = {**GOOD, "train": GOOD["train"] + "没有\n" * 60, "dev": GOOD["dev"] + "没有\n" * 7}
    problems = problems_of(tmp_path, contents)
    assert len(problems) == SHOWN_PROBLEMS + 1
    assert problems[-1] == f"…  and 17 more: 10 in {tmp_path}/train.txt, 7 in {tmp_path}/dev.txt."


@pytest.mark.parametrize(("limit", "stops"), [(1, True), (2, False), (3, False)])
def test_skipping_bad_training_lines_has_a_limit(tmp_path: Path, limit: int, stops: bool) -> None:
    contents = {**GOOD, "train": "没有\n" + GOOD["train"] + "\tpositive\n"}
    options: dict[str, Any] = {"bad_samples": "skip", "max_bad_samples": limit}
    if stops:
        assert problems_of(tmp_path, contents, **options) == [
            "train.txt  2 bad lines, more than data.max_bad_samples (1) allows to skip.",
            "train.txt:1  expected text<TAB>label, found 0 tabs instead of 1.",
            "train.txt:6  the text is empty.",
        ]
        return
    files = load(tmp_path, contents, **options)
    assert [row.line for row in files.splits["train"].rows] == [2, 3, 4, 5]
    (warning,) = files.warnings
    assert "2 bad lines left out (data.bad_samples: skip)" in warning
    assert "train.txt:1" in warning
    assert "train.txt:6" in warning


@pytest.mark.parametrize("split", ["dev", "test"])
def test_the_evaluation_set_never_changes_silently(tmp_path: Path, split: str) -> None:
    contents = {**GOOD, split: GOOD[split] + "没有\n"}
    assert problems_of(tmp_path, contents, bad_samples="skip", max_bad_samples=100) == [
        f"{split}.txt:3  expected text<TAB>label, found 0 tabs instead of 1."
    ]


def test_a_training_file_of_bad_lines_only_is_not_skipped(tmp_path: Path) -> None:
    contents = {**GOOD, "train": "没有\n"}
    assert problems_of(tmp_path, contents, bad_samples="skip", max_bad_samples=100)[0].startswith("train.txt:1")


def test_a_label_that_the_training_texts_lack_is_unknown_in_dev(tmp_path: Path) -> None:
    contents = {**GOOD, "dev": "还行\tneutral\n"}
    assert problems_of(tmp_path, contents) == [
        "dev.txt:1  unknown label 'neutral': expected one of negative, positive."
    ]


def test_a_label_file_that_cannot_be_used_does_not_hide_bad_lines(tmp_path: Path) -> None:
    labels = tmp_path / "label.txt"
    contents = {**GOOD, "dev": GOOD["dev"] + "没有\n"}
    assert [problem.split("  ")[0] for problem in problems_of(tmp_path, contents, labels=labels)] == [
        "label.txt",
        "dev.txt:3",
    ]


@pytest.mark.parametrize("given", [False, True])
def test_a_label_that_looks_mistyped_is_pointed_out(tmp_path: Path, given: bool) -> None:
    lines = [f"{index}\t{LABELS[index % 2]}\n" for index in range(30)]
    contents = {**GOOD, "train": "".join([*lines[:7], "好\tpostive\n", *lines[7:]])}
    labels = write(tmp_path / "label.txt", "negative\npositive\npostive\n") if given else None
    warnings = load(tmp_path, contents, labels=labels).warnings
    assert warnings == (
        ()
        if given
        else (f"{tmp_path}/train.txt:8: only this text has the label 'postive'. If it is no class, give data.labels.",)
    )


def test_one_label_is_not_enough(tmp_path: Path) -> None:
    contents = {"train": "好\tpositive\n", "dev": "满意\tpositive\n"}
    assert problems_of(tmp_path, contents) == [
        "train.txt  all texts have the label 'positive'; at least two are expected."
    ]


# ---- repeats, contradictions, overlaps


FINDINGS = {
    "a repeat": ({**GOOD, "train": GOOD["train"] + "好\tpositive\n"}, "train.txt: 1 of 5 texts repeat an earlier one"),
    "a repeat but for spaces": (
        {**GOOD, "train": GOOD["train"] + "很 差\u3000\tnegative\n"},
        "train.txt: 1 of 5 texts repeat an earlier one",
    ),
    "a text of train in dev": (
        {**GOOD, "dev": GOOD["dev"] + "不 错\tpositive\n"},
        "dev.txt: 1 of 3 different dev texts also stand in train",
    ),
    "a text of train in test": (
        {**GOOD, "test": "好\tpositive\n好\tpositive\n" + GOOD["test"]},
        "test.txt: 1 of 3 different test texts also stand in train",
    ),
    "a text of dev in test": (
        {**GOOD, "test": GOOD["test"] + "失望\tnegative\n"},
        "test.txt: 1 of 3 different test texts also stand in dev",
    ),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_repeats_and_overlaps_are_counted_and_named(tmp_path: Path, name: str) -> None:
    contents, expected = FINDINGS[name]
    (warning,) = load(tmp_path, contents).warnings
    assert warning.removeprefix(f"{tmp_path}/").startswith(expected)


@pytest.mark.parametrize("name", FINDINGS)
def test_repeats_and_overlaps_stop_the_run_when_asked_to(tmp_path: Path, name: str) -> None:
    contents, expected = FINDINGS[name]
    (problem,) = problems_of(tmp_path, contents, overlap="stop")
    assert problem.replace("txt  ", "txt: ").startswith(expected)
    assert problem.endswith("(data.overlap: stop)")


def test_a_contradiction_is_counted_beside_the_repeat(tmp_path: Path) -> None:
    repeat, contradiction = load(tmp_path, {**GOOD, "train": GOOD["train"] + "好\tnegative\n"}).warnings
    assert "1 of 5 texts repeat an earlier one" in repeat
    path = tmp_path / "train.txt"
    assert contradiction == f"{path}: 1 texts stand with different labels: {path}:1 = {path}:5"


def test_only_the_first_examples_are_named(tmp_path: Path) -> None:
    (warning,) = load(tmp_path, {**GOOD, "train": GOOD["train"] * 2}).warnings
    path = tmp_path / "train.txt"
    places = "; ".join(f"{path}:{line} = {path}:{line + 4}" for line in (1, 2, 3))
    assert warning == f"{path}: 4 of 8 texts repeat an earlier one: {places}; …"


def test_the_real_chnsenticorp_is_as_contaminated_as_it_is(data_folder: Path) -> None:
    folder = data_folder / "chnsenticorp"
    files = load_text_files(
        {name: folder / f"{name}.tsv" for name in ("train", "dev", "test")},
        labels=None,
        overlap="warn",
        bad_samples="stop",
        max_bad_samples=0,
    )
    assert files.labels == ("0", "1")
    assert [len(file.rows) for file in files.splits.values()] == [9600, 1200, 1200]
    found = [warning.removeprefix(f"{folder}/").split(": ")[1].split(",")[0] for warning in files.warnings]
    assert found == [
        "1358 of 9600 texts repeat an earlier one",
        "24 texts stand with different labels",
        "337 of 1178 different dev texts also stand in train",
        "332 of 1178 different test texts also stand in train",
        "39 of 1178 different test texts also stand in dev",
    ]


# ---- labels


@pytest.mark.parametrize("content", ["a\nb\n", "a\nb", "\ufeffa\r\nb\r\n", "\na\n\n b \n"])
def test_labels_are_read_in_order(tmp_path: Path, content: str) -> None:
    assert read_labels(write(tmp_path / "label.txt", content)) == ("a", "b")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected at least two labels, one a line, found 0"),
        ("a\n", "expected at least two labels, one a line, found 1"),
        ("a\nb\na\n", "label 'a' stands 2 times; once is expected"),
        (b"a\n\xff", "not UTF-8 at byte 2"),
        (None, "cannot read the labels: No such file"),
    ],
)
def test_labels_that_cannot_be_used_are_an_input_error(
    tmp_path: Path, content: str | bytes | None, message: str
) -> None:
    path = tmp_path / "label.txt"
    if content is not None:
        write(path, content)
    with pytest.raises(InputError, match=message):
        read_labels(path)


# ---- the data set


def dataset(folder: Path, content: str, max_length: int = 16, token_dropout: float = 0.0) -> TextDataset:
    file = read_text_file(write(folder / "x.txt", content), LABELS)
    tokenizer = TextTokenizer(Vocabulary((*SPECIAL_TOKENS, *"abcdefgh")))
    tokens = tokenizer.encode([row.text for row in file.rows], max_length=max_length)
    return TextDataset(file, LABELS, tokens, pad_id=0, max_length=max_length, mask_id=3, token_dropout=token_dropout)


RNG = np.random.default_rng(0)


def test_a_sample_is_its_ids_and_its_label(tmp_path: Path) -> None:
    texts = dataset(tmp_path, "a b\tpositive\n\nc\tnegative\n")
    assert len(texts) == 2
    sample = texts.sample(0, RNG)
    assert sample["input_ids"].tolist() == [1, 5, 6, 2]
    assert sample["input_ids"].dtype == sample["label"].dtype == np.int64
    assert sample["label"].shape == ()
    assert [int(texts.sample(index, RNG)["label"]) for index in (0, 1)] == texts.labels.tolist() == [1, 0]


def test_dropped_tokens_are_drawn_anew_and_spare_first_and_last(tmp_path: Path) -> None:
    texts = dataset(tmp_path, f"{'a ' * 200}\tpositive\n", max_length=202, token_dropout=0.25)
    first, second = (texts.sample(0, np.random.default_rng(seed))["input_ids"] for seed in (1, 2))
    assert first.tolist() == texts.sample(0, np.random.default_rng(1))["input_ids"].tolist() != second.tolist()
    for ids in (first, second):
        assert (ids[0], ids[-1]) == (1, 2)
        assert set(ids[1:-1].tolist()) == {3, 5}
        assert 0.15 < np.mean(ids[1:-1] == 3) < 0.35


def test_the_digest_tells_another_word_and_another_label(tmp_path: Path) -> None:
    contents = ("a b\tpositive\nc\tnegative\n", "a c\tpositive\nc\tnegative\n", "a b\tnegative\nc\tnegative\n")
    first, word, label = (dataset(tmp_path, content).digest() for content in contents)
    assert len({first, word, label}) == 3
    assert dataset(tmp_path, contents[0]).digest() == first


def test_a_sample_says_where_it_comes_from(tmp_path: Path) -> None:
    long = "a" * 40
    texts = dataset(tmp_path, f"a b\tpositive\n\n{long}\tnegative\n")
    assert str(texts.origin(0)) == f"{tmp_path}/x.txt:1 (a b)"
    assert str(texts.origin(1)) == f"{tmp_path}/x.txt:3 ({'a' * 29}…)"


def test_lengths_are_those_of_the_samples(tmp_path: Path) -> None:
    texts = dataset(tmp_path, "a\tpositive\na b c d e f\tnegative\na b\tpositive\n", max_length=5)
    assert texts.lengths().tolist() == [3, 5, 4]
    assert [len(texts.sample(index, RNG)["input_ids"]) for index in range(3)] == [3, 5, 4]


@pytest.mark.parametrize(("longest", "width"), [(1, 8), (6, 8), (7, 16), (14, 16)])
def test_a_batch_is_padded_to_a_multiple_of_eight(tmp_path: Path, longest: int, width: int) -> None:
    texts = dataset(tmp_path, f"a\tpositive\n{' '.join('b' * longest)}\tnegative\n")
    batch = texts.collate([texts.sample(index, RNG) for index in (0, 1)])
    assert {name: array.shape for name, array in batch.items()} == {
        "input_ids": (2, width),
        "attention_mask": (2, width),
        "label": (2,),
    }
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int64)}
    assert batch["input_ids"][0].tolist() == [1, 5, 2] + [0] * (width - 3)
    assert batch["attention_mask"].sum(axis=1).tolist() == [3, longest + 2]
    assert (batch["input_ids"] * (1 - batch["attention_mask"]) == 0).all()
    assert batch["label"].tolist() == [1, 0]


@pytest.mark.parametrize(("longest", "width"), [(6, 8), (7, 10), (20, 10)])
def test_padding_never_goes_beyond_the_longest_text_allowed(tmp_path: Path, longest: int, width: int) -> None:
    texts = dataset(tmp_path, f"a\tpositive\n{'b ' * longest}\tnegative\n", max_length=10)
    batch = texts.collate([texts.sample(index, RNG) for index in (0, 1)])
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (2, width)


def test_a_token_with_the_padding_id_is_not_masked(tmp_path: Path) -> None:
    texts = dataset(tmp_path, "a\tpositive\n")
    batch = texts.collate([{"input_ids": np.array([1, 0, 2]), "label": np.array(0)}])
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0, 0, 0, 0]]
