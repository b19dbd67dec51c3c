"""What is said about a recipe that does not fit its models: the key, what was expected, what was found, the way out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from paddle_stable.recipe_yaml import Entry, KeyPath, dotted, shown

ALIASES: Mapping[str, str] = {
    "learning_rate": "optim.lr",
    "max_grad_norm": "clip.max_norm",
    "clip_norm": "clip.max_norm",
    "batch_size_per_card": "data.batch_size",
    "per_device_train_batch_size": "data.batch_size",
    "num_workers": "data.workers",
    "num_train_epochs": "run.epochs",
    "epoch_num": "run.epochs",
    "max_steps": "run.steps",
    "gradient_accumulation_steps": "run.accumulate",
    "logging_steps": "run.log_every",
    "eval_steps": "run.eval_every",
    "save_steps": "run.save_every",
    "save_model_dir": "run.output_dir",
    "warmup_proportion": "schedule.warmup_ratio",
    "fp16": "amp.dtype",
    "bf16": "amp.dtype",
    "use_amp": "amp.dtype",
}
"""What the keys are called elsewhere (PaddleOCR, PaddleNLP, and the like), for "did you mean"."""

_EXPECTED: Mapping[str, str] = {
    "greater_than": "must be > {gt:.12g}",
    "greater_than_equal": "must be >= {ge:.12g}",
    "less_than": "must be < {lt:.12g}",
    "less_than_equal": "must be <= {le:.12g}",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "too_long": "must have at most {max_length} items",
    "too_short": "must have at least {min_length} items",
    "model_type": "must be a section with keys of its own",
    "dict_type": "must be a section with keys of its own",
}
"""By pydantic's type of error, filled in with its context."""


@final
@dataclass(frozen=True, slots=True)
class Issue:
    """One thing that is wrong, by key; the line is looked up later."""

    path: KeyPath
    message: str
    """Without the key."""


def known_keys(model: type[BaseModel], above: str = "") -> tuple[str, ...]:
    """Every dotted key that a recipe of this model can have; items of lists go without their number."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        key = f"{above}.{name}" if above else name
        keys.append(key)
        for section in _sections_in(field.annotation):
            keys.extend(known_keys(section, key))
    return tuple(dict.fromkeys(keys))


def _sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models in an annotation: in `Model`, `Model | None`, `tuple[Model, ...]`, `Annotated[Model, …]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections_in(argument)


def nearest_key(path: KeyPath, keys: Sequence[str]) -> str | None:
    """The valid key that was probably meant, or None.

    Looked for by its name in the same section, then under the names that other toolkits use and in all sections.
    """
    *parts, name = [str(part) for part in path if isinstance(part, str)]
    section = ".".join(parts)
    siblings = {key.rpartition(".")[2]: key for key in keys if key.rpartition(".")[0] == section}
    # Keys that come first in a recipe win where two sections have the same name.
    anywhere = {key.rpartition(".")[2]: key for key in reversed(keys)}
    foreign = {alias: key for alias, key in ALIASES.items() if key in keys}
    # A short name is near many: `type` to `dtype`.
    least = 0.75 if len(name) > 5 else 1.0
    close = _closest(name, siblings, 0.75) or _closest(name, {**foreign, **anywhere}, least)
    found = close or _closest(name, siblings, 0.6)
    if found in siblings.values() and found is not None:
        return dotted((*path[:-1], found.rpartition(".")[2]))
    return found


def _closest(name: str, candidates: Mapping[str, str], least: float) -> str | None:
    ratios = {word: SequenceMatcher(None, name.lower(), word).ratio() for word in candidates}
    best = max(ratios, key=ratios.__getitem__, default=None)
    return candidates[best] if best is not None and ratios[best] >= least else None


def issues_of(error: ValidationError, root: Entry, keys: Sequence[str]) -> list[Issue]:
    """Put pydantic's findings into the words of a recipe. `keys`: what `known_keys` says of the model."""
    found: dict[KeyPath, list[str]] = {}
    for detail in error.errors(include_url=False):
        path, message = _issue(detail, root, keys)
        if message not in found.setdefault(path, []):
            found[path].append(message)
    # Several findings at one key come from a field of several types: one of them has to fit.
    return [Issue(path, _joined(messages)) for path, messages in found.items()]


