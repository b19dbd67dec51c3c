"""YAML text as a tree of values that know where they stand.

PyYAML's `safe_load` gives no line numbers and keeps the last of two equal keys without a word; here the nodes of
`yaml.compose` are turned into entries instead. Only plain data comes out of it: tags that would build anything else
are refused, and aliases are expanded within limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, final

import yaml
from yaml.constructor import SafeConstructor

from paddle_stable.errors import Problem

Scalar = str | int | float | bool | None
KeyPath = tuple[str | int, ...]

MAX_BYTES = 262_144
"""A recipe is a page of text: anything larger is some other file, and PyYAML would chew on it for minutes."""
MAX_DEPTH = 30
MAX_VALUES = 20_000
"""After expanding aliases, which can stand for 10^9 values in ten lines."""

_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = {_TAG + name for name in ("str", "timestamp", "value", "merge")}
_SCALAR_TAGS = _TEXT_TAGS | {_TAG + name for name in ("null", "bool", "int", "float")}
# YAML 1.1 reads 1:30 as 90 and 010 as 8, which nobody means: they stay text, and a number field then says so.
_SURPRISING_NUMBER = re.compile(r"[-+]?(\d[\d_]*:.*|0[\d_]+)")


@final
@dataclass(slots=True)
class Entry:
    """One value of a YAML text and where it stands."""

    value: Scalar | dict[str, Entry] | list[Entry]
    file: str
    """Path as the user gave it, or "command line"."""
    line: int = 0
    """1-based line of its key, or of the list item; 0 when there are no lines."""
    written: str | None = None
    """A scalar without quotes as it was typed, before YAML decided on a type."""
    refused: bool = False
    """A problem has been reported for it already; nothing else that is said of it would be true."""

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: entry.plain() for key, entry in self.value.items()}
        if isinstance(self.value, list):
            return [entry.plain() for entry in self.value]
        return self.value

    def child(self, key: str | int) -> Entry | None:
        """The entry below `key` (a key of a mapping, or a position in a list), or None."""
        if isinstance(self.value, dict) and isinstance(key, str):
            return self.value.get(key)
        if isinstance(self.value, list) and isinstance(key, int) and 0 <= key < len(self.value):
            return self.value[key]
        return None

    def nearest(self, path: Sequence[str | int]) -> tuple[Entry, KeyPath]:
        """The deepest entry on the way to `path`, and the part of the path that leads to it."""
        entry = self
        for depth, key in enumerate(path):
            below = entry.child(key)
            if below is None:
                return entry, tuple(path[:depth])
            entry = below
        return entry, tuple(path)


def dotted(path: Sequence[str | int]) -> str:
    """`("optim", "groups", 0)` → `optim.groups.0`."""
    return ".".join(str(part) for part in path)


def shown(entry: Entry) -> str:
    """A value as it is quoted in a message: as it was typed where that says more, and short."""
    match entry.value:
        case dict():
            return "a section"
        case list() as items:
            return f"a list of {len(items)}"
        case str():
            text = repr(entry.value)
        case None:
            text = "nothing" if entry.written == "" else "null"
        case bool() if entry.written is not None and entry.written.lower() not in ("true", "false"):
            text = f"{entry.written}, which YAML reads as {str(entry.value).lower()}"
        case bool():
            text = str(entry.value).lower()
        case _:
            text = entry.written or repr(entry.value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def from_python(value: Any, file: str) -> Entry:
    """An entry without lines, of a value made by a program.

    Raises:
        TypeError: `value` holds something that no YAML text could say.
    """
    match value:
        case Mapping():
            return Entry({str(key): from_python(item, file) for key, item in value.items()}, file)
        case list() | tuple():
            return Entry([from_python(item, file) for item in value], file)
        case PurePath():
            return Entry(str(value), file)
        case None | str() | bool() | int() | float():
            return Entry(value, file)
    raise TypeError(f"a recipe cannot hold a {type(value).__name__}: {value!r}")


def read_yaml_file(path: str, problems: list[Problem]) -> Entry | None:
    """Read a recipe's file. What is wrong goes into `problems`; None when nothing of it is usable."""
    text = _read_text(path, problems)
    root = None if text is None else read_yaml(text, path, problems)
    if root is None or isinstance(root.value, dict):
        return root
    if root.value is None:
        problems.append(Problem(path, 0, "is empty. A recipe has at least the sections run, task and data"))
    else:
        problems.append(Problem(path, 1, "must consist of sections (`run:`, `task:`, `data:`), not of a list or text"))
    return None


