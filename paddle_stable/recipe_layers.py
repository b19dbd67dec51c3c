"""What is laid over a recipe's file: its `smoke` section, values set by a program, `-o key=value`."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from paddle_stable.errors import Problem
from paddle_stable.recipe_checks import unused_clip_keys
from paddle_stable.recipe_yaml import Entry, dotted, from_python, read_yaml, shown

COMMAND_LINE = "command line"
PROGRAM = "set by the program"


@final
@dataclass(frozen=True, slots=True)
class Assignment:
    """One key that a layer sets."""

    path: tuple[str, ...]
    """Numbers of list items are text here: only the recipe below can tell what is a list."""
    entry: Entry


def parse_overrides(overrides: Sequence[str], problems: list[Problem]) -> list[Assignment]:
    """Read `a.b.c=value` arguments; the value is YAML and may hold further `=`."""
    assignments = []
    for override in overrides:
        key, equals, text = override.partition("=")
        path = _split(key)
        if not equals or path is None:
            message = f"-o {override}: must be key=value with a dotted key, such as optim.lr=1e-3"
            problems.append(Problem(COMMAND_LINE, 0, message))
            continue
        entry = read_yaml(text, COMMAND_LINE, problems, above=path, has_lines=False)
        if entry is not None:
            assignments.append(Assignment(path, entry))
    return assignments


def program_assignments(values: Mapping[str, Any]) -> list[Assignment]:
    """Assignments of values by dotted key.

    Raises:
        TypeError: a value is nothing that a recipe could hold.
    """
    return [Assignment(tuple(key.split(".")), from_python(value, PROGRAM)) for key, value in values.items()]


def smoke_assignments(root: Entry, problems: list[Problem]) -> list[Assignment]:
    """What the `smoke` section sets: dotted keys, nested sections, or both mixed."""
    smoke = root.child("smoke")
    if smoke is None or not isinstance(smoke.value, dict):
        return []  # a wrong type is found when the shape of the whole recipe is checked
    return list(_leaves(smoke.value, (), problems))


def _leaves(section: dict[str, Entry], above: tuple[str, ...], problems: list[Problem]) -> Iterator[Assignment]:
    for key, entry in section.items():
        parts = _split(key)
        if parts is None or (*above, *parts)[0] == "smoke":
            problems.append(Problem(entry.file, entry.line, f"smoke: {key!r} is not a key of a recipe"))
        elif isinstance(entry.value, dict) and entry.value:
            yield from _leaves(entry.value, (*above, *parts), problems)
        else:
            yield Assignment((*above, *parts), entry)


def _split(key: str) -> tuple[str, ...] | None:
    parts = tuple(part.strip() for part in key.split("."))
    return parts if all(parts) else None


def apply_layer(root: Entry, assignments: Sequence[Assignment], problems: list[Problem]) -> tuple[str, ...]:
    """Set the keys of one layer in `root`, the last one for a key winning; returns what the user should know of it."""
    for assignment in assignments:
        fault = _put(root, assignment)
        if fault is not None:
            entry = assignment.entry
            problems.append(Problem(entry.file, entry.line, f"{dotted(assignment.path)}: {fault}"))
    return tuple(_settle_clip(root, {assignment.path for assignment in assignments}))


def _put(root: Entry, assignment: Assignment) -> str | None:
    """Set one key; what stands in the way, or None."""
    section = root
    *above, name = assignment.path
    for depth, part in enumerate(above):
        below = section.child(_key(section, part))
        if below is None and isinstance(section.value, dict):
            below = Entry({}, assignment.entry.file, assignment.entry.line)
            section.value[part] = below
        if below is None:
            return _no_way(section, part)
        if below.value is None:
            below.value = {}  # `optim:` without anything below it
        if not isinstance(below.value, dict | list):
            return f"{dotted(above[: depth + 1])} is {shown(below)}, not a section, and has no keys"
        section = below
    key = _key(section, name)
    entry = copy.deepcopy(assignment.entry)
    if isinstance(section.value, dict):
        section.value[name] = entry
    elif isinstance(section.value, list) and isinstance(key, int) and key < len(section.value):
        section.value[key] = entry
    else:
        return _no_way(section, name)
    return None


def _key(section: Entry, part: str) -> str | int:
    return int(part) if isinstance(section.value, list) and part.isascii() and part.isdigit() else part


def _no_way(section: Entry, part: str) -> str:
    count = len(section.value) if isinstance(section.value, list) else 0
    return f"there is no item {part}: the list has {count}, counted from 0"


def _settle_clip(root: Entry, assigned: set[tuple[str, ...]]) -> Iterator[str]:
    """A layer that sets another kind of clip makes the bound of the kind below it void.

    Without this, `-o clip.kind=none` would need every recipe to be edited first. Both in *one* layer stay, and are
    reported as a mistake later.
    """
    clip = root.child("clip")
    kind = clip.child("kind") if clip is not None else None
    if clip is None or kind is None or ("clip", "kind") not in assigned:
        return
    for name in unused_clip_keys(kind.value) if isinstance(kind.value, str) else ():
        bound = clip.child(name)
        if bound is not None and isinstance(clip.value, dict) and ("clip", name) not in assigned:
            del clip.value[name]
            yield (
                f"clip.{name} ({bound.file}:{bound.line}) does not count: "
                f"clip.kind {kind.value} ({kind.file}) does not use it."
            )
