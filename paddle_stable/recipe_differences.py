"""In what two recipes differ, key by key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

_ABSENT = "(not there)"


def recipe_differences(one: str, other: str) -> dict[str, tuple[str, str]]:
    """Both values, as YAML writes them, of every dotted key whose values are not the same.

    Args:
        one: a resolved recipe, `LoadedRecipe.text`.
        other: another one.
    """
    if one == other:
        return {}
    values, others = dict(_leaves(yaml.safe_load(one), ())), dict(_leaves(yaml.safe_load(other), ()))
    pairs = {key: (values.get(key, _ABSENT), others.get(key, _ABSENT)) for key in (*values, *others)}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Dotted keys and values; a list is one value, and so is an empty section."""
    if isinstance(value, dict) and value:
        for key, below in value.items():
            yield from _leaves(below, (*path, str(key)))
    else:
        yield (
            ".".join(path),
            yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n...\n").strip(),
        )