def _read_text(path: str, problems: list[Problem]) -> str | None:
    line = 0
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) <= MAX_BYTES:
            return raw.decode("utf-8-sig")
        message = f"is larger than {MAX_BYTES // 1024} KiB: this is not a recipe"
    except FileNotFoundError:
        message = "there is no such file"
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        message = f"is not UTF-8: byte 0x{error.object[error.start]:02x}. Save the file as UTF-8"
    except OSError as error:  # a folder, no permission
        message = f"cannot be read: {error.strerror}"
    except ValueError as error:  # a NUL byte in the name
        message = f"cannot be read: {error}"
    problems.append(Problem(path, line, message))
    return None


def read_yaml(
    text: str, file: str, problems: list[Problem], *, above: KeyPath = (), has_lines: bool = True
) -> Entry | None:
    """Turn one YAML document into entries. What is wrong goes into `problems`; None when it is no YAML at all.

    Args:
        above: the key whose value the text is; () for a whole recipe.
        has_lines: False for a value of the command line, where a line number would mean nothing.
    """
    reader = _Reader(file, has_lines, problems)
    try:
        _refuse_depth(text)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return Entry(None, file) if node is None else reader.entry(node, above, reader.line(node))
    except yaml.reader.ReaderError as error:
        line, message = text.count("\n", 0, error.position) + 1, f"a character that YAML does not allow: {error.reason}"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, message = (mark.line + 1 if mark else 0), _explain(error, has_lines)
    except _LimitError as error:
        line, message = error.line, str(error)
    except (ValueError, OverflowError) as error:  # PyYAML's scanner, on an escape such as "\UFFFFFFFF"
        line, message = 0, f"not valid YAML: {error}"
    where = f"{dotted(above)}: " if above else ""
    problems.append(Problem(file, line if has_lines else 0, where + message))
    return None


@final
class _LimitError(Exception):
    """The text is within YAML's rules and beyond ours."""

    def __init__(self, mark: Any, message: str) -> None:
        super().__init__(message)
        self.line: int = mark.line + 1


def _explain(error: yaml.MarkedYAMLError, has_lines: bool) -> str:
    problem = error.problem or ""
    if "'\\t'" in problem:
        return "a tab: YAML wants spaces here"
    if "single document" in (error.context or ""):
        return "a second document begins here (`---`): a recipe is one document"
    if "alias" in problem or "alias" in (error.context or ""):
        return f"not valid YAML: {problem}. Text that begins with * or & has to stand in quotes"
    # Alone, `%Y` is a whole directive, behind which a document would have to begin.
    is_directive = "directive" in (error.context or "") or "'<document start>', but found '<stream end>'" in problem
    if is_directive or "cannot start any token" in problem:
        # The shell takes the outer quotes away.
        example = '"%m/%d/%Y"' if has_lines else "-o 'data.time_format=\"%m/%d/%Y\"'"
        return f"not valid YAML: {problem}. Text that begins with %, @ or ` has to stand in quotes, such as {example}"
    context = ""
    if error.context:
        # An unclosed quote or bracket is noticed at the end of the file; what helps is where it was opened.
        begin = f", from line {error.context_mark.line + 1}" if error.context_mark and has_lines else ""
        context = f" ({error.context}{begin})"
    return f"not valid YAML: {problem}{context}"