def _joined(messages: Sequence[str]) -> str:
    first, *others = messages
    if not others:
        return first
    expected = [message.partition(", got ")[0].removeprefix("must be ") for message in messages]
    return f"must be {' or '.join(expected)}{''.join(first.partition(', got ')[1:])}"


def entry_at(detail: ErrorDetails, root: Entry) -> tuple[Entry, KeyPath]:
    """The entry that one of pydantic's findings is about, and the path to it; of a missing key, the one above."""
    entry = root
    path: KeyPath = ()
    for part in detail["loc"]:
        below = entry.child(part)
        # Pydantic puts the name of a union's member in between: it is not a key of the recipe.
        if below is not None:
            entry, path = below, (*path, part)
    return entry, path


def _issue(detail: ErrorDetails, root: Entry, keys: Sequence[str]) -> tuple[KeyPath, str]:
    entry, path = entry_at(detail, root)
    kind = detail["type"]
    if kind == "missing":
        name = detail["loc"][-1]
        more = "" if isinstance(name, str) else f": the list must have at least {name + 1} items"
        return (*path, name), "missing" + more
    if kind == "extra_forbidden":
        return _unknown(entry, path, keys)
    if kind in ("value_error", "assertion_error"):
        return _own_words(detail, path, keys)
    return path, f"{_expected(detail)}, got {shown(entry)}{_way_out(detail, entry)}"


def _unknown(entry: Entry, path: KeyPath, keys: Sequence[str]) -> tuple[KeyPath, str]:
    # `-o optm.lr=1` is one key to the person who typed it, though it made a section.
    while entry.line == 0 and isinstance(entry.value, dict) and len(entry.value) == 1:
        (name, entry), *_ = entry.value.items()
        path = (*path, name)
    name = str(path[-1])
    if name in keys and "." in name:
        section, _, key = name.rpartition(".")
        return path, f"dotted keys are for the command line and the smoke section. Write `{key}:` below `{section}:`"
    near = nearest_key(path, keys)
    if near is not None:
        return path, f"unknown key. Did you mean {near}?"
    section = dotted([part for part in path[:-1] if isinstance(part, str)])
    siblings = [key.rpartition(".")[2] for key in keys if key.rpartition(".")[0] == section]
    return path, f"unknown key. Known here: {', '.join(siblings)}" if siblings else "unknown key"


def _own_words(detail: ErrorDetails, path: KeyPath, keys: Sequence[str]) -> tuple[KeyPath, str]:
    """A validator's own message. One that begins with a key of its section is about that key."""
    message = detail["msg"].partition(", ")[2]
    key, colon, rest = message.partition(": ")
    if colon and dotted([*(part for part in path if isinstance(part, str)), key]) in keys:
        return (*path, key), rest
    return path, message


def _expected(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    if detail["type"] in ("literal_error", "enum"):
        return f"must be one of {', '.join(_quoted(context['expected']))}"
    if detail["type"] in _EXPECTED:
        return _EXPECTED[detail["type"]].format(**context)
    # Rarer constraints that a task may use: pydantic's own words.
    return detail["msg"].replace("Input should", "must").replace("Value should", "must")


def _way_out(detail: ErrorDetails, entry: Entry) -> str:
    kind = detail["type"]
    if kind == "string_type" and entry.written and entry.value is not None:
        return ". Put it in quotes"
    if kind == "model_type" and entry.value is None:
        return ". Give it keys, or leave it out"
    if kind in ("literal_error", "enum") and isinstance(entry.value, str):
        near = _closest(entry.value, {word: word for word in _quoted(detail["ctx"]["expected"])}, 0.6)
        return f". Did you mean {near}?" if near else ""
    return ""


def _quoted(expected: str) -> list[str]:
    """`'a', 'b' or 'c'` → `["a", "b", "c"]`."""
    return re.findall(r"'([^']*)'", expected) or [expected]
