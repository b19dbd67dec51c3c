"""Pretrained weights: every one accounted for, no network where none is asked for, and a way out when there is none."""

from __future__ import annotations

import json
import os
import pickle
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import safetensors.numpy

from paddle_stable.data.dataset import Array
from paddle_stable.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from paddle_stable.errors import InputError
from paddle_stable.models.ernie_weights import find_pretrained, load_weights, read_config
from paddle_stable.models.weights import read_weights

SIZES = {
    "vocab_size": 40,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 12,
    "type_vocab_size": 4,
    "task_type_vocab_size": 3,
    "use_task_id": True,
}


def classifier(**changes: Any) -> paddle.nn.Layer:
    from paddlenlp.transformers import ErnieConfig, ErnieForSequenceClassification

    return ErnieForSequenceClassification(ErnieConfig(**{**SIZES, "num_labels": 3, **changes}))


def arrays_of(model: paddle.nn.Layer) -> dict[str, Array]:
    return {name: value.numpy() for name, value in model.state_dict().items()}


def random_weights(seed: int = 1, **changes: Any) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(size=array.shape).astype(np.float32)
        for name, array in arrays_of(classifier(**changes)).items()
    }


def encoder_of(weights: Mapping[str, Array]) -> dict[str, Array]:
    """As a plain `ErnieModel` would have saved them."""
    return {name.removeprefix("ernie."): array for name, array in weights.items() if name.startswith("ernie.")}


def save(weights: Mapping[str, Any], path: Path) -> Path:
    if path.suffix == ".pdparams":
        path.write_bytes(pickle.dumps(dict(weights), protocol=4))
    else:
        safetensors.numpy.save_file(dict(weights), path)
    return path


FILES = pytest.mark.parametrize("name", ["model.safetensors", "model_state.pdparams"])


@FILES
def test_a_classifiers_weights_arrive_bit_for_bit(tmp_path: Path, name: str) -> None:
    weights, model = random_weights(), classifier()
    report = load_weights(model, save(weights, tmp_path / name))
    assert set(report.matched) == set(weights)
    assert (report.missing, report.misshapen, report.unused) == ((), (), ())
    loaded = arrays_of(model)
    assert all(np.array_equal(loaded[name], array) for name, array in weights.items())


@FILES
def test_a_plain_encoders_weights_arrive_in_the_classifiers_encoder(tmp_path: Path, name: str) -> None:
    weights, model = random_weights(), classifier()
    head = {name: array for name, array in arrays_of(model).items() if name.startswith("classifier.")}
    report = load_weights(model, save(encoder_of(weights), tmp_path / name))
    assert report.missing == ("classifier.weight", "classifier.bias")
    assert len(report.matched) == len(weights) - 2
    loaded = arrays_of(model)
    assert all(np.array_equal(loaded[name], {**weights, **head}[name]) for name in loaded)


def test_what_paddlenlp_saves_gives_the_same_logits(tmp_path: Path) -> None:
    original = classifier()
    original.eval()
    paddle.save(original.state_dict(), str(tmp_path / "model_state.pdparams"))
    copy = classifier()
    copy.eval()
    load_weights(copy, tmp_path / "model_state.pdparams")
    ids = paddle.to_tensor([[1, 5, 6, 7, 2, 0, 0, 0]])
    assert np.array_equal(copy(ids).numpy(), original(ids).numpy())


def test_a_pretraining_models_head_is_unused_and_named(tmp_path: Path) -> None:
    weights = {**random_weights(), "cls.predictions.decoder_bias": np.zeros(40, dtype=np.float32)}
    del weights["classifier.weight"], weights["classifier.bias"]
    report = load_weights(classifier(), save(weights, tmp_path / "model.safetensors"))
    assert report.unused == ("cls.predictions.decoder_bias",)
    assert str(report) == (
        f"{tmp_path}/model.safetensors: {len(weights) - 1} parameters matched; "
        "2 missing, left as initialised: classifier.weight, classifier.bias; 1 unused: cls.predictions.decoder_bias"
    )


