from __future__ import annotations

import pytest

from paddle_stable.errors import ExitCode, InputError, Problem, capped


def test_a_problem_says_where_and_what() -> None:
    assert str(Problem("a.yaml", 3, "clip.max_norm: must be > 0, got -1.0")) == (
        "a.yaml:3  clip.max_norm: must be > 0, got -1.0"
    )
    assert str(Problem("command line", 0, "what")) == "command line  what"


def test_all_problems_come_at_once() -> None:
    error = InputError("a.yaml has 2 problems:", [Problem("a.yaml", 1, "x"), Problem("a.yaml", 2, "y")])
    assert str(error).splitlines() == ["a.yaml has 2 problems:", "  a.yaml:1  x", "  a.yaml:2  y"]
    assert InputError.single("f", "m", line=4).problems == (Problem("f", 4, "m"),)


def test_exit_codes_are_those_of_the_readme() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "DONE": 0, "ERROR": 1, "INPUT": 2, "DIVERGED": 3, "HANG": 4, "STOPPED": 75,
    }  # fmt: skip


@pytest.mark.parametrize("count", [0, 1, 3])
def test_few_problems_are_all_shown(count: int) -> None:
    problems = [Problem("x", line, "bad") for line in range(count)]
    assert capped(problems, limit=3) == problems
