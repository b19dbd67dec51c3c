"""Sections of a recipe never change after loading, refuse what they do not know, and explain every field."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
from pydantic import ValidationError, create_model

import paddle_stable.recipe
from paddle_stable.recipe import ClipConfig, DataConfig, OptimConfig, Recipe, RunConfig, Section, TaskConfig
from paddle_stable.recipe_target import built_in_tasks

SECTIONS = [
    section
    for _, section in inspect.getmembers(paddle_stable.recipe, inspect.isclass)
    if issubclass(section, Section) and section is not Section
]
NUMBERS = [
    (section, name)
    for section in SECTIONS
    for name, field in section.model_fields.items()
    if "float" in str(field.annotation).lower()
]


def recipe(**sections: Any) -> Recipe:
    return Recipe(run=RunConfig(output_dir="x"), task=TaskConfig(target="a.B"), data=DataConfig(), **sections)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_and_field_is_documented(section: type[Section]) -> None:
    assert section.__doc__
    undocumented = [name for name, field in section.model_fields.items() if not field.description]
    # Sections of a recipe are documented by their own class.
    assert [name for name in undocumented if section is not Recipe] == []


@pytest.mark.parametrize("section", SECTIONS)
def test_an_unknown_key_is_refused(section: type[Section]) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        section.model_validate({"no_such_key": 1})


DEFAULTS = [
    (section, name)
    for section in [*SECTIONS, *(part for task in built_in_tasks() for part in (task.Config, task.Data))]
    for name, field in section.model_fields.items()
    if not field.is_required()
]


@pytest.mark.parametrize(("section", "name"), DEFAULTS)
def test_every_default_is_a_value_that_the_recipe_could_give(section: type[Section], name: str) -> None:
    field = section.model_fields[name]
    default = field.get_default(call_default_factory=True)
    one_field = create_model("OneField", **{name: (field.annotation, field)})
    assert getattr(one_field.model_validate({name: default}, strict=True), name) == default


def test_a_section_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        recipe().optim.lr = 1.0  # type: ignore[misc]


def test_there_are_numbers_to_check() -> None:
    assert (OptimConfig, "lr") in NUMBERS
    assert (OptimConfig, "betas") in NUMBERS
    assert (ClipConfig, "max_norm") in NUMBERS


@pytest.mark.parametrize(("section", "name"), NUMBERS)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_no_number_may_be_infinite_or_nan(section: type[Section], name: str, number: float) -> None:
    for value in (number, (number, number)):
        with pytest.raises(ValidationError) as caught:
            section.model_validate({name: value})
        assert name in {error["loc"][0] for error in caught.value.errors()}


@pytest.mark.parametrize("betas", [(1.0, 0.9), (0.9, 1.0), (-0.1, 0.9), (0.9,), (0.9, 0.9, 0.9)])
def test_betas_outside_their_range_are_refused(betas: tuple[float, ...]) -> None:
    with pytest.raises(ValidationError):
        OptimConfig(betas=betas)  # type: ignore[arg-type]


def test_betas_may_be_zero() -> None:
    assert OptimConfig(betas=(0.0, 0.0)).betas == (0.0, 0.0)


def test_defaults_are_shared_by_no_two_recipes() -> None:
    first, second = recipe(), recipe()
    first.smoke["run.steps"] = 1
    assert second.smoke == {}
