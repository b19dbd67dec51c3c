"""From the dotted path in `task.target` to the class of a task, without running code that nobody trusts."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import final

import paddle_stable.tasks
from paddle_stable.recipe import DataConfig, TaskConfig
from paddle_stable.task import Task

TASKS_PACKAGE = paddle_stable.tasks.__name__


@final
class TargetError(Exception):
    """`task.target` does not lead to a task; the message says why and what would."""


def list_tasks() -> tuple[str, ...]:
    """Dotted paths of the tasks that come with the program, found by reading their files: nothing is imported."""
    return tuple(
        f"{TASKS_PACKAGE}.{path.stem}.{name}"
        for folder in paddle_stable.tasks.__path__
        for path in sorted(Path(folder).glob("*.py"))
        for name in _task_classes(path)
    )


def _task_classes(path: Path) -> Iterator[str]:
    for statement in ast.parse(path.read_text(encoding="utf-8"), str(path)).body:
        if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
            bases = {ast.unparse(base).rpartition(".")[2] for base in statement.bases}
            if Task.__name__ in bases:
                yield statement.name


def built_in_tasks() -> tuple[type[Task], ...]:
    """Import every task that comes with the program."""
    return tuple(resolve_task(target) for target in list_tasks())


def resolve_task(target: str, *, trust: bool = False) -> type[Task]:
    """Import the class that `target` names.

    Args:
        target: `package.module.Class`.
        trust: also import, that is run, code outside `paddle_stable.tasks`.

    Raises:
        TargetError: there is no such task, or it may not be imported.
        Exception: whatever a module of `paddle_stable.tasks` raises while it is imported: that is a bug, not a mistake
            of the user.
    """
    module_name, _, class_name = target.rpartition(".")
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", target):
        raise TargetError(f"must be a dotted path such as {TASKS_PACKAGE}.ernie.ErnieClassification, got {target!r}")
    if module_name.startswith(TASKS_PACKAGE + ".") or module_name == TASKS_PACKAGE:
        module = _built_in_module(target, module_name)
    elif trust:
        module = _foreign_module(module_name)
    else:
        raise TargetError(
            f"{target} is outside {TASKS_PACKAGE}, and using it would run its code. "
            f"Pass --trust if you trust it. {_choices(target)}"
        )
    return _checked(vars(module).get(class_name), target)


def _built_in_module(target: str, module_name: str) -> ModuleType:
    stem = module_name.removeprefix(TASKS_PACKAGE).removeprefix(".")
    # Looked up among the files instead of caught from the import: an ImportError of the module's own is a bug to show.
    if not any((Path(folder) / f"{stem}.py").is_file() for folder in paddle_stable.tasks.__path__):
        raise TargetError(f"there is no task {target}. {_choices(target)}")
    return importlib.import_module(module_name)


def _foreign_module(module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise TargetError(
            f"importing {module_name} failed: {error}. It has to lie where the command is given, or on PYTHONPATH"
        ) from error
    except Exception as error:  # code of the user's own: whatever it raises, the recipe names it
        raise TargetError(f"importing {module_name} failed: {type(error).__name__}: {error}") from error


def _checked(found: object, target: str) -> type[Task]:
    if found is None:
        raise TargetError(f"there is no task {target}. {_choices(target)}")
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise TargetError(f"{target} is not a Task. {_choices(target)}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise TargetError(f"{target} is abstract: it lacks {missing}. {_choices(target)}")
    for name, base in (("Config", TaskConfig), ("Data", DataConfig)):
        section = inspect.getattr_static(found, name, None)
        if not (isinstance(section, type) and issubclass(section, base)):
            raise TargetError(f"{target} has no {name} that derives from {base.__name__}")
    for name in ("model_kind", "metric_names"):
        if inspect.getattr_static(found, name, None) is None:
            raise TargetError(f"{target} has no {name}")
    return found


def _choices(target: str) -> str:
    tasks = list_tasks()
    # Compared by the last part first: the package is the same in all of them.
    by_class = {task.rpartition(".")[2]: task for task in tasks}
    near = get_close_matches(target.rpartition(".")[2], by_class, n=1, cutoff=0.6)
    near_path = [by_class[near[0]]] if near else get_close_matches(target, tasks, n=1, cutoff=0.8)
    hint = f"Did you mean {near_path[0]}? " if near_path else ""
    return f"{hint}Tasks: {', '.join(tasks)}" if tasks else "There are no tasks"