def _refuse_depth(text: str) -> None:
    """`yaml.compose` recurses into every level: count them first, on the stream of events, which does not."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise _LimitError(event.start_mark, f"more than {MAX_DEPTH} levels")


@final
class _Reader:
    """Turns the nodes of one document into entries."""

    def __init__(self, file: str, has_lines: bool, problems: list[Problem]) -> None:
        self._file = file
        self._has_lines = has_lines
        self._problems = problems
        self._values = 0

    def line(self, node: yaml.Node) -> int:
        return node.start_mark.line + 1 if self._has_lines else 0

    def entry(self, node: yaml.Node, path: KeyPath, line: int) -> Entry:
        """`line` is that of the key, which for an alias is not where the node stands."""
        self._values += 1
        # The depth also ends an alias that contains itself.
        if self._values > MAX_VALUES or len(path) > MAX_DEPTH:
            limit = f"{MAX_VALUES} values" if self._values > MAX_VALUES else f"{MAX_DEPTH} levels"
            raise _LimitError(node.start_mark, f"aliases (`*name`) expand to more than {limit}")
        match node:
            case yaml.MappingNode() if node.tag == _TAG + "map":
                return Entry(self._mapping(node, path), self._file, line)
            case yaml.SequenceNode() if node.tag == _TAG + "seq":
                items = [self.entry(item, (*path, i), self.line(item)) for i, item in enumerate(node.value)]
                return Entry(items, self._file, line)
            case yaml.ScalarNode():
                return self._scalar(node, path, line)
        return self._refuse(path, line, _tag_message(node.tag))

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Entry]:
        own: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        first_line: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = self.line(key_node)
            if not isinstance(key_node, yaml.ScalarNode) or not key_node.tag.startswith(_TAG):
                self._refuse(path, line, "a key must be a plain word, not a list, a mapping or a tag")
                continue
            key = key_node.value
            if not _is_clean(key):
                self._refuse(path, line, f"the key {key!r} holds a character that is not text")
                continue
            if key in first_line:
                first = f", first on line {first_line[key]}" if self._has_lines else ""
                self._refuse((*path, key), line, f"given twice{first}. Keep one of them")
                continue
            first_line[key] = line
            if key_node.tag == _TAG + "merge":
                merged = self._merged(value_node, path, line)
            else:
                own[key] = self.entry(value_node, (*path, key), line)
        return {**merged, **own}

    def _merged(self, node: yaml.Node, path: KeyPath, line: int) -> dict[str, Entry]:
        """What `<<: *anchor` or `<<: [*first, *second]` brings; the first of several wins, as YAML says."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Entry] = {}
        for source in reversed(sources):
            entry = self.entry(source, (*path, "<<"), line)
            if isinstance(entry.value, dict):
                merged.update(entry.value)
            elif not entry.refused:
                self._refuse((*path, "<<"), line, "must name a mapping, such as `<<: *defaults`")
        return merged

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath, line: int) -> Entry:
        written = node.value if node.style is None else None
        if node.tag not in _SCALAR_TAGS:
            return self._refuse(path, line, _tag_message(node.tag))
        try:
            value = _scalar_value(node)
        except (ValueError, KeyError):
            shown = node.value if len(node.value) <= 40 else node.value[:40] + "…"
            return self._refuse(path, line, f"{shown!r} is not a value that can be used as {_readable(node.tag)}")
        return Entry(value, self._file, line, written)

    def _refuse(self, path: KeyPath, line: int, message: str) -> Entry:
        where = f"{dotted(path)}: " if path else ""
        self._problems.append(Problem(self._file, line, where + message))
        return Entry(None, self._file, line, refused=True)


def _scalar_value(node: yaml.ScalarNode) -> Scalar:
    """The value of a scalar by its tag.

    Raises:
        ValueError, KeyError: the text does not fit the tag.
    """
    text = node.value
    bare = text.replace("_", "").lower()
    kind = node.tag.removeprefix(_TAG)
    if node.tag in _TEXT_TAGS or (kind in ("int", "float") and _SURPRISING_NUMBER.fullmatch(text)):
        if not _is_clean(text):
            raise ValueError(text)
        return str(text)
    match kind:
        case "null":
            return None
        case "bool":
            return bool(SafeConstructor.bool_values[text.lower()])
        case "int":
            value = int(bare, 0)
            if abs(value) >= 2**63:
                raise ValueError(text)
            return value
    # YAML writes a point before inf and nan.
    return float(re.sub(r"^([-+]?)\.(inf|nan)$", r"\1\2", bare))


def _is_clean(text: str) -> bool:
    """Whether no lone surrogate and no NUL byte is in it: neither can stand in a path, in JSON or on a screen."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _tag_message(tag: str) -> str:
    return f"the tag {_readable(tag)} is not allowed: a recipe holds plain data only"


def _readable(tag: str) -> str:
    return "!!" + tag.removeprefix(_TAG) if tag.startswith(_TAG) else tag
