from __future__ import annotations

import pytest

from paddle_stable.recipe_differences import recipe_differences


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("optim: {lr: 0.1}\nrun: {seed: 1}\n", "run: {seed: 1}\noptim: {lr: 0.1}\n", {}),
        ("optim: {lr: 0.1, eps: 1.0}\n", "optim: {lr: 0.2, eps: 1.0}\n", {"optim.lr": ("0.1", "0.2")}),
        ("a: {b: null}\n", "a: {b: text}\n", {"a.b": ("null", "text")}),
        ("a: {b: {}}\n", "a: {b: {c: 1}}\n", {"a.b": ("{}", "(not there)"), "a.b.c": ("(not there)", "1")}),
        ("faults: []\n", "faults: [{step: 1}]\n", {"faults": ("[]", "[{step: 1}]")}),
        ("a: 1\n", "a: '1'\n", {"a": ("1", "'1'")}),
    ],
)
def test_every_key_whose_value_differs_is_named(one: str, other: str, expected: dict[str, tuple[str, str]]) -> None:
    assert recipe_differences(one, other) == expected
