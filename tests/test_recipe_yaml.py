"""Text becomes entries that know their line; whatever is not plain YAML becomes a problem, never an exception."""

from __future__ import annotations

import math
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from paddle_stable.errors import Problem
from paddle_stable.recipe_yaml import MAX_BYTES, Entry, from_python, read_yaml, read_yaml_file, shown

REFUSED = "is not allowed: a recipe holds plain data only"
QUOTES = "Text that begins with * or & has to stand in quotes"
UNCLOSED_QUOTE = "not valid YAML: found unexpected end of stream (while scanning a quoted scalar, from line 1)"
IN_QUOTES = "Text that begins with %, @ or ` has to stand in quotes, such as"
CANNOT_BEGIN = f"that cannot start any token. {IN_QUOTES}"


def read(text: str) -> tuple[Entry | None, list[str]]:
    problems: list[Problem] = []
    return read_yaml(text, "r.yaml", problems), [str(problem) for problem in problems]


def value(text: str) -> Any:
    entry, problems = read(text)
    assert problems == []
    assert entry is not None
    return entry.plain()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1), ("-7", -7), ("1_000", 1000), ("0x1F", 31), ("0b11", 3), ("0", 0), ("+5", 5),
        ("1.5", 1.5), ("1.0e-6", 1e-6), (".inf", math.inf), ("-.INF", -math.inf), ("1_0.5", 10.5),
        ("true", True), ("off", False), ("~", None), ("null", None),
        ("text", "text"), ("'5'", "5"), ('"true"', "true"), ("2024-01-01", "2024-01-01"), ("=", "="), ("<<", "<<"),
        ("1e-6", "1e-6"), ("1:30", "1:30"), ("010", "010"), ("1:30.5", "1:30.5"),
        ("!!str 5", "5"), ("!!float 1e-6", 1e-6), ("|\n  a\n  b\n", "a\nb\n"),
        ("[1, [2]]", [1, [2]]), ("{a: {b: 1}}", {"a": {"b": 1}}),
        ("{1: a, true: b, 1.5: c}", {"1": "a", "true": "b", "1.5": "c"}),
    ],
)  # fmt: skip
def test_plain_data_is_read_as_it_looks(text: str, expected: Any) -> None:
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


def test_not_a_number_is_read() -> None:
    assert math.isnan(value(".nan"))


def test_an_entry_knows_the_line_of_its_key_or_item() -> None:
    entry, _ = read("# a comment\na:\n\n  b:\n    5\nc:\n- x\n-\n  y: 1\n")
    assert entry is not None
    lines = {
        path: entry.nearest(path)[0].line
        for path in [(), ("a",), ("a", "b"), ("c",), ("c", 0), ("c", 1), ("c", 1, "y")]
    }
    assert lines == {
        (): 2, ("a",): 2, ("a", "b"): 4, ("c",): 6, ("c", 0): 7, ("c", 1): 9, ("c", 1, "y"): 9,
    }  # fmt: skip


def test_the_nearest_entry_says_how_far_the_path_goes() -> None:
    entry = from_python({"a": [{"b": 1}]}, "p")
    assert entry.nearest(("a", 0, "b"))[1] == ("a", 0, "b")
    assert entry.nearest(("a", 0, "c", "d"))[1] == ("a", 0)
    assert entry.nearest(("a", 1))[1] == ("a",)
    assert entry.nearest(("a", -1))[1] == ("a",)
    assert entry.nearest(("x",))[1] == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\n\tb: 2", "r.yaml:2  a tab: YAML wants spaces here"),
        ("a:\n\tb: 2", "r.yaml:2  a tab: YAML wants spaces here"),
        ("a: 1\n---\nb: 2", "r.yaml:2  a second document begins here (`---`): a recipe is one document"),
        ("a: 'x\nb: 1", f"r.yaml:2  {UNCLOSED_QUOTE}"),
        ("a: b: c", "r.yaml:1  not valid YAML: mapping values are not allowed here"),
        ("a: *y", f"r.yaml:1  not valid YAML: found undefined alias 'y'. {QUOTES}"),
        ("a: %m", f"r.yaml:1  not valid YAML: found character '%' {CANNOT_BEGIN} \"%m/%d/%Y\""),
        ("a: @m", f"r.yaml:1  not valid YAML: found character '@' {CANNOT_BEGIN} \"%m/%d/%Y\""),
        ("a: \x01", "r.yaml:1  a character that YAML does not allow: special characters are not allowed"),
        ("a: &x [*x]", "r.yaml:1  aliases (`*name`) expand to more than 30 levels"),
        ("a: &x {b: *x}", "r.yaml:1  aliases (`*name`) expand to more than 30 levels"),
        ("a: &x\n  <<: *x", "r.yaml:1  aliases (`*name`) expand to more than 30 levels"),
        ("[" * 5000, "r.yaml:1  more than 30 levels"),
        ("{a: " * 5000, "r.yaml:1  more than 30 levels"),
    ],
)  # fmt: skip
def test_what_is_no_yaml_or_too_much_of_it_is_one_problem(text: str, problem: str) -> None:
    assert read(text) == (None, [problem])


