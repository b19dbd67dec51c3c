"""`task.target` leads to a Task below `paddle_stable.tasks`, or elsewhere only with trust."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import paddle_stable.tasks
from paddle_stable.recipe_target import TargetError, built_in_tasks, list_tasks, resolve_task
from tests import recipe_sample
from tests.recipe_sample import TARGET, SampleTask

GOOD = """
from tests.recipe_sample import SampleTask as Base
from paddle_stable.task import Task
VALUE = 5
class Other:
    pass
class GoodTask(Base):
    pass
class _HiddenTask(Task):
    pass
class AbstractTask(Task):
    Config = Base.Config
"""

ABSTRACT = "paddle_stable.tasks.good.AbstractTask"
FIRST = "__init__, assets"
"""The first of the methods that a task has to have."""


@pytest.fixture
def tasks_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that counts as the package of built-in tasks."""
    monkeypatch.setattr(paddle_stable.tasks, "__path__", [str(tmp_path)])
    for name in [name for name in sys.modules if name.startswith("paddle_stable.tasks.")]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "good.py").write_text(GOOD, encoding="utf-8")
    return tmp_path


def refusal(target: str, *, trust: bool = False) -> str:
    with pytest.raises(TargetError) as caught:
        resolve_task(target, trust=trust)
    return str(caught.value)


def test_every_task_that_is_listed_can_be_resolved_and_is_named_after_itself() -> None:
    tasks = built_in_tasks()
    assert [f"{task.__module__}.{task.__qualname__}" for task in tasks] == list(list_tasks())


def test_tasks_are_listed_without_being_imported(tasks_folder: Path) -> None:
    (tasks_folder / "loud.py").write_text(
        "import paddle_stable.task\nclass LoudTask(paddle_stable.task.Task): ...\nraise RuntimeError", encoding="utf-8"
    )
    assert list_tasks() == ("paddle_stable.tasks.good.AbstractTask", "paddle_stable.tasks.loud.LoudTask")
    assert "paddle_stable.tasks.loud" not in sys.modules


def test_a_task_below_the_package_needs_no_trust(tasks_folder: Path) -> None:
    assert resolve_task("paddle_stable.tasks.good.GoodTask").__name__ == "GoodTask"


def test_a_task_elsewhere_needs_trust_and_is_not_imported_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "foreign_module.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    message = refusal("foreign_module.Task")
    assert message.startswith(
        "foreign_module.Task is outside paddle_stable.tasks, and using it would run its code. Pass --trust"
    )
    assert "foreign_module" not in sys.modules
    assert refusal("foreign_module.Task", trust=True) == "importing foreign_module failed: RuntimeError: imported"


def test_trust_opens_any_module() -> None:
    assert resolve_task(TARGET, trust=True) is SampleTask


@pytest.mark.parametrize(
    "target", ["paddle_stable.tasks2.x.Y", "paddle_stable.task.Task", "os.system", "xpaddle_stable.tasks.ernie.E"]
)
def test_a_name_that_only_looks_like_the_package_needs_trust(target: str) -> None:
    assert "Pass --trust" in refusal(target)


@pytest.mark.parametrize(
    "target", ["", "ernie", "a..b", ".a.b", "a.b.", "a b.c", "../x.y", "a/b.c", "paddle_stable.tasks.1x.Y"]
)
def test_what_is_no_dotted_path_is_refused(target: str) -> None:
    for trust in (False, True):
        assert refusal(target, trust=trust).startswith("must be a dotted path such as paddle_stable.tasks.")


@pytest.mark.parametrize(
    ("target", "start"),
    [
        ("paddle_stable.tasks.god.GoodTask", "there is no task paddle_stable.tasks.god.GoodTask. "),
        ("paddle_stable.tasks.good.Absent", "there is no task paddle_stable.tasks.good.Absent. "),
        ("paddle_stable.tasks.GoodTask", "there is no task paddle_stable.tasks.GoodTask. "),
        ("paddle_stable.tasks.good.GoodTask.Config", "there is no task paddle_stable.tasks.good.GoodTask.Config. "),
        ("paddle_stable.tasks.good.VALUE", "paddle_stable.tasks.good.VALUE is not a Task. "),
        ("paddle_stable.tasks.good.Other", "paddle_stable.tasks.good.Other is not a Task. "),
        ("paddle_stable.tasks.good.AbstractTask", f"{ABSTRACT} is abstract: it lacks {FIRST}, "),
    ],
)  # fmt: skip
def test_what_is_no_task_is_refused_with_those_there_are(tasks_folder: Path, target: str, start: str) -> None:
    message = refusal(target)
    assert message.startswith(start)
    assert message.endswith("Tasks: paddle_stable.tasks.good.AbstractTask")


def test_a_misspelt_task_is_named(tasks_folder: Path) -> None:
    assert "Did you mean paddle_stable.tasks.good.AbstractTask?" in refusal("paddle_stable.tasks.good.AbstactTask")


def test_a_task_without_its_sections_is_refused() -> None:
    assert re.search(
        r"BareTask has no Config that derives from TaskConfig$",
        refusal(f"{recipe_sample.__name__}.BareTask", trust=True),
    )


def test_an_import_error_inside_a_built_in_task_is_a_bug_and_shows(tasks_folder: Path) -> None:
    (tasks_folder / "broken.py").write_text("import no_such_module_at_all", encoding="utf-8")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        resolve_task("paddle_stable.tasks.broken.Task")
