"""The shape of a recipe: entries against the pydantic models, and the keys that are right when others are wrong."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar, final

from pydantic import ConfigDict, ValidationError, create_model
from pydantic_core import ErrorDetails

from paddle_stable.recipe import DataConfig, Recipe, TaskConfig
from paddle_stable.recipe_words import Issue, entry_at, issues_of, known_keys
from paddle_stable.recipe_yaml import Entry

if TYPE_CHECKING:
    from paddle_stable.task import Task

# What YAML 1.2 and everybody's eyes read as a number, and YAML 1.1 (PyYAML) as text: 1e-6, 5e4, 1.5e3.
_EXPONENT = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+")


_Section = TypeVar("_Section", TaskConfig, DataConfig)


@final
class _AnyTask(TaskConfig):
    """The section of a task that is not known: what all tasks share is checked."""

    model_config = ConfigDict(extra="ignore")


@final
class _AnyData(DataConfig):
    """The data section of a task that is not known."""

    model_config = ConfigDict(extra="ignore")


@functools.cache
def recipe_model(task_class: type[Task]) -> type[Recipe]:
    """A recipe whose `task` and `data` are those of a task. The same class every time: recipes stay comparable."""
    return _with_sections(task_class.Config, task_class.Data)


@functools.cache
def _recipe_of_any_task() -> type[Recipe]:
    return _with_sections(_AnyTask, _AnyData)


def _with_sections(task: type[TaskConfig], data: type[DataConfig]) -> type[Recipe]:
    return create_model(Recipe.__name__, __base__=Recipe, __doc__=Recipe.__doc__, task=(task, ...), data=(data, ...))


def validate(root: Entry, task_class: type[Task] | None) -> tuple[Recipe | None, list[Issue]]:
    """Check every key by itself. Text such as `1e-6` becomes a number in `root` where a number is expected.

    Strict, and from JSON: `true` or "5" is no number, while a list is good for a tuple and text for an enum or a path.

    Args:
        root: the recipe's entries.
        task_class: None when it is not known; then only what all tasks share is checked of `task` and `data`.

    Returns:
        The recipe, or None with what is wrong.
    """
    model = _recipe_of_any_task() if task_class is None else recipe_model(task_class)
    while True:
        try:
            return model.model_validate_json(json.dumps(root.plain()), strict=True), []
        except ValidationError as error:
            # Every round turns at least one text into a number, so there are no more rounds than texts.
            if not _repair_numbers(error.errors(include_url=False), root):
                return None, issues_of(error, root, known_keys(model))


def _repair_numbers(details: Sequence[ErrorDetails], root: Entry) -> bool:
    repaired = False
    for detail in details:
        if detail["type"] not in ("float_type", "int_type"):
            continue
        entry, _ = entry_at(detail, root)
        value = entry.value
        # Quotes are a way to insist on text.
        if isinstance(value, str) and value == entry.written and _EXPONENT.fullmatch(value):
            value = float(value.replace("_", ""))
        if detail["type"] == "int_type" and isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is not entry.value:
            entry.value, repaired = value, True
    return repaired


def sound_part(root: Entry, issues: Sequence[Issue]) -> Recipe | None:
    """The sections that all recipes share, with defaults for the keys that are wrong; None when that is no recipe.

    So that checks of several keys can look at the right ones although others are wrong.
    """
    wrong = {issue.path[:2] for issue in issues}
    values = {}
    for name in Recipe.model_fields.keys() - {"task", "data", "smoke"}:
        value = root.child(name)
        if value is None or (name,) in wrong:
            continue
        if isinstance(value.value, dict):
            values[name] = {key: entry.plain() for key, entry in value.value.items() if (name, key) not in wrong}
        elif not any(path[0] == name for path in wrong if path):
            values[name] = value.plain()
    values["run"] = {"output_dir": "-", **values.get("run", {})}
    try:
        return Recipe.model_validate_json(json.dumps({**values, "task": {"target": "-"}, "data": {}}), strict=True)
    except ValidationError:
        return None


def section_of(root: Entry, name: str, kind: type[_Section]) -> _Section | None:
    """One section by itself, after `validate` has turned its numbers into such; None where it has mistakes."""
    entry = root.child(name)
    if entry is None:
        return None
    try:
        return kind.model_validate_json(json.dumps(entry.plain()), strict=True)
    except ValidationError:
        return None
