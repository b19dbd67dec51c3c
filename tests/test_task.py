"""What a new task has to give, and what it is told when it does not."""

from __future__ import annotations

import inspect

import pytest

from paddle_stable.task import Task
from paddle_stable.tasks.lstm import LstmForecast


def test_a_task_lacks_nothing_or_cannot_be_made() -> None:
    methods = {"load_splits", "build_model", "loss", "outputs", "metrics", "pictures", "assets", "write_sample_data"}
    assert Task.__abstractmethods__ == {"__init__", *methods}
    for missing in methods:
        body = {name: getattr(LstmForecast, name) for name in methods - {missing}}
        incomplete = type("Incomplete", (Task,), {**body, "__init__": lambda self, config, data, *, seed: None})
        with pytest.raises(TypeError, match=missing):
            incomplete(None, None, seed=1)


def test_a_task_is_all_there_is_to_inherit() -> None:
    """No implementation is inherited: everything that a task does stands in its file."""
    assert LstmForecast.__mro__[1:] == Task.__mro__
    written = {name for name, value in vars(Task).items() if inspect.isfunction(value)}
    assert written <= Task.__abstractmethods__ | {"__subclasshook__"}
