"""ERNIE classification: data, model, loss and metrics of one task."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import safetensors.numpy
import yaml
from pydantic import ValidationError
from sklearn.metrics import accuracy_score, f1_score, log_loss

from paddle_stable.data.dataset import Batch, Dataset, Splits
from paddle_stable.errors import InputError
from paddle_stable.recipe import Recipe, Section
from paddle_stable.tasks.ernie import (
    ErnieClassification,
    ErnieConfig,
    TextData,
    classification_scores,
    cross_entropy,
    sample_reviews,
)

CONFIGS = Path(__file__).parents[2] / "configs"
SIZES: dict[str, Any] = {
    "hidden_size": 8,
    "num_layers": 1,
    "num_heads": 2,
    "intermediate_size": 16,
    "max_position": 16,
}
RNG = np.random.default_rng(0)


def task_on(folder: Path, *, data: Mapping[str, Any] | None = None, **config: Any) -> ErnieClassification:
    """The task on its own sample data."""
    overrides = ErnieClassification.write_sample_data(folder)
    section = {key.removeprefix("data."): value for key, value in overrides.items()}
    sizes = {} if config.get("pretrained") else SIZES
    return ErnieClassification(
        ErnieConfig(target="paddle_stable.tasks.ernie.ErnieClassification", **{**sizes, **config}),
        TextData(**{**section, "max_length": 16, **(data or {})}),
        seed=1,
    )


def batch_of(dataset: Dataset, indices: Sequence[int]) -> Batch:
    arrays = dataset.collate([dataset.sample(index, RNG) for index in indices])
    return Batch({name: paddle.to_tensor(array) for name, array in arrays.items()}, tuple(indices))


def evaluated(task: ErnieClassification, model: paddle.nn.Layer, dataset: Dataset, size: int) -> dict[str, Any]:
    model.eval()
    batches = [range(begin, min(begin + size, len(dataset))) for begin in range(0, len(dataset), size)]
    parts = [task.outputs(model, batch_of(dataset, indices)) for indices in batches]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


# ---- the recipe's sections


def mistakes(**config: Any) -> list[tuple[str, str]]:
    with pytest.raises(ValidationError) as caught:
        ErnieConfig(target="x", **config)
    return [(str(error["loc"][0]), error["msg"]) for error in caught.value.errors()]


def test_every_missing_size_is_named_when_nothing_is_pretrained() -> None:
    found = mistakes(hidden_size=8)
    assert [key for key, _ in found] == ["num_layers", "num_heads", "intermediate_size", "max_position"]
    assert all("is needed when task.pretrained is null" in message for _, message in found)


def test_every_size_that_contradicts_a_pretrained_model_is_named() -> None:
    found = mistakes(pretrained="ernie-3.0-medium-zh", hidden_size=8, num_heads=2)
    assert [key for key, _ in found] == ["hidden_size", "num_heads"]
    assert all("comes with task.pretrained (ernie-3.0-medium-zh)" in message for _, message in found)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_heads", 3, "must divide task.hidden_size (8), got 3"),
        ("hidden_size", 0, "greater than 0"),
        ("dropout", 1.0, "less than 1"),
        ("attention_dropout", -0.1, "greater than or equal to 0"),
        ("initializer_range", 0.0, "greater than 0"),
        ("min_count", 0, "greater than 0"),
    ],
)
def test_a_size_that_cannot_be_is_named(key: str, value: float, message: str) -> None:
    ((found_key, found),) = mistakes(**{**SIZES, key: value})
    assert found_key == key
    assert message in found


@pytest.mark.parametrize("length", [0, 2])
def test_a_text_needs_room_for_more_than_its_frame(length: int) -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 3"):
        TextData(train="a", dev="b", max_length=length)


# ---- data


def test_splits_hold_the_texts_and_what_is_known_of_them(tmp_path: Path) -> None:
    splits = task_on(tmp_path).load_splits()
    assert splits.test is not None
    assert [len(split) for split in (splits.train, splits.dev, splits.test)] == [64, 32, 32]
    assert splits.warnings == ()
    assert splits.naive is not None
    assert (splits.naive.metric, splits.naive.words) == ("accuracy", "always 'negative'")
    assert splits.naive.value == 0.5
    facts = dict(splits.facts or {})
    assert facts["classes"] == 2.0
    assert facts["dev_majority_share"] == 0.5
    assert facts["dev_unknown_token_share"] == 0.0
    assert "test_ngram_accuracy" not in facts


def test_the_measured_baseline_is_among_the_facts(tmp_path: Path) -> None:
    task = task_on(tmp_path)
    (tmp_path / "baseline.json").write_text(json.dumps({"accuracy": 0.75}))
    assert (task.load_splits().facts or {})["test_ngram_accuracy"] == 0.75


def test_warnings_of_the_files_are_passed_on(tmp_path: Path) -> None:
    task = task_on(tmp_path)
    train = tmp_path / "train.txt"
    train.write_bytes(train.read_bytes() * 2)
    (warning,) = task.load_splits().warnings
    assert "64 of 128 texts repeat an earlier one" in warning


def test_everything_that_is_wrong_comes_at_once(tmp_path: Path) -> None:
    task = task_on(tmp_path, vocab=str(tmp_path / "none.txt"), data={"max_length": 17})
    (tmp_path / "dev.txt").write_text("没有\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        task.load_splits()
    assert [problem.message.split(":")[0] for problem in caught.value.problems] == [
        "expected text<TAB>label, found 0 tabs instead of 1.",
        "cannot read the vocabulary",
        "data.max_length",
    ]


def test_a_given_vocabulary_and_label_file_are_used(tmp_path: Path) -> None:
    first = task_on(tmp_path)
    first.load_splits()
    for name, content in first.assets().items():
        (tmp_path / f"saved_{name}").write_text(content, encoding="utf-8")
    second = task_on(
        tmp_path / "again", vocab=str(tmp_path / "saved_vocab.txt"), data={"labels": str(tmp_path / "saved_label.txt")}
    )
    second.load_splits()
    assert second.assets() == first.assets()
    assert first.assets()["label.txt"] == "negative\npositive\n"


# ---- the model


@pytest.fixture
def built(tmp_path: Path) -> tuple[ErnieClassification, Splits, paddle.nn.Layer]:
    task = task_on(tmp_path)
    splits = task.load_splits()
    paddle.seed(1)
    return task, splits, task.build_model()


def test_the_same_seed_builds_the_same_model(tmp_path: Path) -> None:
    task = task_on(tmp_path)
    task.load_splits()
    weights = []
    for seed in (1, 1, 2):
        paddle.seed(seed)
        weights.append({name: value.numpy() for name, value in task.build_model().state_dict().items()})
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not all(np.array_equal(weights[0][name], weights[2][name]) for name in weights[0])


def test_the_embedding_has_a_row_for_every_line_of_the_vocabulary(
    built: tuple[ErnieClassification, Splits, paddle.nn.Layer],
) -> None:
    task, _, model = built
    rows = task.assets()["vocab.txt"].count("\n")
    assert model.state_dict()["ernie.embeddings.word_embeddings.weight"].shape == [rows, 8]


def test_the_loss_is_the_mean_of_the_samples_losses(
    built: tuple[ErnieClassification, Splits, paddle.nn.Layer],
) -> None:
    task, splits, model = built
    model.eval()
    batch = batch_of(splits.train, range(16))
    loss = task.loss(model, batch)
    assert (loss.shape, loss.dtype) == ([], paddle.float32)
    assert float(loss) == pytest.approx(task.outputs(model, batch)["loss"].mean(), rel=1e-6)


def test_texts_as_long_as_the_model_has_positions_can_be_trained_on(tmp_path: Path) -> None:
    task = task_on(tmp_path, data={"max_length": 10}, max_position=10)
    splits = task.load_splits()
    batch = batch_of(splits.train, range(16))
    assert batch["input_ids"].shape == [16, 10]
    loss = task.loss(task.build_model(), batch)
    loss.backward()
    assert np.isfinite(float(loss))


def test_what_stands_in_the_padding_changes_nothing(
    built: tuple[ErnieClassification, Splits, paddle.nn.Layer],
) -> None:
    task, splits, model = built
    model.eval()
    batch = batch_of(splits.train, range(8))
    assert int(batch["attention_mask"].sum()) < batch["attention_mask"].size
    noise = paddle.where(batch["attention_mask"] == 1, batch["input_ids"], paddle.full_like(batch["input_ids"], 9))
    noisy = Batch({**batch.tensors, "input_ids": noise}, batch.indices)
    assert np.array_equal(task.outputs(model, noisy)["logits"], task.outputs(model, batch)["logits"])


def test_the_mask_is_the_one_that_paddlenlp_makes_from_the_padding_id(
    built: tuple[ErnieClassification, Splits, paddle.nn.Layer],
) -> None:
    task, splits, model = built
    model.eval()
    batch = batch_of(splits.train, range(8))
    assert np.array_equal(task.outputs(model, batch)["logits"], model(batch["input_ids"]).numpy())


def test_the_same_batches_give_the_same_outputs_bit_for_bit(
    built: tuple[ErnieClassification, Splits, paddle.nn.Layer],
) -> None:
    task, splits, model = built
    first, second = (evaluated(task, model, splits.dev, 8) for _ in range(2))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert {name: (array.shape, str(array.dtype)) for name, array in first.items()} == {
        "logits": ((32, 2), "float32"),
        "loss": ((32,), "float64"),
    }


def test_metrics_are_those_that_the_class_names(built: tuple[ErnieClassification, Splits, paddle.nn.Layer]) -> None:
    task, splits, model = built
    outputs = evaluated(task, model, splits.dev, 8)
    metrics = task.metrics(outputs, splits.dev)
    assert metrics.keys() == task.metric_names.keys()
    assert task.pictures(outputs, splits.dev, Path()) == {}
    assert metrics["loss"] == outputs["loss"].mean()


# ---- pretrained


def pretrained_directory(folder: Path, first: ErnieClassification, model: paddle.nn.Layer) -> Path:
    """What a person has who downloaded an encoder: config.json, vocab.txt and weights without a classifier."""
    folder.mkdir()
    sizes = {
        "model_type": "ernie",
        "vocab_size": model.state_dict()["ernie.embeddings.word_embeddings.weight"].shape[0],
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 16,
        "type_vocab_size": 2,
        "hidden_dropout_prob": 0.3,
        "attention_probs_dropout_prob": 0.3,
    }
    (folder / "config.json").write_text(json.dumps(sizes))
    (folder / "vocab.txt").write_text(first.assets()["vocab.txt"], encoding="utf-8")
    encoder = {
        name.removeprefix("ernie."): value.numpy()
        for name, value in model.state_dict().items()
        if name.startswith("ernie.")
    }
    safetensors.numpy.save_file(encoder, folder / "model.safetensors")
    return folder


def test_a_pretrained_directory_brings_sizes_vocabulary_and_encoder(
    tmp_path: Path, built: tuple[ErnieClassification, Splits, paddle.nn.Layer], caplog: pytest.LogCaptureFixture
) -> None:
    first, _, model = built
    folder = pretrained_directory(tmp_path / "ernie", first, model)
    second = task_on(tmp_path / "data", pretrained=str(folder), attention_dropout=0.0)
    second.load_splits()
    assert second.assets() == first.assets()
    paddle.seed(2)
    tuned = second.build_model()
    expected = {name: value.numpy() for name, value in model.state_dict().items() if name.startswith("ernie.")}
    loaded = tuned.state_dict()
    assert all(np.array_equal(loaded[name].numpy(), array) for name, array in expected.items())
    dropouts = {name: layer.p for name, layer in tuned.named_sublayers() if isinstance(layer, paddle.nn.Dropout)}
    assert dropouts["dropout"] == 0.3
    assert tuned.ernie.encoder.layers[0].self_attn.dropout == 0.0
    assert f"{folder}/model.safetensors: {len(expected)} parameters matched; 2 missing" in caplog.text


def test_a_vocabulary_larger_than_the_pretrained_embedding_is_an_input_error(
    tmp_path: Path, built: tuple[ErnieClassification, Splits, paddle.nn.Layer]
) -> None:
    folder = pretrained_directory(tmp_path / "ernie", built[0], built[2])
    with (folder / "vocab.txt").open("a", encoding="utf-8") as file:
        file.write("多\n")
    with pytest.raises(InputError, match="but the pretrained model has"):
        task_on(tmp_path / "data", pretrained=str(folder)).load_splits()


def test_a_pretrained_model_that_is_not_there_does_not_hide_bad_data(tmp_path: Path) -> None:
    task = task_on(tmp_path, pretrained="./none")
    (tmp_path / "dev.txt").write_text("没有\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        task.load_splits()
    assert [problem.file for problem in caught.value.problems] == ["./none", str(tmp_path / "dev.txt")]


# ---- metrics


def test_scores_and_loss_equal_scikit_learns() -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(200, 4)).astype(np.float32)
    labels = rng.integers(0, 3, size=200)  # the last class is never there
    scores = classification_scores(logits, labels)
    predicted = logits.argmax(axis=1)
    assert scores["accuracy"] == accuracy_score(labels, predicted)
    assert scores["macro_f1"] == pytest.approx(
        f1_score(labels, predicted, average="macro", labels=range(4), zero_division=0.0), rel=1e-12
    )
    shares = np.exp(logits.astype(np.float64)) / np.exp(logits.astype(np.float64)).sum(axis=1, keepdims=True)
    assert cross_entropy(logits, labels).mean() == pytest.approx(log_loss(labels, shares, labels=range(4)), rel=1e-9)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_the_loss_survives_large_logits(size: float) -> None:
    logits = np.array([[size, 0.0]], dtype=np.float32)
    assert cross_entropy(logits, np.array([0])).tolist() == [max(-size, 0.0)]


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("label", [0, 1])
def test_a_sample_with_a_nonfinite_logit_is_wrong_whatever_its_label(poison: float, label: int) -> None:
    logits = np.array([[poison, 0.0], [9.0, 0.0]], dtype=np.float32)
    assert classification_scores(logits, np.array([label, 0]))["accuracy"] == 0.5


# ---- sample data and recipes


def test_sample_reviews_are_all_different_and_balanced() -> None:
    splits = sample_reviews({"train": 64, "dev": 32, "test": 32})
    lines = [line for lines in splits.values() for line in lines]
    assert len(set(lines)) == len(lines) == 128
    for part in splits.values():
        assert sum(line.endswith("positive") for line in part) == len(part) // 2
        assert len({len(line) for line in part}) > 1


@pytest.mark.parametrize("name", ["ernie_cls.yaml", "ernie_cls_finetune.yaml"])
def test_a_recipe_spells_out_every_key_and_how_to_start_it(name: str) -> None:
    text = (CONFIGS / name).read_text(encoding="utf-8")
    recipe = yaml.safe_load(text)
    assert text.startswith("# yaml-language-server: $schema=recipe.schema.json\n")
    assert f"tools/train.py -c configs/{name}" in text
    assert "paddle.distributed.launch --nproc_per_node 2" in text
    assert "--resume auto" in text
    # Keys of a clip that the chosen kind does not use would be mistakes.
    kind_keys = {"clip": {"kind", "max_norm"}}
    models = {name: field.annotation for name, field in Recipe.model_fields.items()}
    for section, model in {**models, "task": ErnieConfig, "data": TextData}.items():
        assert section in recipe
        if isinstance(model, type) and issubclass(model, Section):
            assert recipe[section].keys() == kind_keys.get(section, model.model_fields.keys()), section


def test_the_fine_tune_recipe_is_ernie_3s() -> None:
    recipe = yaml.safe_load((CONFIGS / "ernie_cls_finetune.yaml").read_text(encoding="utf-8"))
    assert recipe["task"]["pretrained"] == "ernie-3.0-medium-zh"
    assert (recipe["optim"]["lr"], recipe["data"]["batch_size"], recipe["data"]["max_length"]) == (5.0e-5, 32, 128)
    assert (recipe["run"]["epochs"], recipe["clip"]["max_norm"]) == (3, 1.0)
    assert (recipe["schedule"]["kind"], recipe["schedule"]["warmup_ratio"]) == ("linear", 0.1)
