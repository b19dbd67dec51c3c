"""From a YAML file and `-o key=value` to a `Recipe`: every mistake reported at once, with its line and the way out.

Layers, each over the one before: the file, its `smoke` section when asked for, values set by a program, the command
line (`recipe_yaml`, `recipe_layers`). Then every key by itself (`recipe_validate`, `recipe_words`), then what needs
more than one key, the task or the machine (`recipe_checks`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import yaml

from paddle_stable.errors import InputError, Problem
from paddle_stable.recipe import Recipe
from paddle_stable.recipe_checks import (
    Finding,
    advise,
    check_device,
    check_keys,
    check_metric,
    unused_adaptive_keys,
    unused_clip_keys,
)
from paddle_stable.recipe_layers import (
    COMMAND_LINE,
    Assignment,
    apply_layer,
    parse_overrides,
    program_assignments,
    smoke_assignments,
)
from paddle_stable.recipe_validate import section_of, sound_part, validate
from paddle_stable.recipe_words import Issue
from paddle_stable.recipe_yaml import Entry, KeyPath, dotted, read_yaml_file

if TYPE_CHECKING:
    from paddle_stable.task import Task


@final
@dataclass(frozen=True)
class LoadedRecipe:
    """A valid recipe and where it came from."""

    recipe: Recipe
    """Its `task` and `data` are instances of the task's own `Config` and `Data`."""
    task_class: type[Task]
    path: str
    """The file, as the user gave it."""
    text: str
    """The resolved recipe as YAML, defaults included: can be loaded again, and is what a run records."""
    advice: tuple[str, ...]
    """Sentences about what is allowed and probably not meant."""
    places: Mapping[str, tuple[str, int]]
    """File and line of every key that was written down; `locate` looks into it."""


def load_recipe(
    path: str,
    overrides: Sequence[str] = (),
    *,
    smoke: bool = False,
    trust: bool = False,
    set_values: Mapping[str, Any] | None = None,
) -> LoadedRecipe:
    """Read a recipe and check all of it that can be checked without its data.

    Args:
        path: YAML file.
        overrides: `a.b.c=value` in order, the value in YAML; the last one for a key wins.
        smoke: apply the recipe's own `smoke` section, before `set_values` and `overrides`.
        trust: allow a `task.target` outside `paddle_stable.tasks`, whose code then runs.
        set_values: values by dotted key, from a test or a tool; applied before `overrides`.

    Raises:
        InputError: with every mistake that was found, by file and line.
        Exception: whatever a module of `paddle_stable.tasks` raises on import, which is a bug.
    """
    problems: list[Problem] = []
    from_command_line = parse_overrides(overrides, problems)
    root = read_yaml_file(path, problems)
    if root is None:
        raise _input_error(path, problems)
    from_smoke = smoke_assignments(root, problems)
    # Without --smoke, its section is checked all the same: the next smoke run must not be the first to see a mistake.
    rehearsal = None if smoke else copy.deepcopy(root)
    layers = [from_smoke if smoke else [], program_assignments(set_values or {}), from_command_line]
    notes = [note for layer in layers for note in apply_layer(root, layer, problems)]

    task_class, target_issues = _find_task(root, trust)
    recipe, issues = _check(root, task_class)
    problems.extend(_located([*target_issues, *issues], root))
    if rehearsal is not None:
        problems.extend(_smoke_problems(rehearsal, from_smoke, task_class))
    elif not from_smoke:
        problems.append(Problem(path, 0, "smoke: there is no such section, and --smoke asks for it"))
    if problems or recipe is None or task_class is None:
        raise _input_error(path, problems)
    return LoadedRecipe(
        recipe=recipe,
        task_class=task_class,
        path=path,
        text=_canonical(recipe),
        advice=(*notes, *advise(recipe, task_class.model_kind)),
        places=dict(_places(root, ())),
    )


def sound_task(path: str, overrides: Sequence[str] = (), *, smoke: bool = False, trust: bool = False) -> Task | None:
    """The task of a recipe with mistakes, where none of them is in what the data are read by: `task` and `data`.

    So that mistakes in the recipe and in the data can be told in one run. Arguments as for `load_recipe`.
    """
    problems: list[Problem] = []
    from_command_line = parse_overrides(overrides, problems)
    root = read_yaml_file(path, problems)
    if root is None:
        return None
    for layer in (smoke_assignments(root, problems) if smoke else [], from_command_line):
        apply_layer(root, layer, problems)
    task_class, _ = _find_task(root, trust)
    if problems or task_class is None:
        return None  # what could not be read may have been about the data
    _, issues = validate(root, task_class)
    sound = sound_part(root, issues)
    task, data = section_of(root, "task", task_class.Config), section_of(root, "data", task_class.Data)
    return None if sound is None or task is None or data is None else task_class(task, data, seed=sound.run.seed)


