"""Every key by itself: numbers are numbers, text is text, and nothing turns into anything else in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paddle_stable.recipe import Recipe
from paddle_stable.recipe_validate import recipe_model, sound_part, validate
from paddle_stable.recipe_words import Issue
from paddle_stable.recipe_yaml import Entry, dotted, from_python, read_yaml
from tests.recipe_sample import RECIPE, SampleConfig, SampleTask, replaced

KINDS = "global_norm, norm, value, adaptive, layers, none"


def entries(text: str) -> Entry:
    root = read_yaml(text, "r.yaml", [])
    assert root is not None
    return root


def changed(key: str, value: str) -> Entry:
    """The sample recipe with one key set to a piece of YAML."""
    root = entries(RECIPE)
    *above, name = key.split(".")
    if above and root.child(above[0]) is None:
        root = entries(RECIPE + f"{above[0]}: {{}}\n")
    section, _ = root.nearest(above)
    new = read_yaml(value, "r.yaml", [])
    assert isinstance(section.value, dict)
    assert new is not None
    section.value[name] = new
    return root


def messages(root: Entry, task: type[SampleTask] | None = SampleTask) -> list[str]:
    return [f"{dotted(issue.path)}: {issue.message}" for issue in validate(root, task)[1]]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("optim.lr", "1e-6", 1e-6), ("optim.lr", "1E-6", 1e-6), ("optim.lr", "5e4", 5e4), ("optim.lr", "1.5e3", 1.5e3),
        ("optim.lr", "+1e-6", 1e-6), ("optim.lr", ".5e-3", 5e-4), ("optim.lr", "1_0e-3", 1e-2), ("optim.lr", "1", 1.0),
        ("optim.betas", "[9e-1, 0.99]", (0.9, 0.99)), ("task.scale", "1e-3", 1e-3), ("task.scale", "null", None),
        ("task.mixed", "1e-3", 1e-3), ("task.mixed", "3", 3), ("task.mixed", "3.5", 3.5),
        ("run.steps", "1e3", 1000), ("run.steps", "100.0", 100), ("task.names", "{a: 1e2}", {"a": 100}),
        ("task.label", "1e-6", "1e-6"), ("task.label", "2024-01-01", "2024-01-01"), ("task.label", "'5'", "5"),
        ("task.folder", "a/b", Path("a/b")), ("smoke", "{optim.lr: 1e-6}", {"optim.lr": "1e-6"}),
        ("run.deterministic", "yes", True),
    ],
)  # fmt: skip
def test_a_value_becomes_what_its_key_expects(key: str, text: str, value: Any) -> None:
    recipe, issues = validate(changed(key, text), SampleTask)
    assert issues == []
    found: Any = recipe
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("run.seed", "true", "must be a whole number, got true"),
        ("run.seed", "'5'", "must be a whole number, got '5'"),
        ("run.seed", "010", "must be a whole number, got '010'"),
        ("run.seed", "1:30", "must be a whole number, got '1:30'"),
        ("run.seed", "-1", "must be >= 0, got -1"),
        ("run.seed", "null", "must be a whole number, got null"),
        ("run.steps", "3.5", "must be a whole number, got 3.5"),
        ("run.steps", "1e-3", "must be a whole number, got 1e-3"),
        ("run.steps", "0", "must be > 0, got 0"),
        ("run.steps", "[1]", "must be a whole number, got a list of 1"),
        ("optim.lr", "abc", "must be a number, got 'abc'"),
        ("optim.lr", "true", "must be a number, got true"),
        ("optim.lr", "no", "must be a number, got no, which YAML reads as false"),
        ("optim.lr", "'0.1'", "must be a number, got '0.1'"),
        ("optim.lr", "'1e-6'", "must be a number, got '1e-6'"),
        ("optim.lr", ".nan", "must be a finite number, got .nan"),
        ("optim.lr", ".inf", "must be a finite number, got .inf"),
        ("optim.lr", "1e999", "must be a finite number, got 1e999"),
        ("optim.lr", "-0.5", "must be > 0, got -0.5"),
        ("optim.lr", "{a: 1}", "must be a number, got a section"),
        ("optim.betas", "0.9", "must be a list, got 0.9"),
        ("optim.betas", "[0.9, 0.9, 0.9]", "must have at most 2 items, got a list of 3"),
        ("amp.max_scale", "0", "must be > 0, got 0"),
        ("run.deterministic", "1", "must be true or false, got 1"),
        ("run.deterministic", "'true'", "must be true or false, got 'true'"),
        ("run.output_dir", "5", "must be text, got 5. Put it in quotes"),
        ("run.output_dir", "no", "must be text, got no, which YAML reads as false. Put it in quotes"),
        ("run.output_dir", "null", "must be text, got null"),
        ("clip.kind", "globl_norm", f"must be one of {KINDS}, got 'globl_norm'. Did you mean global_norm?"),
        ("clip.kind", "5", f"must be one of {KINDS}, got 5"),
        ("task.activation", "tanh", "must be one of relu, gelu, got 'tanh'"),
        ("task.mixed", "abc", "must be a whole number or a number, got 'abc'"),
        ("task.layers", "{a: 1}", "must be a list, got a section"),
        ("task.names", "[]", "must be a section with keys of its own, got a list of 0"),
        ("optim", "~", "must be a section with keys of its own, got null. Give it keys, or leave it out"),
        ("optim", "[]", "must be a section with keys of its own, got a list of 0"),
        ("faults", "{step: 1}", "must be a list, got a section"),
        ("smoke", "5", "must be a section with keys of its own, got 5"),
    ],
)  # fmt: skip
def test_nothing_is_turned_into_something_else_in_silence(key: str, text: str, message: str) -> None:
    root = changed(key, text)
    assert messages(root) == [f"{key}: {message}"]


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("optim.betas", "[0.9]", ["optim.betas.1: missing: the list must have at least 2 items"]),
        ("optim.betas", "[0.9, x]", ["optim.betas.1: must be a number, got 'x'"]),
        ("optim.betas", "[1.0, -1]", ["optim.betas.0: must be < 1, got 1.0", "optim.betas.1: must be >= 0, got -1"]),
        ("optim.groups", "[5]", ["optim.groups.0: must be a section with keys of its own, got 5"]),
        (
            "optim.groups",
            "[{lr_scal: 1}]",
            [
                "optim.groups.0.match: missing",
                "optim.groups.0.lr_scal: unknown key. Did you mean optim.groups.0.lr_scale?",
            ],
        ),
        (
            "faults",
            "[{step: 1, kind: nan_loss, x: 1}]",
            ["faults.0.x: unknown key. Known here: step, kind, steps, rank, parameter, row, tensor"],
        ),
        ("task.layers", "[{width: 1}, {width: 0}]", ["task.layers.1.width: must be > 0, got 0"]),
        (
            "task.names",
            "{a: x, b: 2, c: 2.5}",
            ["task.names.a: must be a whole number, got 'x'", "task.names.c: must be a whole number, got 2.5"],
        ),
        ("task.heads", "3", ["task.heads: must divide width (16), got 3"]),
        ("data.trian", "x", ["data.trian: unknown key. Did you mean data.train?"]),
    ],
)
def test_a_mistake_inside_a_list_or_a_task_has_its_own_key(key: str, text: str, expected: list[str]) -> None:
    assert messages(changed(key, text)) == expected


def test_a_dotted_key_in_the_file_is_explained() -> None:
    assert messages(entries(RECIPE + "optim.eps: 1.0\n")) == [
        "optim.eps: dotted keys are for the command line and the smoke section. Write `eps:` below `optim:`"
    ]


def test_an_unknown_section_and_key_have_their_nearest() -> None:
    text = replaced("optim:", "optm:", replaced("  max_norm", "  maxnorm"))
    assert sorted(messages(entries(text))) == [
        "clip.maxnorm: unknown key. Did you mean clip.max_norm?",
        "optm: unknown key. Did you mean optim?",
    ]


def test_missing_sections_and_keys_are_named() -> None:
    assert messages(from_python({"run": {"steps": 1}, "task": {"target": "x"}}, "p")) == [
        "run.output_dir: missing",
        "data: missing",
    ]


def test_a_task_that_is_not_known_leaves_its_own_keys_unchecked() -> None:
    text = replaced("  width: 16", "  anything: [1, 2]", replaced("  batch_size: 8", "  batch_size: -8"))
    assert messages(entries(text), None) == ["data.batch_size: must be > 0, got -8"]


def test_the_task_and_data_sections_are_the_tasks_own() -> None:
    recipe, _ = validate(entries(RECIPE), SampleTask)
    assert isinstance(recipe, Recipe)
    assert isinstance(recipe.task, SampleConfig)
    assert recipe_model(SampleTask) is recipe_model(SampleTask)
    assert recipe == validate(entries(RECIPE), SampleTask)[0]


def test_the_sound_part_keeps_what_is_right_and_takes_defaults_for_the_rest() -> None:
    root = entries(RECIPE)
    issues = [
        Issue(("optim", "lr"), ""),
        Issue(("faults", 0, "step"), ""),
        Issue(("clip",), ""),
        Issue(("task", "x"), ""),
    ]
    recipe = sound_part(root, issues)
    assert recipe is not None
    default = Recipe.model_validate({"run": {"output_dir": "-"}, "task": {"target": "-"}, "data": {}})
    assert (recipe.run.steps, recipe.optim.betas) == (100, (0.9, 0.99))
    assert (recipe.optim.lr, recipe.clip, recipe.faults) == (default.optim.lr, default.clip, default.faults)


def test_there_is_a_sound_part_where_nothing_is_right() -> None:
    root = from_python({"run": 5, "optim": [], "clip": {"kind": 7}}, "p")
    recipe = sound_part(root, validate(root, None)[1])
    assert recipe is not None
    assert recipe.clip.kind == "global_norm"
