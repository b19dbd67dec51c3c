"""A stranger's set-up: everything pinned, nothing tied to one machine, and a set-up that is whole or not there."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import final

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from setuptools.config.pyprojecttoml import read_configuration

import paddle_stable

ROOT = Path(__file__).parent.parent
MAKE = shutil.which("make")
needs_make = pytest.mark.skipif(MAKE is None, reason="make is not installed")


def requirements(name: str) -> list[Requirement]:
    """Requirements in a file of the checkout, comments left out."""
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in (ROOT / name).read_text(encoding="utf-8").splitlines())
    return [Requirement(line) for line in lines if line]


def pinned(python: str = "3.11") -> dict[str, str]:
    """Locked versions for one Python on Linux, by canonical package name."""
    machine = {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "sys_platform": "linux",
        "platform_machine": "x86_64",
    }
    versions: dict[str, str] = {}
    for requirement in requirements("requirements.txt"):
        if requirement.marker is None or requirement.marker.evaluate(machine):
            name = canonicalize_name(requirement.name)
            assert name not in versions, f"{name} is pinned twice for Python {python}"
            (specifier,) = requirement.specifier
            versions[name] = specifier.version
    return versions


def tracked_files() -> list[Path]:
    """Files under version control, as far as they are still there."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("this is not a git checkout")
    return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]


# ---------------------------------------------------------------------------------------------------- requirements


def test_every_requirement_is_pinned_to_one_version() -> None:
    loose = [str(r) for r in requirements("requirements.txt") if [s.operator for s in r.specifier] != ["=="] or r.url]
    assert not loose
    assert len(pinned()) > 100  # transitive ones too


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12"])
def test_the_pins_keep_the_bounds(python: str) -> None:
    versions = pinned(python)
    broken = [
        f"{requirement}: {version}"
        for requirement in requirements("requirements.in")
        if (version := versions.get(canonicalize_name(requirement.name))) is None
        or not requirement.specifier.contains(version, prereleases=True)
    ]
    assert not broken


def test_the_lock_says_how_it_was_made() -> None:
    header = (ROOT / "requirements.txt").read_text(encoding="utf-8").split("\n\n")[0]
    assert "uv pip compile --universal --python-version 3.10" in header


def test_both_builds_of_paddle_have_the_same_version() -> None:
    (gpu,) = requirements("requirements-gpu.txt")
    assert gpu.name == "paddlepaddle-gpu"
    assert [specifier.version for specifier in gpu.specifier] == [pinned()["paddlepaddle"]]


def test_everything_imported_is_stated() -> None:
    """A package that comes along with another one today may be gone tomorrow."""
    stated = {canonicalize_name(requirement.name) for requirement in requirements("requirements.in")}
    providers = packages_by_module()
    own = {"paddle_stable", "tools", "tests", "benchmarks"} | {path.stem for path in ROOT.glob("*/*.py")}
    own |= {path.parent.name for path in ROOT.glob("benchmarks/*/*.py")}
    missing = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in (path for folder in ("paddle_stable", "tools", "tests", "benchmarks") for path in sources(folder))
        for module in imported_modules(path) - own - sys.stdlib_module_names
        if not providers.get(module, set()) & stated
    }
    assert not missing


def packages_by_module() -> dict[str, set[str]]:
    """Installed packages by the top-level names that they hold (the standard library's own list is short on 3.10)."""
    result: dict[str, set[str]] = {}
    for package in importlib.metadata.distributions():
        for module in {
            str(f).partition("/")[0].split(".")[0] for f in package.files or [] if f.suffix in {".py", ".so"}
        }:
            result.setdefault(module, set()).add(canonicalize_name(package.metadata["Name"]))
    return result


def sources(folder: str) -> list[Path]:
    """Python files in a folder of the checkout."""
    return sorted((ROOT / folder).rglob("*.py"))