def locate(loaded: LoadedRecipe, key: str) -> tuple[str, int]:
    """File and line of a dotted key, or of the section above it when the key has its default; line 0: nowhere."""
    parts = key.split(".")
    for depth in range(len(parts), 0, -1):
        place = loaded.places.get(".".join(parts[:depth]))
        if place is not None:
            return place
    return loaded.path, 0


def _find_task(root: Entry, trust: bool) -> tuple[type[Task] | None, list[Issue]]:
    # Paddle takes seconds to import: a file that is no YAML is answered before.
    from paddle_stable.recipe_target import TargetError, resolve_task

    path: KeyPath = ("task", "target")
    entry, found = root.nearest(path)
    if found != path or not isinstance(entry.value, str):
        return None, []  # missing or of a wrong type: found with the shape of the whole
    try:
        return resolve_task(entry.value, trust=trust), []
    except TargetError as error:
        return None, [Issue(path, str(error))]


def _check(root: Entry, task_class: type[Task] | None) -> tuple[Recipe | None, list[Issue]]:
    """Every check of a recipe whose layers are in place."""
    recipe, issues = validate(root, task_class)
    sound = sound_part(root, issues)
    if sound is None:
        return recipe, issues
    findings = check_keys(sound, dict(_places(root, ())))
    if task_class is not None:
        findings += check_metric(sound, task_class.metric_names)
    wrong = {dotted(issue.path) for issue in issues}
    if not _depends_on(wrong, ("run.device", "amp.dtype", "amp.emulate")):
        findings += [Finding(key, message) for key, message in check_device(sound)]
    issues += [
        Issue(tuple(int(part) if part.isdigit() else part for part in finding.key.split(".")), finding.message)
        for finding in findings
        if not _depends_on(wrong, (finding.key, *finding.others))
    ]
    return recipe, issues


def _depends_on(wrong: set[str], keys: Sequence[str]) -> bool:
    """Whether one of the keys, or a section above it, is wrong."""
    return any(key == bad or key.startswith(f"{bad}.") for key in keys for bad in wrong)


def _smoke_problems(root: Entry, assignments: Sequence[Assignment], task_class: type[Task] | None) -> Iterator[Problem]:
    """Keys of the smoke section that are wrong in themselves.

    How they go together with the rest matters only to `--smoke`: a longer warm-up must not stop a real run because
    of a short rehearsal.
    """
    problems: list[Problem] = []
    apply_layer(root, assignments, problems)
    _, issues = validate(root, task_class)
    assigned = {assignment.path for assignment in assignments}
    for issue in issues:
        path = tuple(str(part) for part in issue.path)
        if any(path[: len(key)] == key[: len(path)] for key in assigned):
            problems.extend(_located([issue], root))
    for problem in problems:
        yield Problem(problem.file, problem.line, f"smoke: {problem.message}")


def _located(issues: Sequence[Issue], root: Entry) -> Iterator[Problem]:
    for issue in issues:
        entry, found = root.nearest(issue.path)
        if entry.refused:
            continue  # reported when it was read
        # A missing key stands nowhere: the section that lacks it has a line, unless an override made that section.
        nowhere = not found or (found != issue.path and entry.file != root.file)
        file, line = (root.file, 0) if nowhere else (entry.file, entry.line)
        yield Problem(file, line, f"{dotted(issue.path)}: {issue.message}")


def _places(entry: Entry, path: KeyPath) -> Iterator[tuple[str, tuple[str, int]]]:
    if path:
        yield dotted(path), (entry.file, entry.line)
    if isinstance(entry.value, dict):
        for key, below in entry.value.items():
            yield from _places(below, (*path, key))
    elif isinstance(entry.value, list):
        for index, below in enumerate(entry.value):
            yield from _places(below, (*path, index))


def _canonical(recipe: Recipe) -> str:
    # The smoke section is no part of this run: it has been applied, or it never will be.
    values = recipe.model_dump(mode="json", exclude={"smoke"})
    # Written down, a bound that the kind of clip does not use would be a mistake.
    for key in unused_clip_keys(recipe.clip.kind):
        values["clip"].pop(key, None)
    for key in unused_adaptive_keys(recipe.clip.adaptive.method) if recipe.clip.kind == "adaptive" else ():
        values["clip"]["adaptive"].pop(key, None)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)


def _input_error(path: str, problems: Sequence[Problem]) -> InputError:
    unique = sorted(set(problems), key=lambda problem: (problem.file != path, problem))
    subject = f"The {COMMAND_LINE}" if all(problem.file == COMMAND_LINE for problem in unique) else path
    return InputError(f"{subject} has {len(unique)} problem{'s' if len(unique) > 1 else ''}:", unique)
