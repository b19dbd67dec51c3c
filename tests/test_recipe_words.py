"""A message names the key, what was expected, what was found, and the key that was probably meant."""

from __future__ import annotations

import pytest

from paddle_stable.recipe import Recipe
from paddle_stable.recipe_words import ALIASES, known_keys, nearest_key
from paddle_stable.recipe_yaml import KeyPath
from tests.recipe_sample import SampleConfig

KEYS = known_keys(Recipe)


def test_all_keys_are_known_also_those_of_items_of_lists() -> None:
    assert {"run", "run.steps", "optim.betas", "optim.groups.lr_scale", "faults.kind", "smoke"} <= set(KEYS)
    assert "layers.width" in known_keys(SampleConfig)
    assert len(KEYS) == len(set(KEYS))


def test_every_name_used_elsewhere_leads_to_a_key_and_is_none_itself() -> None:
    assert set(ALIASES.values()) <= set(KEYS)
    assert not {key.rpartition(".")[2] for key in KEYS} & set(ALIASES)


@pytest.mark.parametrize(
    ("path", "key"),
    [
        (("optim", "leraning_rate"), "optim.lr"),
        (("optim", "learning_rate"), "optim.lr"),
        (("optim", "Learning_Rate"), "optim.lr"),
        (("optim", "beta"), "optim.betas"),
        (("optm",), "optim"),
        (("optm", "lr"), "optim.lr"),
        (("lr",), "optim.lr"),
        (("optim", "max_grad_norm"), "clip.max_norm"),
        (("optim", "max_norm"), "clip.max_norm"),
        (("clip", "maxnorm"), "clip.max_norm"),
        (("clip", "type"), None),
        (("run", "batch_size"), "data.batch_size"),
        (("epochs",), "run.epochs"),
        (("Global", "epoch_num"), "run.epochs"),
        (("Global", "save_model_dir"), "run.output_dir"),
        (("fp16",), "amp.dtype"),
        (("schedule", "warmup"), "schedule.warmup_steps"),
        (("optim", "groups", 1, "lr_scal"), "optim.groups.1.lr_scale"),
        (("faults", 0, "stp"), "faults.0.step"),
        (("zzz",), None),
        (("run", "qqqqqqqq"), None),
    ],
)
def test_the_nearest_key_is_what_was_meant(path: KeyPath, key: str | None) -> None:
    assert nearest_key(path, KEYS) == key


def test_a_key_of_the_same_section_goes_before_one_of_another() -> None:
    keys = ("first.hidden_size", "second.hidden_size", "second.depth")
    assert nearest_key(("second", "hiden_size"), keys) == "second.hidden_size"
    assert nearest_key(("second", "dept"), keys) == "second.depth"
    assert nearest_key(("third", "hiden_size"), keys) == "first.hidden_size"
