"""Vocabularies in ERNIE's file format, and a fast tokenizer that gives the ids PaddleNLP's ErnieTokenizer gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from paddle_stable.errors import InputError, Problem

PAD, CLS, SEP, MASK, UNK = SPECIAL_TOKENS = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]")
CONTINUATION = "##"
LATIN_AND_DIGITS = "abcdefghijklmnopqrstuvwxyz0123456789"


@final
@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id. A token may stand twice (ERNIE's `$`): the later id counts, as in PaddleNLP."""

    tokens: tuple[str, ...]

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id of every token."""
        return {token: index for index, token in enumerate(self.tokens)}

    @property
    def size(self) -> int:
        """Rows that an embedding needs: the number of lines, which is more than the number of different tokens."""
        return len(self.tokens)

    def text(self) -> str:
        """The vocabulary as a file: a token a line."""
        return "\n".join(self.tokens) + "\n"

    @staticmethod
    def from_text(text: str, file: str) -> Vocabulary:
        r"""Read a vocabulary, a token a line, lines ending in "\n" or "\r\n" only: other separators are tokens.

        Raises:
            InputError: when a special token is missing, or the file has nothing in it; `file` is named.
        """
        lines = text.removeprefix("\ufeff").split("\n")
        if lines[-1] == "":
            lines.pop()
        if lines and all(line.endswith("\r") for line in lines):
            lines = [line[:-1] for line in lines]
        present = set(lines)
        problems = [
            Problem(file, 0, f"the vocabulary has no {token} line. Expected a token a line, as in ERNIE's vocab.txt.")
            for token in SPECIAL_TOKENS
            if token not in present
        ]
        if problems:
            raise InputError(f"{file} is not a vocabulary for ERNIE:", problems)
        return Vocabulary(tuple(lines))

    @staticmethod
    def from_file(path: Path) -> Vocabulary:
        """Read a vocabulary file, UTF-8.

        Raises:
            InputError: when it cannot be read, or is no vocabulary.
        """
        try:
            text = path.read_bytes().decode("utf-8")
        except OSError as error:
            raise InputError.single(str(path), f"cannot read the vocabulary: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise InputError.single(str(path), f"the vocabulary is not UTF-8 at byte {error.start}.") from error
        return Vocabulary.from_text(text, str(path))

    @staticmethod
    def build(texts: Iterable[str], *, min_count: int) -> Vocabulary:
        """Characters of the texts by frequency, after the tokenizer's own normalisation; the same for the same texts.

        Latin letters and digits are always in it, alone and as `##` continuations, so that any such word has ids.

        Args:
            texts: training texts.
            min_count: occurrences below which a character becomes `[UNK]`.
        """
        normalizer, splitter = _normalizer(lowercase=True), _splitter()
        words: Counter[str] = Counter()
        for text in texts:
            words.update([word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))])
        counts: Counter[str] = Counter()
        for word, count in words.items():
            counts[word[0]] += count
            for character in word[1:]:
                counts[CONTINUATION + character] += count
        always = [*LATIN_AND_DIGITS, *(CONTINUATION + character for character in LATIN_AND_DIGITS)]
        frequent = {token for token, count in counts.items() if count >= min_count}
        ordered = sorted(frequent.union(always), key=lambda token: (-counts[token], token))
        return Vocabulary((*SPECIAL_TOKENS, *ordered))


@final
@dataclass(frozen=True)
class TokenRows:
    """Token ids of many texts in two arrays, which costs a fiftieth of a list of lists."""

    values: npt.NDArray[np.int32]
    """All ids, one text after the other, [tokens]."""
    offsets: npt.NDArray[np.int64]
    """Where each text begins, and the end of the last one, [texts + 1]."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> npt.NDArray[np.int32]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of ids of every text, [texts]."""
        return np.diff(self.offsets)


def _normalizer(*, lowercase: bool) -> normalizers.Normalizer:
    return normalizers.BertNormalizer(lowercase=lowercase)


def _splitter() -> pre_tokenizers.PreTokenizer:
    # PaddleNLP also cuts around every Unicode symbol (currency, arrows, emoji) and around seven letters and digits that
    # it takes for symbols (² µ º Ø ŋ Ʊ 〇), BERT only around punctuation. Symbols first gives the same pieces in two
    # thirds of the time: one search a text instead of one a character.
    symbols = pre_tokenizers.Split(Regex(r"[\p{S}\u00b2\u00b5\u00ba\u00d8\u014b\u01b1\u3007]"), "isolated")
    return pre_tokenizers.Sequence([symbols, pre_tokenizers.BertPreTokenizer()])


@final
class TextTokenizer:
    """Text to ids: normalise, cut into words and characters, WordPiece, `[CLS] … [SEP]`.

    Special tokens are not recognised inside a text: a review that contains "[SEP]" is a review, not two.
    """

    def __init__(self, vocabulary: Vocabulary, *, lowercase: bool = True) -> None:
        model = models.WordPiece(vocab=vocabulary.ids, unk_token=UNK, max_input_chars_per_word=100)
        self._tokenizer = Tokenizer(model)
        self._tokenizer.normalizer = _normalizer(lowercase=lowercase)
        self._tokenizer.pre_tokenizer = _splitter()
        self._first, self._last = vocabulary.ids[CLS], vocabulary.ids[SEP]

    def encode(self, texts: Sequence[str], *, max_length: int) -> TokenRows:
        """Ids of every text with `[CLS]` before and `[SEP]` behind, cut to `max_length` ids in all.

        Args:
            texts: any number of texts.
            max_length: at least 3.
        """
        # One by one: a batch would start threads, and the library warns of deadlocks when a data worker forks later.
        rows = [self._framed(self._tokenizer.encode(text, add_special_tokens=False).ids, max_length) for text in texts]
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        values = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32)
        return TokenRows(values, offsets)

    def _framed(self, ids: Sequence[int], max_length: int) -> npt.NDArray[np.int32]:
        return np.array([self._first, *ids[: max_length - 2], self._last], dtype=np.int32)