def test_an_escape_beyond_unicode_is_a_problem() -> None:
    entry, (problem,) = read('a: "\\UFFFFFFFF"')
    assert entry is None
    assert problem.startswith("r.yaml  not valid YAML: ")


def test_aliases_that_stand_for_a_billion_values_are_refused() -> None:
    names = "abcdefghi"
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{name}: &{name} [{', '.join([f'*{above}'] * 9)}]\n" for above, name in pairwise(names)
    )
    assert read(bomb) == (None, ["r.yaml:1  aliases (`*name`) expand to more than 20000 values"])


def test_aliases_and_merge_keys_work() -> None:
    text = "x: &x {p: 1, q: 2}\ny: {<<: *x, q: 3}\nz: {<<: [*x, {p: 5, r: 6}]}\nw: *x\n"
    assert value(text) == {
        "x": {"p": 1, "q": 2},
        "y": {"p": 1, "q": 3},
        "z": {"p": 1, "r": 6, "q": 2},
        "w": {"p": 1, "q": 2},
    }


def test_a_quoted_merge_key_is_a_key() -> None:
    assert value('{"<<": 1}') == {"<<": 1}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("b:\n  a: 1\n  c: 2\n  a: 3", "r.yaml:4  b.a: given twice, first on line 2. Keep one of them"),
        ("x: &x {a: 1}\n<<: *x\n<<: *x", "r.yaml:3  <<: given twice, first on line 2. Keep one of them"),
        ("{a: 1, 'a': 2}", "r.yaml:1  a: given twice, first on line 1. Keep one of them"),
        ("a: !!python/object/apply:os.system [x]", f"r.yaml:1  a: the tag !!python/object/apply:os.system {REFUSED}"),
        ("a: !!python/name:os.system", f"r.yaml:1  a: the tag !!python/name:os.system {REFUSED}"),
        ("a: !mine {b: 1}", f"r.yaml:1  a: the tag !mine {REFUSED}"),
        ("a: !!set {b, c}", f"r.yaml:1  a: the tag !!set {REFUSED}"),
        ("a: !!binary aGk=", f"r.yaml:1  a: the tag !!binary {REFUSED}"),
        ("a: !!int abc", "r.yaml:1  a: 'abc' is not a value that can be used as !!int"),
        ("a: !!bool abc", "r.yaml:1  a: 'abc' is not a value that can be used as !!bool"),
        ("a: 9223372036854775808", "r.yaml:1  a: '9223372036854775808' is not a value that can be used as !!int"),
        ("a: 0x" + "f" * 5000, f"r.yaml:1  a: '0x{'f' * 38}…' is not a value that can be used as !!int"),
        ("a: " + "9" * 5000, f"r.yaml:1  a: '{'9' * 40}…' is not a value that can be used as !!int"),
        ('a: "\\ud800"', "r.yaml:1  a: '\\ud800' is not a value that can be used as !!str"),
        ('a: "x\\0"', "r.yaml:1  a: 'x\\x00' is not a value that can be used as !!str"),
        ('"x\\0": 1', "r.yaml:1  the key 'x\\x00' holds a character that is not text"),
        ("a:\n  ? [b]\n  : 1", "r.yaml:2  a: a key must be a plain word, not a list, a mapping or a tag"),
        ("? {a: 1}\n: 2", "r.yaml:1  a key must be a plain word, not a list, a mapping or a tag"),
        ("y: {<<: 5}", "r.yaml:1  y.<<: must name a mapping, such as `<<: *defaults`"),
    ],
)  # fmt: skip
def test_a_bad_value_is_a_problem_and_the_rest_is_read(text: str, problem: str) -> None:
    entry, problems = read(f"{text}\n")
    assert problems == [problem]
    assert entry is not None


