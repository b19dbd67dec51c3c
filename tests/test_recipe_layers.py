"""Layers over a recipe: `-o key=value`, the smoke section, values set by a program."""

from __future__ import annotations

from typing import Any

import pytest

from paddle_stable.errors import Problem
from paddle_stable.recipe_layers import apply_layer, parse_overrides, program_assignments, smoke_assignments
from paddle_stable.recipe_yaml import Entry, read_yaml

BASE = """\
run: {steps: 10}
optim:
  lr: 0.1
  groups: [{match: a, lr_scale: 2.0}, {match: b}]
clip: {max_norm: 1.0}
empty:
"""

UNCLOSED = "not valid YAML: expected ',' or ']', but got '<stream end>' (while parsing a flow sequence)"
REFUSED = "is not allowed: a recipe holds plain data only"


def base(text: str = BASE) -> Entry:
    root = read_yaml(text, "r.yaml", [])
    assert root is not None
    return root


def overridden(*overrides: str, text: str = BASE) -> tuple[Any, list[str]]:
    problems: list[Problem] = []
    root = base(text)
    apply_layer(root, parse_overrides(overrides, problems), problems)
    return root.plain(), [str(problem) for problem in problems]


def below(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("run.steps=20", "run.steps", 20),
        ("run.epochs=null", "run.epochs", None),
        ("run.epochs=", "run.epochs", None),
        ("run.output_dir=a=b=c", "run.output_dir", "a=b=c"),
        ("run.output_dir= x ", "run.output_dir", "x"),
        ("run . steps=3", "run.steps", 3),
        ("run.output_dir='5'", "run.output_dir", "5"),
        ("optim.lr=1e-6", "optim.lr", "1e-6"),
        ("optim.groups.0.lr_scale=0.5", "optim.groups.0.lr_scale", 0.5),
        ("optim.groups.1.freeze=true", "optim.groups.1.freeze", True),
        ("optim.groups.1={match: c}", "optim.groups.1", {"match": "c"}),
        ("optim.groups=[]", "optim.groups", []),
        ("faults=[{step: 50, kind: nan_loss}]", "faults", [{"step": 50, "kind": "nan_loss"}]),
        ("schedule.kind=cosine", "schedule", {"kind": "cosine"}),
        ("new.deep.key=1", "new.deep.key", 1),
        ("empty.key=1", "empty.key", 1),
        ("clip={kind: none}", "clip", {"kind": "none"}),
    ],
)
def test_an_override_sets_its_key(override: str, path: str, value: Any) -> None:
    found, problems = overridden(override)
    assert problems == []
    assert below(found, path) == value
    assert type(below(found, path)) is type(value)


def test_an_override_leaves_everything_else() -> None:
    found, _ = overridden("optim.groups.1.freeze=true")
    expected = base().plain()
    expected["optim"]["groups"][1]["freeze"] = True
    assert found == expected


def test_the_last_override_of_a_key_wins() -> None:
    assert below(overridden("run.steps=1", "run.steps=2", "run.steps=3")[0], "run.steps") == 3
    assert below(overridden("run.steps=1", "run={steps: 2}")[0], "run.steps") == 2
    assert below(overridden("run={steps: 2}", "run.steps=1")[0], "run.steps") == 1


