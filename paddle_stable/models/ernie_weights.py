"""Pretrained ERNIE weights: found by name or in a directory, read without running code, and matched by name."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import paddle

from paddle_stable.errors import InputError, Problem
from paddle_stable.models.weights import WeightReport, fill, listed, read_weights

CONFIG_FILES = ("config.json", "model_config.json")
WEIGHT_FILES = ("model.safetensors", "model_state.pdparams")
VOCABULARY_FILE = "vocab.txt"
ENCODER = "ernie."
"""Prefix of the encoder's parameters inside a classifier; a plain encoder's file lacks it."""

REQUIRED_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
OTHER_SIZES = ("intermediate_size", "max_position_embeddings", "type_vocab_size", "task_type_vocab_size")
OTHER_KEYS = (
    *("hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"),
    *("pad_token_id", "use_task_id", "task_id"),
)


@final
@dataclass(frozen=True)
class Pretrained:
    """A pretrained model on this machine."""

    source: str
    """As the recipe named it."""
    config: Mapping[str, Any]
    """Arguments of PaddleNLP's `ErnieConfig`."""
    weights: Path
    vocabulary: Path
    lowercase: bool = True


def find_pretrained(source: str) -> Pretrained:
    """Where the model is, and what it looks like.

    Args:
        source: a directory with config.json (or model_config.json), weights and vocab.txt; or the name of an ERNIE
            that PaddleNLP knows, cached in its home (`PPNLP_HOME`) or to be downloaded.

    Raises:
        InputError: when there is no such thing, or it cannot be had.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return _in_directory(source, folder)
    if folder.is_absolute() or source.startswith((".", "~")) or source.endswith("/"):
        raise InputError.single(source, f"task.pretrained: no such directory. {_directory_way()}")
    return _by_name(source)


def _directory_way() -> str:
    return (
        f"Give a directory that holds {' or '.join(CONFIG_FILES)}, {' or '.join(WEIGHT_FILES)}, and {VOCABULARY_FILE}."
    )


def _in_directory(source: str, folder: Path) -> Pretrained:
    problems: list[Problem] = []

    def first(names: Sequence[str]) -> Path:
        for name in names:
            if (folder / name).is_file():
                return folder / name
        found = listed(sorted(path.name for path in folder.iterdir())) or "nothing"
        problems.append(Problem(source, 0, f"task.pretrained: no {' or '.join(names)} in it; found {found}."))
        return folder

    config, weights, vocabulary = first(CONFIG_FILES), first(WEIGHT_FILES), first((VOCABULARY_FILE,))
    if problems:
        raise InputError("The pretrained model is not complete:", problems)
    settings = folder / "tokenizer_config.json"
    lowercase = _read_json(settings).get("do_lower_case", True) if settings.is_file() else True
    return Pretrained(source, read_config(config), weights, vocabulary, lowercase is not False)


def _by_name(name: str) -> Pretrained:
    """A name that PaddleNLP knows. Its own loader would unpickle the weights; here only its downloader is used."""
    from paddlenlp.transformers import ErnieForSequenceClassification, ErnieTokenizer
    from paddlenlp.utils.download import resolve_file_path
    from paddlenlp.utils.env import MODEL_HOME

    cached = Path(MODEL_HOME) / name
    if any((cached / file).is_file() for file in CONFIG_FILES) and (cached / VOCABULARY_FILE).is_file():
        return _in_directory(str(cached), cached)
    known = ErnieForSequenceClassification.pretrained_init_configuration
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3)
        hint = f"Did you mean {' or '.join(close)}? " if close else ""
        message = f"task.pretrained: neither a directory nor an ERNIE that PaddleNLP knows. {hint}{_directory_way()}"
        raise InputError.single(name, message)
    urls = (
        ErnieForSequenceClassification.pretrained_resource_files_map["model_state"][name],
        ErnieTokenizer.pretrained_resource_files_map["vocab_file"][name],
    )
    try:
        weights, vocabulary = (resolve_file_path(name, [url], cache_dir=MODEL_HOME) for url in urls)
    except OSError as error:
        message = (
            f"task.pretrained: not in PaddleNLP's cache ({cached}), and it cannot be downloaded from here. "
            f"{_directory_way()} Then set task.pretrained to that directory."
        )
        raise InputError.single(name, message) from error
    return Pretrained(name, dict(known[name]), Path(weights), Path(vocabulary))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError.single(str(path), f"cannot be read as JSON: {error}.") from error
    if not isinstance(content, dict):
        raise InputError.single(str(path), f"expected a JSON object, found a {type(content).__name__}.")
    return content


def read_config(path: Path) -> dict[str, Any]:
    """The keys of a config.json (or of PaddleNLP's older model_config.json) that shape an ERNIE.

    Raises:
        InputError: when it is not ERNIE's, or a size is missing or no positive integer.
    """
    raw = _read_json(path)
    # model_config.json: {"init_args": [{"vocab_size": …}, …], "init_class": "ErnieModel"}, possibly nested.
    flat: dict[str, Any] = {}
    pending = [raw]
    while pending:
        level = pending.pop()
        pending += [part for part in level.get("init_args", []) if isinstance(part, dict)]
        flat = {**level, **flat}
    problems = [
        Problem(str(path), 0, f"{key}: expected a positive integer, found {json.dumps(flat.get(key))}.")
        for key in (*REQUIRED_SIZES, *OTHER_SIZES)
        if (key in REQUIRED_SIZES or key in flat) and not _is_size(flat.get(key))
    ]
    kind = flat.get("model_type", "ernie")
    if kind != "ernie":
        problems.append(Problem(str(path), 0, f"model_type: expected ernie, found {json.dumps(kind)}."))
    if problems:
        raise InputError("The pretrained model's sizes cannot be used:", problems)
    return {key: flat[key] for key in (*REQUIRED_SIZES, *OTHER_SIZES, *OTHER_KEYS) if key in flat}


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def load_weights(model: paddle.nn.Layer, path: Path) -> WeightReport:
    """Put the weights in a file into an `ErnieForSequenceClassification`.

    The file may hold an encoder (`embeddings.…`), or any model around one (`ernie.embeddings.…`, `cls.…`). What is
    not of the encoder (the classifier) may be missing or of another shape: it stays as initialised.

    Raises:
        InputError: when the encoder does not match completely, or a weight is not finite.
    """
    stored = read_weights(path)
    if not any(name.startswith(ENCODER) for name in stored):
        stored = {ENCODER + name: array for name, array in stored.items()}
    report, problems = fill(model, stored, str(path))
    for words, names in (("not in the file", report.missing), ("of another shape", report.misshapen)):
        encoder = [name for name in names if name.startswith(ENCODER)]
        if encoder:
            problems.append(Problem(str(path), 0, f"{len(encoder)} encoder weights {words}: {listed(encoder)}."))
    if problems:
        raise InputError(f"These are not the weights of this model ({report}):", problems)
    return report
