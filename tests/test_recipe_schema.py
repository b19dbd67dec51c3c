"""The JSON Schema that editors use says the same as the models, and the one in `configs/` is current."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import create_model

from paddle_stable.recipe import Recipe, TaskConfig
from paddle_stable.recipe_schema import recipe_schema, render_schema
from paddle_stable.recipe_target import built_in_tasks
from tests.recipe_sample import TARGET, SampleTask

ROOT = Path(__file__).resolve().parents[1]
SCHEMA_FILE = ROOT / "configs" / "recipe.schema.json"


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return recipe_schema([SampleTask])


def resolved(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Follow a reference into `$defs`."""
    name = part["$ref"].removeprefix("#/$defs/")
    found = schema["$defs"][name]
    assert isinstance(found, dict)
    return found


def test_the_file_is_current() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == render_schema(built_in_tasks()), "run: python tools/schema.py"


def test_the_tool_writes_it(tmp_path: Path) -> None:
    output = tmp_path / "schema.json"
    subprocess.run([sys.executable, ROOT / "tools" / "schema.py", "-o", output], check=True, capture_output=True)
    assert output.read_text(encoding="utf-8") == render_schema(built_in_tasks())


def test_every_recipe_points_its_editor_at_the_schema() -> None:
    recipes = sorted((ROOT / "configs").glob("*.yaml"))
    assert recipes
    lines = {path.name: path.read_text(encoding="utf-8").splitlines()[0] for path in recipes}
    assert lines == dict.fromkeys(lines, f"# yaml-language-server: $schema={SCHEMA_FILE.name}")


def test_every_section_is_offered_and_no_other(schema: dict[str, Any]) -> None:
    assert list(schema["properties"]) == list(Recipe.model_fields)
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["run", "task", "data"]


def test_the_sections_of_a_task_follow_its_target(schema: dict[str, Any]) -> None:
    (branch,) = schema["allOf"]
    assert branch["if"]["properties"]["task"]["properties"]["target"] == {"const": TARGET}
    then = branch["then"]["properties"]
    task, data = resolved(schema, then["task"]), resolved(schema, then["data"])
    assert task["additionalProperties"] is data["additionalProperties"] is False
    assert set(task["properties"]) == set(SampleTask.Config.model_fields)
    assert set(data["properties"]) == set(SampleTask.Data.model_fields)
    assert then["run"]["properties"]["best_metric"] == {"enum": ["accuracy", "loss"]}


def test_a_task_that_is_not_known_may_have_keys_of_its_own(schema: dict[str, Any]) -> None:
    for section in ("task", "data"):
        assert "additionalProperties" not in resolved(schema, schema["properties"][section])


def test_known_targets_are_offered_and_others_allowed(schema: dict[str, Any]) -> None:
    target = resolved(schema, schema["properties"]["task"])["properties"]["target"]
    assert target["anyOf"] == [{"enum": [TARGET]}, {"type": "string"}]


def test_fields_carry_their_documentation_and_limits(schema: dict[str, Any]) -> None:
    lr = resolved(schema, schema["properties"]["optim"])["properties"]["lr"]
    assert lr == {
        "default": 0.001,
        "description": "Peak learning rate, reached after warm-up.",
        "exclusiveMinimum": 0.0,
        "type": "number",
    }


def test_the_smoke_section_takes_any_key(schema: dict[str, Any]) -> None:
    assert schema["properties"]["smoke"]["additionalProperties"] is True


def test_no_section_is_pasted_with_all_its_defaults(schema: dict[str, Any]) -> None:
    assert [name for name, part in schema["properties"].items() if "default" in part] == []


def test_two_tasks_with_sections_of_the_same_name_stay_apart() -> None:
    tasks = []
    for name in ("first", "second"):
        module = f"made_up_{name}"
        config = create_model("Config", __base__=TaskConfig, __module__=module, **{name: (int, 1)})
        tasks.append(type(f"{name}Task", (SampleTask,), {"Config": config, "__module__": module}))
    schema = recipe_schema(tasks)
    sections = [resolved(schema, branch["then"]["properties"]["task"]) for branch in schema["allOf"]]
    assert [set(section["properties"]) for section in sections] == [{"target", "first"}, {"target", "second"}]


def test_the_order_of_tasks_does_not_matter() -> None:
    tasks = built_in_tasks()
    assert render_schema(tasks) == render_schema(tasks[::-1])


def test_every_key_of_every_recipe_is_offered() -> None:
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    branches = {
        branch["if"]["properties"]["task"]["properties"]["target"]["const"]: branch["then"]["properties"]
        for branch in schema["allOf"]
    }
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
        own = branches[recipe["task"]["target"]]
        for name in recipe.keys() - {"smoke", "faults"}:
            part = own[name] if name in ("task", "data") else schema["properties"][name]
            assert recipe[name].keys() <= resolved(schema, part)["properties"].keys(), f"{path.name}: {name}"
