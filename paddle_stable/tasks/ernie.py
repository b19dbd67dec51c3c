"""ERNIE text classification with PaddleNLP's model: sentiment, topics, intents."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, final

import numpy as np
import paddle
from pydantic import Field, PositiveFloat, PositiveInt, ValidationInfo, field_validator

from paddle_stable.data.dataset import Array, Batch, Dataset, NaiveAnswer, Splits
from paddle_stable.data.reviews import read_baseline
from paddle_stable.data.text import TextDataset, TextFile, TextFiles, load_text_files
from paddle_stable.data.vocabulary import MASK, PAD, UNK, TextTokenizer, Vocabulary
from paddle_stable.errors import InputError, Problem, attempt
from paddle_stable.models.ernie_weights import Pretrained, find_pretrained, load_weights
from paddle_stable.recipe import DataConfig, ModelKind, TaskConfig
from paddle_stable.task import Task

_log = logging.getLogger(__name__)
# Looked at by the validators when it is left out, too.
_Size = Annotated[PositiveInt | None, Field(validate_default=True)]


class ErnieConfig(TaskConfig):
    """The model: pretrained weights, or explicit sizes for training from scratch."""

    pretrained: str | None = None
    """PaddleNLP name such as ernie-3.0-medium-zh (cached or downloaded), a directory with config.json, weights
    (model.safetensors or model_state.pdparams) and vocab.txt, or null: from scratch with the sizes below."""
    vocab: str | None = None
    """Vocabulary file, a token a line. null: the pretrained model's, or one built from the training text."""
    min_count: PositiveInt = 2
    """Vocabulary built from the training text: rarer characters become [UNK]."""
    hidden_size: _Size = None
    """Width. Like all sizes: needed from scratch, null with `pretrained`, which brings its own."""
    num_layers: _Size = None
    """Transformer layers."""
    num_heads: _Size = None
    """Attention heads; `hidden_size` must be a multiple of it."""
    intermediate_size: _Size = None
    """Width between the two linear layers of a block; usually 4 x hidden_size."""
    max_position: _Size = None
    """Longest text in tokens that the model can take; at least data.max_length."""
    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """After embeddings, attention, every block, and before the classifier. null: as pretrained, or 0.1."""
    attention_dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """On attention weights; on a CPU the dearest one, since it covers length x length. null: as pretrained, or 0.1."""
    initializer_range: PositiveFloat = 0.02
    """Standard deviation of the weights that start at random."""

    @field_validator("hidden_size", "num_layers", "num_heads", "intermediate_size", "max_position")
    @classmethod
    def _sizes_belong_to_one(cls, value: int | None, info: ValidationInfo) -> int | None:
        pretrained = info.data.get("pretrained")
        if pretrained is None and value is None and "pretrained" in info.data:
            raise ValueError("is needed when task.pretrained is null: give the model's size, or name a pretrained one")
        if pretrained is not None and value is not None:
            raise ValueError(f"comes with task.pretrained ({pretrained}): must be null, got {value}")
        return value

    @field_validator("num_heads")
    @classmethod
    def _heads_divide_the_width(cls, value: int | None, info: ValidationInfo) -> int | None:
        width = info.data.get("hidden_size")
        if value and width and width % value:
            raise ValueError(f"must divide task.hidden_size ({width}), got {value}")
        return value