def test_a_classifier_for_other_labels_starts_afresh(tmp_path: Path) -> None:
    model = classifier()
    before = arrays_of(model)
    report = load_weights(model, save(random_weights(num_labels=5), tmp_path / "model.safetensors"))
    assert report.misshapen == (
        "classifier.weight (expected [8, 3], found [8, 5])",
        "classifier.bias (expected [3], found [5])",
    )
    assert np.array_equal(arrays_of(model)["classifier.weight"], before["classifier.weight"])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("ernie.pooler.dense.weight", None, "1 encoder weights not in the file: ernie.pooler.dense.weight"),
        (
            "ernie.pooler.dense.weight",
            np.zeros((8, 9), np.float32),
            r"1 encoder weights of another shape: ernie.pooler.dense.weight \(expected \[8, 8\], found \[8, 9\]\)",
        ),
        ("ernie.pooler.dense.bias", np.full(8, np.nan, np.float32), "expected finite numbers, found NaN or inf"),
        ("ernie.pooler.dense.bias", np.full(8, np.inf, np.float64), "expected finite numbers, found NaN or inf"),
        ("classifier.bias", np.full(3, np.nan, np.float32), "classifier.bias: expected finite numbers"),
        ("ernie.pooler.dense.bias", np.zeros(8, np.int64), "expected finite numbers, found int64"),
    ],
)
def test_an_encoder_that_does_not_match_completely_is_refused(
    tmp_path: Path, name: str, change: Array | None, message: str
) -> None:
    weights = random_weights()
    if change is None:
        del weights[name]
    else:
        weights[name] = change
    with pytest.raises(InputError, match=message):
        load_weights(classifier(), save(weights, tmp_path / "model.safetensors"))


