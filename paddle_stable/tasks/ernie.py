"""ERNIE text classification with PaddleNLP's model: sentiment, topics, intents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import numpy as np
import paddle
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from paddle_stable.data.dataset import Array, Batch, Dataset, Splits
from paddle_stable.data.text import TextDataset, TextFile, load_text_files
from paddle_stable.data.vocabulary import PAD, TextTokenizer, Vocabulary
from paddle_stable.recipe import DataConfig, TaskConfig
from paddle_stable.task import Task

Dropout = NonNegativeFloat


class ErnieConfig(TaskConfig):
    """The model: pretrained weights, or explicit sizes for training from scratch."""

    pretrained: str | None = None
    """PaddleNLP name (ernie-3.0-medium-zh), a directory with config.json and weights, or null: from scratch."""
    vocab: str | None = None
    """Vocabulary file, a token a line; null: the pretrained one, or built from the training text."""
    min_count: PositiveInt = 2
    """Vocabulary built from the training text: rarer characters become [UNK]."""
    hidden_size: PositiveInt | None = None
    num_layers: PositiveInt | None = None
    num_heads: PositiveInt | None = None
    intermediate_size: PositiveInt | None = None
    max_position: PositiveInt | None = None
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    attention_dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    initializer_range: PositiveFloat = 0.02


class TextData(DataConfig):
    """Labelled texts: `text<TAB>label`, or a TSV whose header names `label` and `text_a`."""

    train: str
    dev: str
    test: str | None = None
    labels: str | None = None
    overlap: Literal["warn", "stop"] = "warn"
    max_length: int = Field(default=128, ge=3)


@final
class ErnieClassification(Task):
    """One text, one label."""

    Config: ClassVar[type[TaskConfig]] = ErnieConfig
    Data: ClassVar[type[DataConfig]] = TextData
    model_kind: ClassVar[Literal["cnn", "rnn", "transformer", "detection"]] = "transformer"
    metric_names: ClassVar[Mapping[str, bool]] = {"accuracy": True, "macro_f1": True, "loss": False}

    def __init__(self, config: ErnieConfig, data: TextData, *, seed: int) -> None:
        """Keep the two sections."""
        self._config = config
        self._data = data
        self._vocabulary: Vocabulary | None = None
        self._labels: tuple[str, ...] = ()

    def load_splits(self) -> Splits:
        """Read, check and tokenise the texts."""
        data = self._data
        paths = {"train": data.train, "dev": data.dev, "test": data.test}
        files = load_text_files(
            {name: Path(path) for name, path in paths.items() if path is not None},
            labels=Path(data.labels) if data.labels else None,
            overlap=data.overlap,
            bad_samples=data.bad_samples,
            max_bad_samples=data.max_bad_samples,
        )
        if self._config.vocab:
            self._vocabulary = Vocabulary.from_file(Path(self._config.vocab))
        else:
            texts = (row.text for row in files.splits["train"].rows)
            self._vocabulary = Vocabulary.build(texts, min_count=self._config.min_count)
        self._labels = files.labels
        tokenizer = TextTokenizer(self._vocabulary)
        datasets = {name: self._dataset(file, tokenizer) for name, file in files.splits.items()}
        return Splits(datasets["train"], datasets["dev"], datasets.get("test"), files.warnings, {})

    def _dataset(self, file: TextFile, tokenizer: TextTokenizer) -> TextDataset:
        assert self._vocabulary is not None
        tokens = tokenizer.encode([row.text for row in file.rows], max_length=self._data.max_length)
        return TextDataset(file, self._labels, tokens, pad_id=self._vocabulary.ids[PAD])

    def build_model(self) -> paddle.nn.Layer:
        """A fresh `ErnieForSequenceClassification`."""
        from paddlenlp.transformers import ErnieConfig as ModelConfig
        from paddlenlp.transformers import ErnieForSequenceClassification

        config, vocabulary = self._config, self._vocabulary
        assert vocabulary is not None
        return ErnieForSequenceClassification(
            ModelConfig(
                vocab_size=vocabulary.size,
                hidden_size=config.hidden_size,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads,
                intermediate_size=config.intermediate_size,
                max_position_embeddings=config.max_position,
                hidden_dropout_prob=config.dropout,
                attention_probs_dropout_prob=config.attention_dropout,
                initializer_range=config.initializer_range,
                type_vocab_size=2,
                pad_token_id=vocabulary.ids[PAD],
                num_labels=len(self._labels),
            )
        )

    def loss(self, model: paddle.nn.Layer, batch: Batch) -> paddle.Tensor:
        """Mean cross-entropy of the batch."""
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"])
        return paddle.nn.functional.cross_entropy(logits.astype("float32"), batch["label"])

    def outputs(self, model: paddle.nn.Layer, batch: Batch) -> dict[str, Array]:
        """`logits` [samples, classes] float32 and `loss` [samples] float64."""
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).astype("float32").numpy()
        return {"logits": logits, "loss": cross_entropy(logits, batch["label"].numpy())}

    def metrics(self, outputs: Mapping[str, Array], dataset: Dataset) -> dict[str, float]:
        """Accuracy, macro-F1 and mean cross-entropy of a whole split."""
        assert isinstance(dataset, TextDataset)
        scores = classification_scores(outputs["logits"], dataset.labels)
        return {**scores, "loss": float(np.mean(outputs["loss"]))}

    def pictures(self, outputs: Mapping[str, Array], dataset: Dataset, folder: Path) -> dict[str, Path]:
        """None: the metrics say it all."""
        return {}

    def assets(self) -> Mapping[str, str]:
        """`vocab.txt` and `label.txt`."""
        assert self._vocabulary is not None
        return {"vocab.txt": self._vocabulary.text(), "label.txt": "\n".join(self._labels) + "\n"}

    @staticmethod
    def write_sample_data(folder: Path) -> dict[str, Any]:
        """128 made-up reviews whose label follows from the words in them."""
        folder.mkdir(parents=True, exist_ok=True)
        overrides: dict[str, Any] = {}
        for name, lines in sample_reviews({"train": 64, "dev": 32, "test": 32}).items():
            path = folder / f"{name}.txt"
            path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8"))
            overrides[f"data.{name}"] = str(path)
        return {**overrides, "data.labels": None}


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Cross-entropy of every sample in float64, [samples], from logits [samples, classes] and label ids [samples]."""
    scores = logits.astype(np.float64)
    highest = scores.max(axis=1, keepdims=True)
    normaliser = np.log(np.exp(scores - highest).sum(axis=1)) + highest[:, 0]
    return np.asarray(normaliser - scores[np.arange(len(labels)), labels])


