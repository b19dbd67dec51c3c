"""A recipe is read as it stands, or everything that is wrong with it is said at once."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from paddle_stable.errors import InputError
from paddle_stable.recipe_io import LoadedRecipe, load_recipe, locate
from tests.recipe_sample import RECIPE, SampleConfig, SampleData, SampleTask, line_of, replaced, write_recipe

ROOT = Path(__file__).resolve().parents[1]


def load(folder: Path, text: str = RECIPE, overrides: Sequence[str] = (), **options: Any) -> LoadedRecipe:
    return load_recipe(write_recipe(folder, text), overrides, trust=options.pop("trust", True), **options)


def failure(folder: Path, text: str = RECIPE, overrides: Sequence[str] = (), **options: Any) -> str:
    """The whole error, with the file's path as FILE."""
    with pytest.raises(InputError) as caught:
        load(folder, text, overrides, **options)
    return str(caught.value).replace(str(folder / "recipe.yaml"), "FILE")


def problems(folder: Path, text: str = RECIPE, overrides: Sequence[str] = (), **options: Any) -> list[str]:
    return [line.strip() for line in failure(folder, text, overrides, **options).splitlines()[1:]]


# Loading


def test_a_recipe_is_loaded_with_the_sections_of_its_task(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    recipe = loaded.recipe
    assert loaded.task_class is SampleTask
    assert loaded.path == str(tmp_path / "recipe.yaml")
    assert isinstance(recipe.task, SampleConfig)
    assert isinstance(recipe.data, SampleData)
    assert (recipe.optim.lr, recipe.optim.betas, recipe.optim.groups[1].freeze) == (1e-3, (0.9, 0.99), True)
    assert recipe.faults[0].kind == "nan_loss"


@pytest.mark.parametrize(
    ("overrides", "options"),
    [
        ([], {}),
        ([], {"smoke": True}),
        (["clip={kind: value, max_value: 2.0}", "task.label=1e-6", "task.folder=a b/ü"], {}),
        (["clip.kind=none", "run.steps=null", "run.epochs=3", "faults=[]", "optim.lr=1e-7"], {}),
        (
            ["run.output_dir='1:30'", "task.label='yes'", "task.names={a: 1}", "task.layers=[{width: 3, name: '010'}]"],
            {},
        ),
        (["task.label='😀 \\t\"#: x'", "amp.max_scale=1e20"], {"set_values": {"task.scale": 1e-300}}),
    ],
)
def test_the_recorded_text_loads_again_as_the_same_recipe(
    tmp_path: Path, overrides: list[str], options: dict[str, Any]
) -> None:
    first = load(tmp_path, RECIPE, overrides, **options)
    second = load(tmp_path, first.text)
    assert second.recipe == first.recipe.model_copy(update={"smoke": {}})
    assert second.text == first.text


def test_the_recorded_text_holds_the_defaults_too(tmp_path: Path) -> None:
    recorded = yaml.safe_load(load(tmp_path).text)
    assert recorded["stability"]["guard"] is True
    assert recorded["task"]["heads"] == 4
    assert recorded["clip"] == {"kind": "global_norm", "max_norm": 1.0, "schedule": []}


def test_the_recipe_cannot_be_changed(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    with pytest.raises(AttributeError):
        loaded.recipe = None  # type: ignore[misc, assignment]


def test_anchors_serve_several_keys(tmp_path: Path) -> None:
    text = replaced("batch_size: 8", "batch_size: &size 24\n  eval_batch_size: *size")
    assert load(tmp_path, text).recipe.data.eval_batch_size == 24


# Layers


@pytest.mark.parametrize(
    ("smoke", "set_values", "overrides", "steps"),
    [
        (False, {}, [], 100),
        (True, {}, [], 4),
        (True, {"run.steps": 30}, [], 30),
        (True, {"run.steps": 30}, ["run.steps=20"], 20),
        (False, {"run.steps": 30}, ["run.steps=20", "run.steps=25"], 25),
    ],
)
def test_a_later_layer_wins(
    tmp_path: Path, smoke: bool, set_values: Mapping[str, Any], overrides: list[str], steps: int
) -> None:
    assert load(tmp_path, RECIPE, overrides, smoke=smoke, set_values=set_values).recipe.run.steps == steps


def test_smoke_reaches_nested_sections_and_items_of_lists(tmp_path: Path) -> None:
    recipe = load(tmp_path, smoke=True).recipe
    assert recipe.schedule.warmup_steps == 2
    assert recipe.schedule.kind == "cosine"
    assert recipe.optim.groups[0].lr_scale == 1.0


def test_smoke_without_such_a_section_is_a_mistake(tmp_path: Path) -> None:
    assert failure(tmp_path, RECIPE.partition("smoke:")[0], smoke=True) == (
        "FILE has 1 problem:\n  FILE  smoke: there is no such section, and --smoke asks for it"
    )


def test_a_mistake_in_the_smoke_section_is_found_without_smoke(tmp_path: Path) -> None:
    text = replaced(
        "  run.steps: 4",
        "  run.stps: 4\n  optim.lr: -1\n  task.target: 5\n  optim.groups.2.match: x\n  schedule.warmup_ratio: 0.1",
    )
    line = line_of(text, "run.stps")
    assert problems(tmp_path, text) == [
        f"FILE:{line}  smoke: run.stps: unknown key. Did you mean run.steps?",
        f"FILE:{line + 1}  smoke: optim.lr: must be > 0, got -1",
        f"FILE:{line + 2}  smoke: task.target: must be text, got 5. Put it in quotes",
        f"FILE:{line + 3}  smoke: optim.groups.2.match: there is no item 2: the list has 2, counted from 0",
    ]


def test_what_only_a_smoke_run_would_mind_does_not_stop_a_real_one(tmp_path: Path) -> None:
    text = replaced("    warmup_steps: 2\n", "    kind: constant\n")
    assert load(tmp_path, text).recipe.schedule.warmup_steps == 10
    assert problems(tmp_path, text, smoke=True) == [
        f"FILE:{line_of(text, 'warmup_steps')}  schedule.warmup_steps: 10 is more than run.steps (4)"
    ]


def test_a_mistake_outside_the_smoke_section_is_reported_once(tmp_path: Path) -> None:
    assert len(problems(tmp_path, replaced("lr: 1e-3", "lr: -1"))) == 1


def test_the_clip_can_be_switched_off_from_the_command_line(tmp_path: Path) -> None:
    loaded = load(tmp_path, RECIPE, ["clip.kind=none"])
    assert loaded.recipe.clip.kind == "none"
    line = line_of(RECIPE, "max_norm")
    assert loaded.advice[0] == (
        f"clip.max_norm ({loaded.path}:{line}) does not count: clip.kind none (command line) does not use it."
    )
    assert "95th percentile" in loaded.advice[1]


# Mistakes


def test_all_mistakes_come_at_once_with_their_lines(tmp_path: Path) -> None:
    text = RECIPE
    for old, new in [
        ("lr: 1e-3", "leraning_rate: 1e-3"),
        ("warmup_steps: 10", "warmup_steps: 5000"),
        ("  max_norm: 1.0", "  max_norm: -1.0"),
        ("best_metric: accuracy", "best_metric: acuracy"),
        ("batch_size: 8", "batch_size: 8\n  batch_size: 9"),
        ("width: 16", "width: 17"),
    ]:
        text = replaced(old, new, text)
    text += "amp: {dtype: float16}\nrnu:\n"
    assert failure(tmp_path, text, ["run.seed=true", "oops", "optm.lr=1"]) == "\n  ".join(
        [
            "FILE has 11 problems:",
            f"FILE:{line_of(text, 'best_metric')}  run.best_metric: must be a metric of this task (accuracy, loss), "
            "got 'acuracy'. Did you mean accuracy?",
            f"FILE:{line_of(text, 'task:')}  task.heads: must divide width (17), got 4",
            f"FILE:{line_of(text, 'batch_size: 9')}  data.batch_size: given twice, "
            f"first on line {line_of(text, 'batch_size: 8')}. Keep one of them",
            f"FILE:{line_of(text, 'leraning_rate')}  optim.leraning_rate: unknown key. Did you mean optim.lr?",
            f"FILE:{line_of(text, 'warmup_steps: 5000')}  schedule.warmup_steps: 5000 is more than run.steps (100)",
            f"FILE:{line_of(text, 'max_norm')}  clip.max_norm: must be > 0, got -1.0",
            f"FILE:{line_of(text, 'amp')}  amp.dtype: float16 needs a GPU (compute capability 7.0 or higher) "
            "or an NPU; this machine has neither. Use float32, or amp.emulate: true to rehearse fp16 on the CPU.",
            f"FILE:{line_of(text, 'rnu')}  rnu: unknown key. Did you mean run?",
            "command line  -o oops: must be key=value with a dotted key, such as optim.lr=1e-3",
            "command line  optm.lr: unknown key. Did you mean optim.lr?",
            "command line  run.seed: must be a whole number, got true",
        ]
    )


def test_mistakes_of_the_command_line_alone_are_called_so(tmp_path: Path) -> None:
    assert failure(tmp_path, RECIPE, ["optim.lr=0"]) == (
        "The command line has 1 problem:\n  command line  optim.lr: must be > 0, got 0"
    )


def test_a_mistake_of_the_program_is_called_the_recipes(tmp_path: Path) -> None:
    assert failure(tmp_path, set_values={"optim.lr": "1e-6"}) == (
        "FILE has 1 problem:\n  set by the program  optim.lr: must be a number, got '1e-6'"
    )


def test_a_wrong_target_does_not_hide_the_other_mistakes(tmp_path: Path) -> None:
    text = replaced("lr: 1e-3", "lr: 0", replaced("steps: 100\n", "steps: 100\n  epochs: 2\n"))
    text = replaced("batch_size: 8", "batch_size: 0", text)
    lines = [line_of(text, start) for start in ("steps", "target", "batch_size", "lr: 0")]
    found = problems(tmp_path, text, trust=False)
    assert [line.partition("  ")[0] for line in found] == [f"FILE:{line}" for line in lines]
    assert "Pass --trust" in found[1]


@pytest.mark.parametrize(("wrong", "value"), [("run.steps", "x"), ("schedule.warmup_steps", "x"), ("schedule", "5")])
def test_a_check_of_two_keys_is_silent_when_one_is_wrong_in_itself(tmp_path: Path, wrong: str, value: str) -> None:
    text = replaced("warmup_steps: 10", "warmup_steps: 5000")
    ((problem),) = problems(tmp_path, text, [f"{wrong}={value}"])
    assert problem.startswith(f"command line  {wrong}: must be ")


def test_a_missing_section_or_key_points_at_the_section_that_lacks_it(tmp_path: Path) -> None:
    text = replaced(
        "  output_dir: runs/sample\n", "", replaced("data:\n  train: data/train.txt\n  batch_size: 8\n", "")
    )
    text = replaced("match: head.*, ", "", text)
    assert problems(tmp_path, text) == [
        "FILE  data: missing",
        f"FILE:{line_of(text, 'run:')}  run.output_dir: missing",
        f"FILE:{line_of(text, '- {freeze')}  optim.groups.1.match: missing",
    ]


def test_a_section_that_only_overrides_have_made_is_not_blamed_on_the_command_line(tmp_path: Path) -> None:
    text = RECIPE.replace("run:\n  output_dir: runs/sample\n  steps: 100\n  best_metric: accuracy\n", "")
    assert problems(tmp_path, text, ["run.steps=30", "run.best_metric=loss"]) == ["FILE  run.output_dir: missing"]


def test_a_value_refused_while_reading_is_reported_once(tmp_path: Path) -> None:
    text = replaced("lr: 1e-3", "lr: !!python/name:os.system")
    assert problems(tmp_path, text) == [
        f"FILE:{line_of(text, 'lr: !!')}  optim.lr: the tag !!python/name:os.system is not allowed: "
        "a recipe holds plain data only"
    ]


@pytest.mark.parametrize("text", ["", "- a\n", "a: [", "a: 1\n---\nb: 1\n", "run:\n\tsteps: 1\n"])
def test_a_file_that_is_no_recipe_is_one_problem_and_the_command_line_another(tmp_path: Path, text: str) -> None:
    found = problems(tmp_path, text, ["oops"])
    assert len(found) == 2
    assert found[0].startswith("FILE")
    assert found[1].startswith("command line")


def test_a_missing_file_is_a_problem() -> None:
    with pytest.raises(InputError) as caught:
        load_recipe("no/such/recipe.yaml")
    assert str(caught.value) == ("no/such/recipe.yaml has 1 problem:\n  no/such/recipe.yaml  there is no such file")


# Places


def test_a_key_is_located_where_it_was_written(tmp_path: Path) -> None:
    loaded = load(tmp_path, RECIPE, ["optim.eps=1e-6"], set_values={"run.seed": 3})
    path = loaded.path
    assert locate(loaded, "run.steps") == (path, line_of(RECIPE, "steps"))
    assert locate(loaded, "optim.groups.1.freeze") == (path, line_of(RECIPE, "- {match: head"))
    assert locate(loaded, "run.accumulate") == (path, line_of(RECIPE, "run:"))
    assert locate(loaded, "amp.dtype") == (path, 0)
    assert locate(loaded, "optim.eps") == ("command line", 0)
    assert locate(loaded, "run.seed") == ("set by the program", 0)


# Robustness


JUNK = [
    "true", "-1", "'x'", "[1, 2]", "{a: b}", "~", "1e-6", "*x", "&x", "!!int y", ": :", "\t", "\0", "%", "@", "`", "|",
    '"', "'", "<<: 5", "- ", "日本", "\ud7ff", "\x85", "9" * 30, ".nan", "---", "...", "? x",
    "[" * 40, "\ufeff", "!!set {a}",
]  # fmt: skip


def corrupted(rng: random.Random) -> str:
    """The sample recipe with a few lines or characters damaged."""
    lines = RECIPE.splitlines()
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(lines))
        match rng.choice(["delete", "double", "indent", "dedent", "value", "key", "insert", "cut", "swap"]):
            case "delete" if len(lines) > 1:
                del lines[at]
            case "double":
                lines.insert(at, lines[at])
            case "indent":
                lines[at] = " " * rng.randint(1, 5) + lines[at]
            case "dedent":
                lines[at] = lines[at].lstrip()
            case "value":
                lines[at] = f"{lines[at].partition(':')[0]}: {rng.choice(JUNK)}"
            case "key":
                lines[at] = f"  {rng.choice(JUNK)}: {lines[at].partition(':')[2]}"
            case "insert":
                column = rng.randint(0, len(lines[at]))
                lines[at] = lines[at][:column] + rng.choice(JUNK) + lines[at][column:]
            case "cut":
                lines[at] = lines[at][: rng.randint(0, len(lines[at]))]
            case "swap":
                other = rng.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
    return "\n".join(lines) + "\n"


def outcome(folder: Path, text: str, overrides: Sequence[str] = ()) -> InputError | None:
    """What loading ends in; anything but a recipe or an InputError fails the test."""
    try:
        load(folder, text, overrides)
    except InputError as error:
        return error
    return None


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_recipe_loads_or_is_an_input_error_and_nothing_else(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    errors = [error for _ in range(100) if (error := outcome(tmp_path, corrupted(rng))) is not None]
    # Both happen, or the damage proves nothing.
    assert 5 < len(errors) < 98
    for error in errors:
        assert error.problems
        assert all(problem.message and "\n" not in problem.message for problem in error.problems)


@pytest.mark.parametrize("seed", range(2))
def test_a_damaged_override_applies_or_is_an_input_error_and_nothing_else(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    keys = [
        "run.steps",
        "optim.groups.0.match",
        "optim.groups",
        "task",
        "task.target",
        "task.label",
        "task.scale",
        "clip.kind",
        "faults.0",
        "smoke",
    ]
    errors = []
    for _ in range(50):
        override = f"{rng.choice(keys)}={rng.choice(JUNK)}"
        if rng.random() < 0.3:
            at = rng.randrange(len(override))
            override = override[:at] + rng.choice(JUNK) + override[at:]
        error = outcome(tmp_path, RECIPE, [override])
        errors += [] if error is None else [error]
    assert 5 < len(errors) < 48
    assert all(error.problems for error in errors)


def test_loading_imports_no_paddlenlp() -> None:
    recipes = [str(path) for path in sorted((ROOT / "configs").glob("*.yaml"))]
    code = (
        "import sys; from paddle_stable.recipe_io import load_recipe\n"
        "for path in sys.argv[1:]: load_recipe(path)\n"
        "assert 'paddle' in sys.modules and 'paddlenlp' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, *recipes], check=True, cwd=ROOT)


def test_a_file_that_is_no_yaml_is_answered_without_paddle(tmp_path: Path) -> None:
    path = write_recipe(tmp_path, "a: [")
    code = (
        "import sys; from paddle_stable.errors import InputError; from paddle_stable.recipe_io import load_recipe\n"
        "try: load_recipe(sys.argv[1])\n"
        "except InputError: assert 'paddle' not in sys.modules\n"
        "else: raise AssertionError"
    )
    subprocess.run([sys.executable, "-c", code, path], check=True, cwd=ROOT)
