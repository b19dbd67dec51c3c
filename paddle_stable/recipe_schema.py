"""The JSON Schema of a recipe, with which an editor completes keys and shows what they mean."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, models_json_schema

from paddle_stable.recipe import DataConfig, Recipe, TaskConfig

if TYPE_CHECKING:
    from paddle_stable.task import Task

_MODE: JsonSchemaMode = "validation"


@final
class _Untitled(GenerateJsonSchema):
    """Without a title for every field, which would only repeat its name."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def recipe_schema(tasks: Sequence[type[Task]]) -> dict[str, Any]:
    """Schema (draft 2020-12) of every recipe; the sections `task` and `data` follow `task.target`.

    A target that is not among `tasks` (one used with `--trust`) is checked only for what all tasks share.
    """
    ordered = sorted(tasks, key=_target)
    sections = [section for task in ordered for section in (task.Config, task.Data)]
    models = [(model, _MODE) for model in dict.fromkeys([Recipe, TaskConfig, DataConfig, *sections])]
    references, together = models_json_schema(models, title="Recipe of paddle_stable", schema_generator=_Untitled)
    definitions = together["$defs"]
    recipe = definitions.pop(references[Recipe, _MODE]["$ref"].rpartition("/")[2])
    for section in recipe["properties"].values():
        # Editors paste a default when they complete a key, and all keys of a section at once are rarely right.
        section.pop("default", None)
    for generic in (TaskConfig, DataConfig):
        # The strict form comes in with the task; here its own keys must not be forbidden.
        definitions[references[generic, _MODE]["$ref"].rpartition("/")[2]].pop("additionalProperties")
    if ordered:
        target = definitions[references[TaskConfig, _MODE]["$ref"].rpartition("/")[2]]["properties"]["target"]
        target["anyOf"] = [{"enum": [_target(task) for task in ordered]}, {"type": target.pop("type")}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **recipe,
        "title": together["title"],
        "allOf": [_branch(task, references) for task in ordered],
        "$defs": definitions,
    }


def _target(task: type[Task]) -> str:
    return f"{task.__module__}.{task.__qualname__}"


def _branch(task: type[Task], references: Any) -> dict[str, Any]:
    """`task.target` is this task's → `task`, `data` and the metrics are this task's."""
    is_this = {"properties": {"task": {"properties": {"target": {"const": _target(task)}}, "required": ["target"]}}}
    return {
        "if": {**is_this, "required": ["task"]},
        "then": {
            "properties": {
                "task": references[task.Config, _MODE],
                "data": references[task.Data, _MODE],
                "run": {"properties": {"best_metric": {"enum": list(task.metric_names)}}},
            }
        },
    }


def render_schema(tasks: Sequence[type[Task]]) -> str:
    """The schema as the text of `configs/recipe.schema.json`."""
    return json.dumps(recipe_schema(tasks), indent=2, ensure_ascii=False) + "\n"