def classification_scores(logits: Array, labels: Array) -> dict[str, float]:
    """Accuracy and macro-F1 (mean F1 over all classes, 0 for a class that is neither there nor predicted).

    A sample with a non-finite logit counts as wrong, whatever its label.
    """
    predicted = np.where(np.isfinite(logits).all(axis=1), logits.argmax(axis=1), -1)
    classes = np.arange(logits.shape[1])[:, None]
    is_label, is_predicted = labels == classes, predicted == classes
    hits = (is_label & is_predicted).sum(axis=1).astype(np.float64)
    f1 = 2.0 * hits / np.maximum(is_label.sum(axis=1) + is_predicted.sum(axis=1), 1)
    return {"accuracy": float(hits.sum() / len(labels)), "macro_f1": float(f1.mean())}


def sample_reviews(sizes: Mapping[str, int]) -> dict[str, list[str]]:
    """Made-up reviews in `text<TAB>label`, no two alike, half of them positive."""
    things = ("房间", "早餐", "服务", "位置", "价格", "电池", "屏幕", "内容", "装修", "物流", "包装", "键盘")
    words: dict[str, Sequence[str]] = {
        "positive": ("很好", "不错", "满意", "喜欢", "舒服", "值得"),
        "negative": ("很差", "失望", "后悔", "太吵", "难用", "不值"),
    }
    lines = [
        f"{thing}{words[label][index]}，{things[(place + index + 1) % 12]}{words[label][(index + shift) % 6]}"
        f"{'！' * (place % 4)}\t{label}"
        for shift in range(3)
        for place, thing in enumerate(things)
        for index in range(6)
        for label in words
    ]
    # 7 has no divisor in common with 432: every split gets every word.
    lines = [lines[(position * 7) % len(lines)] for position in range(len(lines))]
    splits, begin = {}, 0
    for name, size in sizes.items():
        splits[name] = lines[begin : begin + size]
        begin += size
    return splits