def test_several_bad_values_are_reported_together() -> None:
    _, problems = read("a: !x 1\nb: 1\nb: 2\nc: !!int x\n")
    assert [problem.partition("  ")[0] for problem in problems] == ["r.yaml:1", "r.yaml:3", "r.yaml:4"]


def test_of_two_equal_keys_the_first_is_kept() -> None:
    entry, _ = read("a: 1\na: 2")
    assert entry is not None
    assert entry.plain() == {"a": 1}


def test_a_value_of_the_command_line_has_its_key_and_no_line() -> None:
    problems: list[Problem] = []
    assert read_yaml("[1", "command line", problems, above=("a", "b"), has_lines=False) is None
    entry = read_yaml("{c: 1, c: 2}", "command line", problems, above=("a", "b"), has_lines=False)
    assert [str(problem) for problem in problems] == [
        "command line  a.b: not valid YAML: "
        "expected ',' or ']', but got '<stream end>' (while parsing a flow sequence)",
        "command line  a.b.c: given twice. Keep one of them",
    ]
    assert entry is not None
    assert entry.nearest(("c",))[0].line == 0


@pytest.mark.parametrize("text", ["%m/%d/%Y", "%Y-%m-%d", "%Y", "%", "@x", "`x"])
def test_text_of_the_command_line_has_to_stand_in_quotes_that_outlast_the_shell(text: str) -> None:
    problems: list[Problem] = []
    assert read_yaml(text, "command line", problems, above=("data", "time_format"), has_lines=False) is None
    [problem] = problems
    _, example = str(problem).split(f". {IN_QUOTES} -o ")
    [argument] = shlex.split(example)
    key, _, quoted = argument.partition("=")
    assert (key, value(quoted)) == ("data.time_format", "%m/%d/%Y")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", ("", "is empty. A recipe has at least the sections run, task and data")),
        (b"# only a comment\n", ("", "is empty. A recipe has at least the sections run, task and data")),
        (b"- a\n", (":1", "must consist of sections (`run:`, `task:`, `data:`), not of a list or text")),
        (b"a: 1\nb: \xff\n", (":2", "is not UTF-8: byte 0xff. Save the file as UTF-8")),
        ("a: ü".encode("utf-16"), (":1", "is not UTF-8: byte 0xff. Save the file as UTF-8")),
        (b"#" * (MAX_BYTES + 1), ("", "is larger than 256 KiB: this is not a recipe")),
    ],
)  # fmt: skip
def test_a_file_that_is_no_recipe_is_one_problem(tmp_path: Path, content: bytes, problem: tuple[str, str]) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(content)
    problems: list[Problem] = []
    assert read_yaml_file(str(path), problems) is None
    assert [str(found) for found in problems] == [f"{path}{problem[0]}  {problem[1]}"]


def test_a_file_that_cannot_be_opened_is_one_problem(tmp_path: Path) -> None:
    problems: list[Problem] = []
    paths = [str(tmp_path), str(tmp_path / "none.yaml"), f"{tmp_path}/a\0b", f"{tmp_path}/{'x' * 300}"]
    assert [read_yaml_file(path, problems) for path in paths] == [None] * 4
    assert [problem.message for problem in problems] == [
        "cannot be read: Is a directory",
        "there is no such file",
        "cannot be read: embedded null byte",
        "cannot be read: File name too long",
    ]


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb:\r\n  c: x\r\n")
    entry = read_yaml_file(str(path), [])
    assert entry is not None
    assert entry.plain() == {"a": 1, "b": {"c": "x"}}
    assert entry.nearest(("b", "c"))[0].line == 3


def test_what_no_yaml_could_say_cannot_come_from_a_program() -> None:
    assert from_python({"a": (1, None), "b": Path("x/y")}, "p").plain() == {"a": [1, None], "b": "x/y"}
    with pytest.raises(TypeError, match="a recipe cannot hold a set"):
        from_python({"a": {1}}, "p")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", "5"), ("1.50", "1.50"), ("abc", "'abc'"), ("true", "true"), ("no", "no, which YAML reads as false"),
        ("~", "null"), ("", "nothing"), ("{a: 1}", "a section"), ("[1, 2]", "a list of 2"), ("x" * 80, f"'{'x' * 58}…"),
    ],
)  # fmt: skip
def test_a_value_is_shown_as_it_was_typed_and_short(text: str, expected: str) -> None:
    entry, _ = read(f"a: {text}")
    assert entry is not None
    assert shown(entry.nearest(("a",))[0]) == expected
