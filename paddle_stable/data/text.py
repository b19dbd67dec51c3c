"""Labelled texts: read, checked before the first step, tokenised once and kept as integer arrays."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, final

import numpy as np
import numpy.typing as npt

from paddle_stable.data.dataset import Array, Dataset, Sample, SampleOrigin
from paddle_stable.data.vocabulary import TokenRows
from paddle_stable.digest import digest
from paddle_stable.errors import InputError, Problem, attempt, capped

SHOWN_EXAMPLES = 3
EXCERPT_LENGTH = 30
LONELY_AMONG = 10
"""Texts per label from which on a label with one text is worth a warning."""
PAD_MULTIPLE = 8
"""Batches are padded to a multiple of this: fewer different shapes, and what Tensor Cores want."""


@final
@dataclass(frozen=True, slots=True)
class TextRow:
    """One labelled text."""

    text: str
    label: str
    line: int
    """1-based."""

    @property
    def key(self) -> str:
        """The text with all white space removed: two texts with the same key are the same text."""
        return "".join(self.text.split())


@final
@dataclass(frozen=True)
class TextFile:
    """What one file holds: the rows that can be used, and what is wrong with the others."""

    path: str
    rows: tuple[TextRow, ...]
    problems: tuple[Problem, ...] = ()

    def where(self, row: TextRow) -> str:
        """`file:line` of a row."""
        return f"{self.path}:{row.line}"


@final
@dataclass(frozen=True, slots=True)
class _Columns:
    """Where text and label stand in a line."""

    text: int = 0
    label: int = 1
    count: int = 2
    names: str = "text<TAB>label"
    first_row: int = 0
    """0-based; the line before it is the header."""


def read_text_file(path: Path, labels: Sequence[str] | None = None) -> TextFile:
    r"""Read `text<TAB>label` (PaddleNLP's local format), or a TSV whose header names `label` and `text_a`.

    A first line that is `text<TAB>label` itself is a header too.

    UTF-8, with or without BOM, lines ending in "\n" or "\r\n" and in nothing else: texts contain other Unicode
    line separators. Blank lines are left out. Nothing is raised: what is wrong is in the result.

    Args:
        path: the file.
        labels: the labels that may occur; None admits any.
    """
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        message = f"cannot be read: {error.strerror}. Expected text<TAB>label in UTF-8, or a TSV with a header."
        return TextFile(str(path), (), (Problem(str(path), 0, message),))
    columns, problem = _columns(lines[0])
    if problem:
        return TextFile(str(path), (), (Problem(str(path), 1, problem),))
    first = columns.first_row
    rows: list[TextRow] = []
    problems: list[Problem] = []
    for number, line in enumerate(lines[first:], start=first + 1):
        if not line.strip():
            continue
        row = _row(line.removesuffix(b"\r"), number, columns, labels)
        if isinstance(row, str):
            problems.append(Problem(str(path), number, row))
        else:
            rows.append(row)
    if not rows and not problems:
        problems.append(Problem(str(path), 0, f"there is no text in it. Expected lines of {columns.names}."))
    return TextFile(str(path), tuple(rows), tuple(problems))


def _columns(first_line: bytes) -> tuple[_Columns, str]:
    """The columns that the first line names, or those of the local format; and what is wrong with the header."""
    names = first_line.decode("utf-8", errors="replace").strip("\r\n ").lower().split("\t")
    if names == ["text", "label"]:
        return _Columns(first_row=1), ""
    if "text_a" not in names:
        return _Columns(), ""
    if "text_b" in names:
        return _Columns(), "the header names text_b: pairs of texts are not supported, only text_a and label."
    if "label" not in names:
        return _Columns(), f"the header has no label column: found {', '.join(names)}; expected label and text_a."
    return _Columns(names.index("text_a"), names.index("label"), len(names), "<TAB>".join(names), 1), ""


def _row(line: bytes, number: int, columns: _Columns, labels: Sequence[str] | None) -> TextRow | str:
    """The row in a line, or what is wrong with it."""
    try:
        fields = line.decode("utf-8").split("\t")
    except UnicodeDecodeError as error:
        return f"not UTF-8: byte 0x{line[error.start]:02x} at position {error.start + 1}. Save the file as UTF-8."
    if len(fields) != columns.count:
        return f"expected {columns.names}, found {len(fields) - 1} tabs instead of {columns.count - 1}."
    text, label = fields[columns.text].strip(), fields[columns.label].strip()
    for character in text + label:
        # Control characters that are white space (form feed, next line …) do no harm; a lone carriage return does.
        if unicodedata.category(character) == "Cc" and (character == "\r" or not character.isspace()):
            return f"control character U+{ord(character):04X} in the line. Remove it."
    if not text:
        return "the text is empty."
    if labels is not None and label not in labels:
        swapped = f" The columns look swapped: expected {columns.names}." if text in labels else ""
        return f"unknown label {_short(label)!r}: expected one of {', '.join(labels)}.{swapped}"
    return TextRow(text, label, number) if label else "the label is empty."


def read_labels(path: Path) -> tuple[str, ...]:
    """Read label.txt: a label a line, in the order of their ids.

    Raises:
        InputError: when it cannot be read, names fewer than two labels, or one twice.
    """
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        raise InputError.single(str(path), f"cannot read the labels: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InputError.single(str(path), f"the labels are not UTF-8 at byte {error.start}.") from error
    labels = [line.strip() for line in lines if line.strip()]
    problems = [
        Problem(str(path), 0, f"label {label!r} stands {count} times; once is expected.")
        for label, count in Counter(labels).items()
        if count > 1
    ]
    if len(labels) < 2:
        problems.append(Problem(str(path), 0, f"expected at least two labels, one a line, found {len(labels)}."))
    if problems:
        raise InputError(f"{path} is not a list of labels:", problems)
    return tuple(labels)


@final
@dataclass(frozen=True)
class TextFiles:
    """All splits, checked, with the labels and what is worth a warning."""

    splits: Mapping[str, TextFile]
    """By name: train, dev and maybe test."""
    labels: tuple[str, ...]
    """In the order of their ids."""
    warnings: tuple[str, ...] = field(default=())


def load_text_files(
    paths: Mapping[str, Path],
    *,
    labels: Path | None,
    overlap: Literal["warn", "stop"],
    bad_samples: Literal["stop", "skip"],
    max_bad_samples: int,
) -> TextFiles:
    """Read and check every split before anything is trained.

    Args:
        paths: files by split; `train` must be among them.
        labels: label.txt, or None for the labels of the training file, sorted.
        overlap: whether repeats, contradictions and texts in two splits are warnings or errors.
        bad_samples: `skip` leaves bad lines of the *training* file out; the others never change silently.
        max_bad_samples: more bad lines than that are an error even with `skip`.

    Raises:
        InputError: with all that is wrong in all files, by file and line.
    """
    problems: list[Problem] = []
    names = attempt(problems, lambda: read_labels(labels)) if labels is not None else None
    train = read_text_file(paths["train"], names)
    found = names or tuple(sorted({row.label for row in train.rows}))
    splits = {"train": train} | {
        name: read_text_file(path, found or None) for name, path in paths.items() if name != "train"
    }
    skipped = bool(train.rows) and bad_samples == "skip" and len(train.problems) <= max_bad_samples
    if bad_samples == "skip" and len(train.problems) > max_bad_samples:
        limit = f"{len(train.problems)} bad lines, more than data.max_bad_samples ({max_bad_samples}) allows to skip."
        problems.append(Problem(train.path, 0, limit))
    for name, file in splits.items():
        problems += [] if name == "train" and skipped else file.problems
    if len(found) == 1:
        problems.append(Problem(train.path, 0, f"all texts have the label {found[0]!r}; at least two are expected."))
    findings = _repeats(train) + _overlaps(splits)
    if overlap == "stop":
        problems += [Problem(file, 0, f"{message} (data.overlap: stop)") for file, message in findings]
    if problems:
        raise InputError("The data has problems:", capped(problems))
    warnings = [*_skipped_lines(train), *([] if names else _lonely_labels(train))]
    return TextFiles(splits, found, (*warnings, *(f"{file}: {message}" for file, message in findings)))


def _skipped_lines(train: TextFile) -> Iterator[str]:
    if train.problems:
        examples = "; ".join(str(problem) for problem in train.problems[:SHOWN_EXAMPLES])
        yield f"{train.path}: {len(train.problems)} bad lines left out (data.bad_samples: skip): {examples}"


def _lonely_labels(train: TextFile) -> Iterator[str]:
    """Labels that only one of many texts has: more likely a typing mistake than a class."""
    counts = Counter(row.label for row in train.rows)
    for row in train.rows:
        if counts[row.label] == 1 and len(train.rows) >= LONELY_AMONG * len(counts):
            way_out = "If it is no class, give data.labels."
            yield f"{train.where(row)}: only this text has the label {row.label!r}. {way_out}"


def _short(text: str) -> str:
    return text if len(text) <= EXCERPT_LENGTH else text[: EXCERPT_LENGTH - 1] + "…"


def _by_key(file: TextFile) -> dict[str, list[TextRow]]:
    rows: dict[str, list[TextRow]] = {}
    for row in file.rows:
        rows.setdefault(row.key, []).append(row)
    return rows


def _examples(items: Sequence[Sequence[str]]) -> str:
    shown = "; ".join(" = ".join(places) for places in items[:SHOWN_EXAMPLES])
    return f"{shown}; …" if len(items) > SHOWN_EXAMPLES else shown


def _repeats(file: TextFile) -> list[tuple[str, str]]:
    """What a file repeats, and where it contradicts itself: (file, sentence)."""
    groups = [rows for rows in _by_key(file).values() if len(rows) > 1]
    contradictions = [rows for rows in groups if len({row.label for row in rows}) > 1]

    def places(repeated: list[list[TextRow]]) -> str:
        return _examples([[file.where(row) for row in rows[:2]] for rows in repeated])

    findings = []
    if groups:
        count = sum(len(rows) - 1 for rows in groups)
        findings.append(f"{count} of {len(file.rows)} texts repeat an earlier one: {places(groups)}")
    if contradictions:
        findings.append(f"{len(contradictions)} texts stand with different labels: {places(contradictions)}")
    return [(file.path, finding) for finding in findings]


def _overlaps(splits: Mapping[str, TextFile]) -> list[tuple[str, str]]:
    """Texts that stand in two splits: (file, sentence) for every pair that has some."""
    keys = {name: _by_key(file) for name, file in splits.items()}
    findings = []
    names = list(splits)
    for position, name in enumerate(names):
        for earlier in names[:position]:
            shared = [key for key in keys[name] if key in keys[earlier]]
            if not shared:
                continue
            pairs = [
                (splits[name].where(keys[name][key][0]), splits[earlier].where(keys[earlier][key][0])) for key in shared
            ]
            message = (
                f"{len(shared)} of {len(keys[name])} different {name} texts also stand in {earlier}, "
                f"which makes the {name} figures better than they are: {_examples(pairs)}"
            )
            findings.append((splits[name].path, message))
    return findings


@final
class TextDataset(Dataset):
    """One split as integer arrays."""

    def __init__(
        self,
        file: TextFile,
        labels: Sequence[str],
        tokens: TokenRows,
        *,
        pad_id: int,
        max_length: int | None = None,
        mask_id: int = 0,
        token_dropout: float = 0.0,
    ) -> None:
        """Keep what training needs of the file.

        Args:
            file: the rows, in the order of the samples.
            labels: label names in the order of their ids.
            tokens: ids of every row.
            pad_id: id that fills up short rows.
            mask_id: id that stands in the place of dropped tokens.
            token_dropout: part of the tokens that are dropped from a sample, anew in every epoch; not the first and
                the last one.
        """
        ids = {label: index for index, label in enumerate(labels)}
        self.labels: npt.NDArray[np.int64] = np.array([ids[row.label] for row in file.rows], dtype=np.int64)
        """Label id of every sample, [samples]."""
        self._file = file.path
        self._lines = np.array([row.line for row in file.rows], dtype=np.int32)
        self._excerpts = tuple(_short(row.text) for row in file.rows)
        self._tokens = tokens
        self._pad_id = pad_id
        self._max_length = max_length
        self._mask_id = mask_id
        self._token_dropout = token_dropout

    def __len__(self) -> int:
        return len(self.labels)

    def sample(self, index: int, rng: np.random.Generator) -> Sample:
        """`input_ids` [length] and `label` [], int64. Which tokens are dropped is drawn from `rng`."""
        ids = self._tokens[index].astype(np.int64)
        if self._token_dropout > 0.0:
            ids[1:-1][rng.random(len(ids) - 2) < self._token_dropout] = self._mask_id
        return {"input_ids": ids, "label": self.labels[index]}

    def origin(self, index: int) -> SampleOrigin:
        """File, line and the first characters."""
        return SampleOrigin(self._file, int(self._lines[index]), self._excerpts[index])

    def lengths(self) -> npt.NDArray[np.int64]:
        """Ids of every sample, [samples]."""
        return self._tokens.lengths()

    def share_of(self, token_id: int) -> float:
        """Part of all tokens that are this one."""
        return float(np.mean(self._tokens.values == token_id))

    def digest(self) -> str:
        """Of the ids and the labels."""
        return digest({"labels": self.labels, "values": self._tokens.values, "offsets": self._tokens.offsets})

    def _padded(self, longest: int) -> int:
        """Rounded up to a multiple of 8, though not beyond the positions that the model has."""
        rounded = -(-longest // PAD_MULTIPLE) * PAD_MULTIPLE
        return rounded if self._max_length is None else max(longest, min(rounded, self._max_length))

    def collate(self, samples: Sequence[Sample]) -> dict[str, Array]:
        """Pad to the longest, rounded up to a multiple of 8.

        Returns:
            `input_ids` and `attention_mask` (1: a token, 0: padding) [samples, length], `label` [samples], int64.
        """
        longest = max(len(sample["input_ids"]) for sample in samples)
        shape = (len(samples), self._padded(longest))
        input_ids = np.full(shape, self._pad_id, dtype=np.int64)
        attention_mask = np.zeros(shape, dtype=np.int64)
        for row, sample in enumerate(samples):
            length = len(sample["input_ids"])
            input_ids[row, :length] = sample["input_ids"]
            attention_mask[row, :length] = 1
        label = np.array([sample["label"] for sample in samples], dtype=np.int64)
        return {"input_ids": input_ids, "attention_mask": attention_mask, "label": label}
