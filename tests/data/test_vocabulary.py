"""The fast tokenizer gives the ids of PaddleNLP's, and vocabularies are read and built the same way every time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paddle_stable.data.text import read_text_file
from paddle_stable.data.vocabulary import SPECIAL_TOKENS, TextTokenizer, TokenRows, Vocabulary
from paddle_stable.errors import InputError

AWKWARD_TEXTS = [
    "请输入测试样例",
    "房间很好，Wi-Fi 300M，早餐￥38/人；下次还来！",
    "Café naïve ÅNGSTRÖM İstanbul ﬁne",
    "①②③ ㈱ ½ ５６７８ ＡＢＣ ｱｲｳ",
    "価格は高いけどとても良いホテルでした カタカナ",
    "호텔이 아주 좋아요",
    "^_^ T_T :-) +1 a=b<c>d|e~f`g $100 €50",
    "★★★★☆ → ▲ ● 👍👍🏽 ❤️",
    "www.example.com/a_b?c=d&e=f a@b.cn",
    "x" * 99 + " " + "y" * 100 + " " + "z" * 101,
    "[CLS] 不是 [SEP] 也 [PAD]",
    "tab\there nbsp\u00a0here zero\u200bwidth joiner\u200dhere bom\ufeffhere",
    "line\u2028separator next\x85line form\x0cfeed",
    "𠮷野家 𝒳 𝟙",
    "房间50m²很大 5µm 30º Øl aŋb Ʊx 二〇一〇年 x〇y soft\u00adhyphen",
    "Ａ１　全角　空格",
    "",
]


def paddlenlp_ids(vocabulary: Path, texts: list[str], max_length: int, lowercase: bool) -> list[list[int]]:
    from paddlenlp.transformers import ErnieTokenizer

    tokenizer = ErnieTokenizer(str(vocabulary), do_lower_case=lowercase)
    return [tokenizer(text, max_length=max_length, truncation=True)["input_ids"] for text in texts]


def assert_same_ids(vocabulary: Path, texts: list[str], max_length: int, *, lowercase: bool = True) -> None:
    rows = TextTokenizer(Vocabulary.from_file(vocabulary), lowercase=lowercase).encode(texts, max_length=max_length)
    for text, expected, row in zip(texts, paddlenlp_ids(vocabulary, texts, max_length, lowercase), rows, strict=True):
        assert row.tolist() == expected, text


@pytest.fixture
def small_vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_bytes(Vocabulary.build(AWKWARD_TEXTS, min_count=1).text().encode("utf-8"))
    return path


def without_special_tokens(texts: list[str]) -> list[str]:
    """PaddleNLP takes "[CLS]" inside a text for the token: on purpose, we do not."""
    return [text for text in texts if "[CLS]" not in text]


@pytest.mark.parametrize("max_length", [3, 8, 512])
def test_ids_equal_paddlenlps_with_a_built_vocabulary(small_vocabulary: Path, max_length: int) -> None:
    assert_same_ids(small_vocabulary, without_special_tokens(AWKWARD_TEXTS), max_length)


def test_ids_equal_paddlenlps_with_capitals(small_vocabulary: Path) -> None:
    assert_same_ids(small_vocabulary, without_special_tokens(AWKWARD_TEXTS), 512, lowercase=False)


def test_ids_equal_paddlenlps_with_the_real_vocabulary_and_real_reviews(data_folder: Path) -> None:
    reviews = read_text_file(data_folder / "chnsenticorp" / "dev.tsv").rows[:400]
    texts = [row.text for row in reviews] + without_special_tokens(AWKWARD_TEXTS)
    assert_same_ids(data_folder / "ernie_vocab" / "ernie3_vocab.txt", texts, 128)


def test_the_real_vocabulary_keeps_its_line_numbers(data_folder: Path) -> None:
    vocabulary = Vocabulary.from_file(data_folder / "ernie_vocab" / "ernie3_vocab.txt")
    assert vocabulary.size == 39980
    assert len(vocabulary.ids) == 39979
    assert vocabulary.ids["$"] == 18005
    assert vocabulary.ids["[UNK]"] == 39979
    ids = TextTokenizer(vocabulary).encode(["请输入测试样例"], max_length=128)[0]
    assert ids.tolist() == [1, 647, 789, 109, 558, 525, 314, 656, 2]


def test_a_special_token_inside_a_text_is_text(small_vocabulary: Path) -> None:
    vocabulary = Vocabulary.from_file(small_vocabulary)
    (row,) = TextTokenizer(vocabulary).encode(["[CLS] 不是 [SEP] 也 [PAD]"], max_length=128)
    inside = row[1:-1].tolist()
    assert not {vocabulary.ids[token] for token in ("[CLS]", "[SEP]", "[PAD]")} & set(inside)


@pytest.mark.parametrize(
    ("length", "expected"), [(3, "[CLS] a [SEP]"), (4, "[CLS] a b [SEP]"), (9, "[CLS] a b c [SEP]")]
)
def test_a_long_text_is_cut_and_still_framed(length: int, expected: str) -> None:
    vocabulary = Vocabulary((*SPECIAL_TOKENS, "a", "b", "c"))
    (row,) = TextTokenizer(vocabulary).encode(["a b c"], max_length=length)
    assert " ".join(vocabulary.tokens[index] for index in row) == expected


def test_lower_case_is_a_choice() -> None:
    vocabulary = Vocabulary((*SPECIAL_TOKENS, "a", "A"))
    lower, upper = (
        TextTokenizer(vocabulary, lowercase=choice).encode(["A"], max_length=3)[0] for choice in (True, False)
    )
    assert vocabulary.tokens[lower[1]] == "a"
    assert vocabulary.tokens[upper[1]] == "A"


def test_rows_keep_order_and_length_whatever_their_number() -> None:
    vocabulary = Vocabulary((*SPECIAL_TOKENS, "a"))
    texts = [" ".join("a" * (index % 5)) for index in range(2500)]
    rows = TextTokenizer(vocabulary).encode(texts, max_length=16)
    assert len(rows) == 2500
    assert rows.values.dtype == np.int32
    assert rows.lengths().tolist() == [2 + index % 5 for index in range(2500)]
    assert all(rows[index].tolist() == [1, *[5] * (index % 5), 2] for index in range(2500))


def test_no_texts_are_no_rows() -> None:
    rows = TextTokenizer(Vocabulary(SPECIAL_TOKENS)).encode([], max_length=8)
    assert len(rows) == 0
    assert rows.lengths().tolist() == []


@pytest.mark.parametrize("index", [-1, 2])
def test_a_row_that_is_not_there_is_an_index_error(index: int) -> None:
    with pytest.raises(IndexError):
        TokenRows(np.array([1, 2], dtype=np.int32), np.array([0, 1, 2]))[index]


def test_a_built_vocabulary_has_special_tokens_then_characters_by_frequency() -> None:
    vocabulary = Vocabulary.build(["好好好 差差", "好 A 差 罕"], min_count=2)
    assert vocabulary.tokens[:7] == (*SPECIAL_TOKENS, "好", "差")
    assert "罕" not in vocabulary.ids
    assert len(vocabulary.ids) == vocabulary.size


def test_any_word_of_latin_letters_and_digits_has_ids() -> None:
    vocabulary = Vocabulary.build(["好"], min_count=1)
    (row,) = TextTokenizer(vocabulary).encode(["Zebra X9 2026"], max_length=32)
    tokens = [vocabulary.tokens[index] for index in row[1:-1]]
    assert tokens == ["z", "##e", "##b", "##r", "##a", "x", "##9", "2", "##0", "##2", "##6"]


def test_building_twice_gives_the_same_whatever_the_order_of_the_texts() -> None:
    assert Vocabulary.build(AWKWARD_TEXTS, min_count=1) == Vocabulary.build(AWKWARD_TEXTS[::-1], min_count=1)


def test_a_vocabulary_survives_being_written_and_read(small_vocabulary: Path) -> None:
    assert Vocabulary.from_file(small_vocabulary) == Vocabulary.build(AWKWARD_TEXTS, min_count=1)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_only_line_feeds_separate_tokens(separator: str) -> None:
    text = "\n".join([*SPECIAL_TOKENS, f"a{separator}b", "c"]) + "\n"
    assert Vocabulary.from_text(text, "vocab.txt").ids == {
        token: index for index, token in enumerate([*SPECIAL_TOKENS, f"a{separator}b", "c"])
    }


@pytest.mark.parametrize("text", ["\ufeff{0}\n", "{0}", "{0}\n", "{1}\r\n"])
def test_a_byte_order_mark_and_windows_line_ends_are_no_tokens(text: str) -> None:
    whole = text.format("\n".join(SPECIAL_TOKENS), "\r\n".join(SPECIAL_TOKENS))
    assert Vocabulary.from_text(whole, "vocab.txt").tokens == SPECIAL_TOKENS


def test_every_missing_special_token_is_named() -> None:
    with pytest.raises(InputError) as caught:
        Vocabulary.from_text("[PAD]\n好\n", "vocab.txt")
    assert [problem.message.split(".")[0] for problem in caught.value.problems] == [
        f"the vocabulary has no {token} line" for token in SPECIAL_TOKENS[1:]
    ]


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot read the vocabulary"), (b"[PAD]\n\xff", "not UTF-8 at byte 6")]
)
def test_a_file_that_cannot_be_read_is_an_input_error(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        Vocabulary.from_file(path)