def test_an_overridden_value_has_the_command_line_for_its_place() -> None:
    root = base()
    apply_layer(root, parse_overrides(["schedule.kind=cosine"], []), [])
    for path in [("schedule",), ("schedule", "kind")]:
        entry, found = root.nearest(path)
        assert (entry.file, entry.line, found) == ("command line", 0, path)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("foo", "-o foo: must be key=value with a dotted key, such as optim.lr=1e-3"),
        ("=5", "-o =5: must be key=value with a dotted key, such as optim.lr=1e-3"),
        ("", "-o : must be key=value with a dotted key, such as optim.lr=1e-3"),
        ("a..b=1", "-o a..b=1: must be key=value with a dotted key, such as optim.lr=1e-3"),
        (".a=1", "-o .a=1: must be key=value with a dotted key, such as optim.lr=1e-3"),
        ("run.steps=[1", f"run.steps: {UNCLOSED}"),
        ("run.steps=a: b: c", "run.steps: not valid YAML: mapping values are not allowed here"),
        ("run.steps=!!python/name:os.system", f"run.steps: the tag !!python/name:os.system {REFUSED}"),
        ("run.steps={a: 1, a: 2}", "run.steps.a: given twice. Keep one of them"),
        ("optim.groups.2.match=c", "optim.groups.2.match: there is no item 2: the list has 2, counted from 0"),
        ("optim.groups.2=c", "optim.groups.2: there is no item 2: the list has 2, counted from 0"),
        ("optim.groups.-1.match=c", "optim.groups.-1.match: there is no item -1: the list has 2, counted from 0"),
        ("optim.groups.x=c", "optim.groups.x: there is no item x: the list has 2, counted from 0"),
        ("optim.groups.²=c", "optim.groups.²: there is no item ²: the list has 2, counted from 0"),
        ("optim.lr.x=1", "optim.lr.x: optim.lr is 0.1, not a section, and has no keys"),
        ("optim.lr.x.y=1", "optim.lr.x.y: optim.lr is 0.1, not a section, and has no keys"),
    ],
)  # fmt: skip
def test_a_malformed_override_is_a_problem_and_changes_nothing_else(override: str, problem: str) -> None:
    found, problems = overridden(override, "run.seed=7")
    assert problems == [f"command line  {problem}"]
    assert below(found, "run.seed") == 7


def test_text_that_begins_like_an_alias_is_a_problem_that_says_quotes() -> None:
    for value in ("*", "*.bias", "&x"):
        problems = overridden(f"a.b={value}")[1]
        assert problems == [] if value == "&x" else "has to stand in quotes" in problems[0]


def test_smoke_takes_dotted_keys_and_nested_sections() -> None:
    root = base(BASE + "smoke:\n  run.steps: 1\n  optim: {lr: 0.2, groups.0.lr_scale: 3.0}\n  faults: []\n  new: {}\n")
    problems: list[Problem] = []
    assignments = smoke_assignments(root, problems)
    assert {".".join(each.path): each.entry.plain() for each in assignments} == {
        "run.steps": 1, "optim.lr": 0.2, "optim.groups.0.lr_scale": 3.0, "faults": [], "new": {},
    }  # fmt: skip
    assert [each.entry.line for each in assignments] == [8, 9, 9, 10, 11]
    assert problems == []


@pytest.mark.parametrize(
    ("key", "line"), [("a..b: 1", 8), ("smoke.run.steps: 1", 8), ("smoke: {run: 1}", 8), ("'': 1", 8)]
)
def test_a_smoke_key_that_is_none_is_a_problem(key: str, line: int) -> None:
    problems: list[Problem] = []
    assert smoke_assignments(base(BASE + f"smoke:\n  {key}\n"), problems) == []
    ((problem),) = problems
    assert (problem.file, problem.line) == ("r.yaml", line)
    assert problem.message.endswith("is not a key of a recipe")


def test_the_smoke_section_itself_stays_as_it_is() -> None:
    root = base(BASE + "smoke:\n  optim: {groups: [{match: s}]}\n")
    apply_layer(root, smoke_assignments(root, []), [])
    apply_layer(root, parse_overrides(["optim.groups.0.match=o"], []), [])
    assert below(root.plain(), "optim.groups.0.match") == "o"
    assert below(root.plain(), "smoke.optim.groups.0.match") == "s"


def test_a_program_sets_values_by_dotted_key() -> None:
    root = base()
    apply_layer(root, program_assignments({"run.steps": 3, "optim.groups.0.match": "z"}), [])
    assert below(root.plain(), "run.steps") == 3
    assert below(root.plain(), "optim.groups.0.match") == "z"


def test_another_kind_of_clip_makes_the_bound_below_it_void_and_says_so() -> None:
    root = base()
    notes = apply_layer(root, parse_overrides(["clip.kind=none"], []), [])
    assert below(root.plain(), "clip") == {"kind": "none"}
    assert notes == ("clip.max_norm (r.yaml:5) does not count: clip.kind none (command line) does not use it.",)


@pytest.mark.parametrize(
    "overrides",
    [
        ["clip.kind=none", "clip.max_norm=2.0"],
        ["clip.max_norm=2.0", "clip.kind=none"],
        ["clip.kind=norm"],
        ["run.seed=1"],
    ],
)
def test_a_bound_of_the_same_layer_or_of_the_same_use_stays(overrides: list[str]) -> None:
    root = base()
    assert apply_layer(root, parse_overrides(overrides, []), []) == ()
    assert "max_norm" in below(root.plain(), "clip")