def test_weights_of_something_else_are_refused_with_the_names(tmp_path: Path) -> None:
    path = save({"encoder.layer.0.output.dense.weight": np.zeros((8, 8), np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="0 parameters matched"):
        load_weights(classifier(), path)


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_other_precisions_become_float32(tmp_path: Path, kind: type) -> None:
    weights, model = random_weights(), classifier()
    load_weights(model, save({k: v.astype(kind) for k, v in weights.items()}, tmp_path / "model.safetensors"))
    for name, array in arrays_of(model).items():
        assert array.dtype == np.float32
        assert np.array_equal(array, weights[name].astype(kind).astype(np.float32))


def test_bfloat16_as_paddle_writes_it_becomes_float32(tmp_path: Path) -> None:
    weights, model = random_weights(), classifier()
    halves = {name: (array.view(np.uint32) >> 16).astype(np.uint16) for name, array in weights.items()}
    load_weights(model, save(halves, tmp_path / "model_state.pdparams"))
    for name, array in arrays_of(model).items():
        assert np.allclose(array, weights[name], rtol=1 / 128)


@pytest.mark.parametrize("content", [b"", b"\x80", b"x" * 100])
def test_damaged_safetensors_are_an_input_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as safetensors"):
        read_weights(path)


def test_a_pdparams_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Poison:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    path = save({**random_weights(), "ernie.poison": Poison()}, tmp_path / "model_state.pdparams")
    with pytest.raises(InputError, match=r"refused: it names (posix|os)\.mkdir"):
        load_weights(classifier(), path)
    assert not (tmp_path / "ran").exists()


# ---- where the model is


def directory(folder: Path, **files: Any) -> Path:
    """A complete directory; a file given as None is left out."""
    vocabulary = Vocabulary((*SPECIAL_TOKENS, *(chr(0x4E00 + index) for index in range(30))))
    contents = {
        "config.json": json.dumps({**SIZES, "model_type": "ernie", "architectures": ["ErnieModel"]}),
        "vocab.txt": vocabulary.text(),
        "model.safetensors": "weights",
        **{name.replace("__", "."): content for name, content in files.items()},
    }
    folder.mkdir()
    for name, content in contents.items():
        if content is not None:
            (folder / name).write_text(content)
    return folder


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.usefixtures("no_network")
def test_a_directory_is_found_without_network(tmp_path: Path) -> None:
    folder = directory(tmp_path / "ernie")
    found = find_pretrained(str(folder))
    assert (found.weights, found.vocabulary) == (folder / "model.safetensors", folder / "vocab.txt")
    assert found.config == SIZES
    assert found.lowercase


def test_safetensors_come_before_pdparams(tmp_path: Path) -> None:
    folder = directory(tmp_path / "ernie", model_state__pdparams="weights")
    assert find_pretrained(str(folder)).weights.name == "model.safetensors"
    (folder / "model.safetensors").unlink()
    assert find_pretrained(str(folder)).weights.name == "model_state.pdparams"


def test_the_tokenizers_settings_are_heeded(tmp_path: Path) -> None:
    folder = directory(tmp_path / "ernie", tokenizer_config__json='{"do_lower_case": false}')
    assert not find_pretrained(str(folder)).lowercase


def test_everything_that_a_directory_lacks_is_named_at_once(tmp_path: Path) -> None:
    folder = directory(tmp_path / "ernie", config__json=None, model__safetensors=None)
    with pytest.raises(InputError) as caught:
        find_pretrained(str(folder))
    assert [problem.message for problem in caught.value.problems] == [
        "task.pretrained: no config.json or model_config.json in it; found vocab.txt.",
        "task.pretrained: no model.safetensors or model_state.pdparams in it; found vocab.txt.",
    ]


@pytest.mark.parametrize("source", ["./none", "/none/at/all", "../none", "none/"])
@pytest.mark.usefixtures("no_network")
def test_a_directory_that_is_not_there_is_no_name_to_download(source: str) -> None:
    with pytest.raises(InputError, match="no such directory"):
        find_pretrained(source)


@pytest.mark.usefixtures("no_network")
def test_an_unknown_name_gets_a_suggestion_and_the_directory_way() -> None:
    with pytest.raises(InputError) as caught:
        find_pretrained("ernie-3.0-medum-zh")
    assert "Did you mean ernie-3.0-medium-zh" in str(caught.value)
    assert "Give a directory that holds config.json" in str(caught.value)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PaddleNLP's home, empty."""
    from paddlenlp.utils import env

    home = tmp_path / "models"
    home.mkdir()
    monkeypatch.setattr(env, "MODEL_HOME", str(home))
    return home


def test_no_network_and_no_cache_is_a_sentence_that_names_the_directory_way(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # the discard port: nobody listens
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError) as caught:
        find_pretrained("ernie-3.0-medium-zh")
    message = str(caught.value)
    assert f"not in PaddleNLP's cache ({cache}/ernie-3.0-medium-zh)" in message
    assert "Give a directory that holds config.json" in message
    assert len(caught.value.problems) == 1


@pytest.mark.usefixtures("no_network")
def test_a_cached_name_needs_no_network(cache: Path) -> None:
    folder = cache / "ernie-3.0-medium-zh"
    folder.mkdir()
    (folder / "model_state.pdparams").touch()
    (folder / "ernie_3.0_medium_zh_vocab.txt").touch()
    found = find_pretrained("ernie-3.0-medium-zh")
    assert found.weights == folder / "model_state.pdparams"
    assert found.vocabulary == folder / "ernie_3.0_medium_zh_vocab.txt"
    # The embedding has more rows than the vocabulary has lines.
    assert found.config["vocab_size"] == 40000
    assert found.config["use_task_id"] is True


@pytest.mark.usefixtures("no_network")
def test_a_directory_in_the_cache_is_as_good_as_any(cache: Path) -> None:
    directory(cache / "my-own-ernie")
    assert find_pretrained("my-own-ernie").config == SIZES


# ---- config.json


def config(folder: Path, content: Any) -> Path:
    path = folder / "config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    "content",
    [
        SIZES,
        {**SIZES, "model_type": "ernie", "architectures": ["ErnieModel"], "unheard_of": 1},
        {"init_args": [{**SIZES, "init_class": "ErnieModel"}], "init_class": "ErnieForSequenceClassification"},
        {"init_args": [{"init_args": [SIZES], "init_class": "ErnieModel"}, 2], "num_classes": 2},
    ],
)
def test_both_generations_of_config_are_read(tmp_path: Path, content: Any) -> None:
    assert read_config(config(tmp_path, content)) == SIZES


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        ({**SIZES, "hidden_size": 0}, ["hidden_size: expected a positive integer, found 0."]),
        ({**SIZES, "hidden_size": "8"}, ['hidden_size: expected a positive integer, found "8".']),
        ({**SIZES, "hidden_size": True}, ["hidden_size: expected a positive integer, found true."]),
        (
            {key: size for key, size in SIZES.items() if key not in ("vocab_size", "num_attention_heads")},
            [f"{key}: expected a positive integer, found null." for key in ("vocab_size", "num_attention_heads")],
        ),
        ({**SIZES, "model_type": "bert"}, ['model_type: expected ernie, found "bert".']),
        ([], ["expected a JSON object, found a list."]),
    ],
)
def test_every_size_that_cannot_be_used_is_named(tmp_path: Path, content: Any, messages: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        read_config(config(tmp_path, content))
    assert [problem.message for problem in caught.value.problems] == messages


@pytest.mark.parametrize("content", ["", "{", "\xff"])
def test_a_config_that_is_no_json_is_an_input_error(tmp_path: Path, content: str) -> None:
    with pytest.raises(InputError, match="cannot be read as JSON"):
        read_config(config(tmp_path, content))