class TextData(DataConfig):
    """Labelled texts: `text<TAB>label` (PaddleNLP's local format), or a TSV whose header names label and text_a."""

    train: str
    """Training texts, UTF-8."""
    dev: str
    """Texts that choose the best checkpoint."""
    test: str | None = None
    """Texts that are looked at once, at the end; null: none."""
    labels: str | None = None
    """label.txt: a label a line, in the order of their ids. null: the labels of the training texts, sorted."""
    overlap: Literal["warn", "stop"] = "warn"
    """Texts in two splits, repeats and contradictory labels in the training texts: a warning, or an error."""
    max_length: int = Field(default=128, ge=3)
    """Tokens of a text with [CLS] and [SEP]; what is longer is cut. Time grows with it, memory with its square."""
    token_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Part of a training text's tokens that [MASK] takes the place of, anew in every epoch: against learning by heart
    where there are few texts. Word dropout, Iyyer et al. 2015 (Deep Unordered Composition)."""


@final
class ErnieClassification(Task):
    """One text, one label."""

    Config: ClassVar[type[TaskConfig]] = ErnieConfig
    Data: ClassVar[type[DataConfig]] = TextData
    model_kind: ClassVar[ModelKind] = "transformer"
    metric_names: ClassVar[Mapping[str, bool]] = {"accuracy": True, "macro_f1": True, "loss": False}

    def __init__(self, config: ErnieConfig, data: TextData, *, seed: int) -> None:
        """Keep the two sections. Nothing in the data is random, so `seed` is not needed."""
        self._config = config
        self._data = data
        self._pretrained: Pretrained | None = None
        self._vocabulary = Vocabulary(())
        self._labels: tuple[str, ...] = ()

    def load_splits(self) -> Splits:
        """Read, check and tokenise the texts; find the pretrained model and the vocabulary.

        Raises:
            InputError: with everything that is wrong with any of them.
        """
        problems: list[Problem] = []
        source = self._config.pretrained
        pretrained = attempt(problems, lambda: find_pretrained(source) if source else None)
        files = attempt(problems, self._read_files)
        vocabulary = attempt(problems, lambda: self._find_vocabulary(pretrained, files))
        positions = pretrained.config.get("max_position_embeddings") if pretrained else self._config.max_position
        if positions is not None and self._data.max_length > positions:
            message = f"must be at most the model's {positions} positions, got {self._data.max_length}."
            problems.append(Problem("the recipe", 0, f"data.max_length: {message}"))
        if pretrained and vocabulary and vocabulary.size > pretrained.config["vocab_size"]:
            message = f"{vocabulary.size} tokens, but the pretrained model has {pretrained.config['vocab_size']}."
            problems.append(Problem(self._config.vocab or str(pretrained.vocabulary), 0, message))
        if problems or files is None or vocabulary is None:
            raise InputError("The data or the pretrained model has problems:", problems)
        self._pretrained, self._vocabulary, self._labels = pretrained, vocabulary, files.labels
        tokenizer = TextTokenizer(vocabulary, lowercase=pretrained.lowercase if pretrained else True)
        datasets = {name: self._dataset(name, file, tokenizer) for name, file in files.splits.items()}
        share, majority = _majority(datasets["dev"])
        return Splits(
            train=datasets["train"],
            dev=datasets["dev"],
            test=datasets.get("test"),
            warnings=files.warnings,
            facts=self._facts(datasets, share),
            naive=NaiveAnswer("accuracy", share, f"always {files.labels[majority]!r}"),
        )

    def _read_files(self) -> TextFiles:
        data = self._data
        paths = {"train": data.train, "dev": data.dev, "test": data.test}
        return load_text_files(
            {name: Path(path) for name, path in paths.items() if path is not None},
            labels=Path(data.labels) if data.labels else None,
            overlap=data.overlap,
            bad_samples=data.bad_samples,
            max_bad_samples=data.max_bad_samples,
        )

    def _find_vocabulary(self, pretrained: Pretrained | None, files: TextFiles | None) -> Vocabulary | None:
        if self._config.vocab:
            return Vocabulary.from_file(Path(self._config.vocab))
        if self._config.pretrained:
            return Vocabulary.from_file(pretrained.vocabulary) if pretrained else None
        if files is None:
            return None
        return Vocabulary.build((row.text for row in files.splits["train"].rows), min_count=self._config.min_count)

    def _dataset(self, split: str, file: TextFile, tokenizer: TextTokenizer) -> TextDataset:
        ids = self._vocabulary.ids
        return TextDataset(
            file,
            self._labels,
            tokenizer.encode([row.text for row in file.rows], max_length=self._data.max_length),
            pad_id=ids[PAD],
            max_length=self._data.max_length,
            mask_id=ids[MASK],
            token_dropout=self._data.token_dropout if split == "train" else 0.0,
        )

    def _facts(self, datasets: Mapping[str, TextDataset], majority_share: float) -> dict[str, float | str]:
        unknown = self._vocabulary.ids[UNK]
        facts: dict[str, float | str] = {
            "classes": float(len(self._labels)),
            "vocabulary": float(self._vocabulary.size),
            "dev_majority_share": majority_share,
        }
        for name, dataset in datasets.items():
            facts[f"{name}_texts"] = float(len(dataset))
            facts[f"{name}_full_length_share"] = float(np.mean(dataset.lengths() == self._data.max_length))
            facts[f"{name}_unknown_token_share"] = dataset.share_of(unknown)
        baseline = read_baseline(Path(self._data.train).parent)
        if baseline is not None:
            facts["test_ngram_accuracy"] = baseline
        return facts

    def build_model(self) -> paddle.nn.Layer:
        """A fresh `ErnieForSequenceClassification`, with pretrained weights when the recipe names some.

        Raises:
            InputError: when the weights are not those of the model, or hold anything but arrays.
        """
        from paddlenlp.transformers import ErnieConfig as ModelConfig
        from paddlenlp.transformers import ErnieForSequenceClassification

        shared = {"pad_token_id": self._vocabulary.ids[PAD], "num_labels": len(self._labels)}
        model = ErnieForSequenceClassification(ModelConfig(**self._sizes(), **shared))
        if self._pretrained is not None:
            report = load_weights(model, self._pretrained.weights)
            # A classifier that starts afresh is the rule, but worth seeing: hence a warning, which is always shown.
            _log.log(logging.WARNING if report.missing or report.misshapen else logging.INFO, "%s", report)
        return model

    def _sizes(self) -> dict[str, Any]:
        """Arguments of PaddleNLP's `ErnieConfig`, apart from those that follow from the data."""
        config = self._config
        dropouts = {
            "hidden_dropout_prob": config.dropout,
            "attention_probs_dropout_prob": config.attention_dropout,
        }
        chosen = {name: value for name, value in dropouts.items() if value is not None}
        if self._pretrained is not None:
            return {name: value for name, value in self._pretrained.config.items() if name != "pad_token_id"} | chosen
        return {
            "vocab_size": self._vocabulary.size,
            "hidden_size": config.hidden_size,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "intermediate_size": config.intermediate_size,
            "max_position_embeddings": config.max_position,
            "initializer_range": config.initializer_range,
            "type_vocab_size": 2,
            **chosen,
        }

    def loss(self, model: paddle.nn.Layer, batch: Batch) -> paddle.Tensor:
        """Mean cross-entropy of the batch's samples, float32 []."""
        return paddle.nn.functional.cross_entropy(_logits(model, batch), batch["label"])

    def outputs(self, model: paddle.nn.Layer, batch: Batch) -> dict[str, Array]:
        """`logits` [samples, classes] float32 and `loss` [samples] float64."""
        logits = _logits(model, batch).numpy()
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
        return {"vocab.txt": self._vocabulary.text(), "label.txt": "\n".join(self._labels) + "\n"}

    @staticmethod
    def write_sample_data(folder: Path) -> dict[str, Any]:
        """128 made-up reviews whose label follows from the words in them."""
        folder.mkdir(parents=True, exist_ok=True)
        overrides: dict[str, Any] = {"data.labels": None}
        for name, lines in sample_reviews({"train": 64, "dev": 32, "test": 32}).items():
            path = folder / f"{name}.txt"
            path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8"))
            overrides[f"data.{name}"] = str(path)
        return overrides


def _logits(model: paddle.nn.Layer, batch: Batch) -> paddle.Tensor:
    """Logits [samples, classes] in float32, also under half precision."""
    return model(batch["input_ids"], attention_mask=batch["attention_mask"]).astype("float32")


def _majority(dataset: TextDataset) -> tuple[float, int]:
    """Share and id of the most frequent label."""
    counts = np.bincount(dataset.labels)
    return float(counts.max() / counts.sum()), int(counts.argmax())


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