def imported_modules(path: Path) -> set[str]:
    """Top-level names that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return {name.split(".")[0] for name in names}


# -------------------------------------------------------------------------------------------------------- metadata


def test_the_version_is_the_package_s() -> None:
    assert read_configuration(ROOT / "pyproject.toml")["project"]["version"] == paddle_stable.__version__


def test_the_supported_pythons_are_the_same_everywhere() -> None:
    project = read_configuration(ROOT / "pyproject.toml")["project"]
    classifiers = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    bound = SpecifierSet(project["requires-python"])
    assert [version for minor in range(30) if (version := f"3.{minor}") in bound] == classifiers
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    low, high = re.findall(r"\((3, \d+)\)", makefile.split("SUPPORTED :=")[1].splitlines()[0])
    assert [low.replace(", ", "."), high.replace(", ", ".")] == [classifiers[0], classifiers[-1]]


# ----------------------------------------------------------------------------------------------------------- files


def test_no_file_names_a_package_index() -> None:
    """Which index to use is a setting of the machine: a name in a file would break behind a mirror."""
    index = re.compile(
        r"https?://[\w.-]*(?:pypi|pythonhosted|mirror|tuna|anaconda)|https?://\S*/simple\b|/wh[l]/", re.I
    )
    found = []
    for path in tracked_files():
        data = path.read_bytes()
        if b"\0" not in data:
            found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in index.finditer(data.decode("utf-8"))]
    assert not found


@pytest.mark.parametrize("name", ["Makefile", ".ci/run", "docker/Dockerfile.cpu", "docker/Dockerfile.gpu"])
def test_files_that_are_named_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    named = set(re.findall(r"\b(?:tools|configs|benchmarks|docs|docker)/[\w./-]+\.\w+|requirements[\w-]*\.txt", text))
    made_on_the_way = {"requirements-without-paddle.txt", "benchmarks/x.py"}
    assert not {path for path in named - made_on_the_way if not (ROOT / path).exists()}


def test_images_do_not_run_as_root_and_install_before_they_copy() -> None:
    for kind in ("cpu", "gpu"):
        lines = (ROOT / f"docker/Dockerfile.{kind}").read_text(encoding="utf-8").splitlines()
        (base,) = [line for line in lines if line.startswith("FROM ")]
        assert re.search(r":\d+\.\d+\.\d+", base)
        assert [line for line in lines if line.startswith("USER ")] == ["USER trainer"]
        assert lines.index("COPY . .") > next(i for i, line in enumerate(lines) if "-r requirements" in line)


# ---------------------------------------------------------------------------------------------------- make setup

STAND_IN = """#!/bin/sh
# Stands in for Python: notes what it is asked to do, makes a "virtual environment" of itself, fails where told to.
echo "$*" >> "$CALLS"
case "$*" in *"$FAIL_AT"*) test -z "$FAIL_AT" || exit 1 ;; esac
case "$*" in "-m venv "*)
    rm -rf .venv && mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
esac
"""


@final
class Checkout:
    """A folder with the files that `make setup` reads, and a Python that only notes what it is asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("Makefile", "requirements.txt", "pyproject.toml"):
            shutil.copy(ROOT / name, folder)
        self.calls = folder / "calls"
        self.python = folder / "python"
        self.python.write_text(STAND_IN, encoding="utf-8")
        self.python.chmod(0o755)

    def setup(self, *, fail_at: str = "") -> tuple[int, list[str]]:
        """Exit code of `make setup`, and what it asked Python to do besides saying its version."""
        self.calls.write_text("", encoding="utf-8")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
        environment |= {"CALLS": str(self.calls), "FAIL_AT": fail_at}
        command = [str(MAKE), "setup", f"PYTHON={self.python}"]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, check=False)
        return done.returncode, [line for line in self.calls.read_text().splitlines() if not line.startswith("-c")]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@needs_make
def test_a_set_up_upgrades_pip_before_it_installs_the_rest(checkout: Checkout) -> None:
    code, calls = checkout.setup()
    assert code == 0
    assert calls == [
        "-m venv --clear .venv",
        f"-m pip install pip=={pinned()['pip']} setuptools=={pinned()['setuptools']}",
        "-m pip install --build-constraint requirements.txt -r requirements.txt",
        "-m pip install --no-deps --no-build-isolation -e .",
        "-m pip check",
    ]


@needs_make
@pytest.mark.parametrize("step", ["install pip==", "-r requirements.txt", "-e .", "pip check"])
def test_an_interrupted_set_up_starts_again(checkout: Checkout, step: str) -> None:
    whole = checkout.setup()
    shutil.rmtree(checkout.folder / ".venv")
    assert checkout.setup(fail_at=step)[0] != 0
    assert checkout.setup() == whole


@needs_make
def test_a_second_set_up_does_nothing(checkout: Checkout) -> None:
    checkout.setup()
    assert checkout.setup() == (0, [])
    (checkout.folder / "requirements.txt").touch()  # as a `git checkout` does
    assert checkout.setup() == (0, [])


@needs_make
@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml"])
def test_changed_requirements_are_installed_afresh(checkout: Checkout, name: str) -> None:
    whole = checkout.setup()
    with (checkout.folder / name).open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    assert checkout.setup() == whole


@needs_make
def test_a_python_without_ensurepip_is_enough(checkout: Checkout) -> None:
    """Debian ships venv in a package of its own; pip can install itself into an environment that lacks it."""
    code, calls = checkout.setup(fail_at="venv --clear .venv")
    assert code == 0
    assert calls[1:3] == [
        "-m venv --clear --without-pip .venv",
        f"-m pip --python .venv/bin/python install pip=={pinned()['pip']}",
    ]


@needs_make
def test_an_unsupported_python_is_refused_by_name(checkout: Checkout) -> None:
    checkout.python.write_text('#!/bin/sh\ntest "$1" != --version || echo Python 3.13.0\ntest "$1" = --version\n')
    command = [str(MAKE), "setup", f"PYTHON={checkout.python}"]
    done = subprocess.run(command, cwd=checkout.folder, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Python 3.10, 3.11 or 3.12 is needed, not Python 3.13.0: make setup PYTHON=" in done.stdout
    assert not (checkout.folder / ".venv").exists()


@needs_make
def test_help_lists_every_command() -> None:
    shown = subprocess.run([str(MAKE), "-s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert phony
    assert re.findall(r"^  make (\S+)", shown, re.M) == phony[1].split()
