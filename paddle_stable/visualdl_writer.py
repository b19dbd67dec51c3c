"""VisualDL's record file, made from the records of metrics.jsonl.

VisualDL's own `LogWriter` is not used: it writes from a background thread that prints and swallows errors, flushes
when it likes, opens every existing file with one more header, and cannot replace a file while it is shown. The same
bytes are made here from the parts it consists of (`visualdl.component`, `RecordWriter`), in one write a record.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, final

import numpy as np

from paddle_stable.errors import InputError
from paddle_stable.metrics_log import Histogram, HyperParameters, Image, Record, Scalars, Text

FILE_NAME = "vdlrecords.run.log"
"""VisualDL shows one file of a folder, the last one by name, and only with `vdlrecords` in its name."""

_logger = logging.getLogger(__name__)


@final
class VisualDLFile:
    """The record file of one run folder, open for appending."""

    def __init__(self, folder: Path, records: Iterable[Record]) -> None:
        """Make the file anew from records, put it in place of an older one, and stay open for more.

        It is written aside and renamed, so that a kill in between leaves the older file. Its name and its bytes are
        those that an uninterrupted run would have written: a VisualDL server that is showing the folder goes on
        reading where it was, and shows no step twice.

        Args:
            folder: run folder, also the place that the paths of images are relative to.
            records: what has been plotted so far.

        Raises:
            InputError: as `load_visualdl`.
        """
        load_visualdl()
        self._folder = folder
        path = folder / FILE_NAME
        # A name that VisualDL passes over.
        aside = folder / ".visualdl-being-made"
        with aside.open("wb") as file:
            file.write(_framed([_header()]))
            for record in records:
                file.write(_framed(self._messages(record)))
        aside.replace(path)
        # Unbuffered: a server that reads while this run writes must not see half a record.
        self._file = path.open("ab", buffering=0)

    def add(self, record: Record) -> None:
        """Append a record."""
        framed = _framed(self._messages(record))
        if framed:
            self._file.write(framed)

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self._file.close()

    def _messages(self, record: Record) -> Iterator[Any]:
        """VisualDL's messages for a record: a function of the record alone, so that a file can be made again."""
        from visualdl.component import base_component as make

        step, when = record.step, record.time
        match record:
            case Scalars():
                for tag, value in record.scalars.items():
                    yield make.scalar(tag, value, step, when)
            case Histogram():
                if record.counts:
                    edges = np.linspace(record.low, record.high, len(record.counts) + 1)
                    yield make.histogram(record.tag, record.counts, edges, step, when)
            case Text():
                yield make.text(record.tag, record.text, step, when)
            case Image():
                yield from self._image(record)
            case HyperParameters():
                # VisualDL takes a metric's value from the curve of the same name.
                names = [f"final/{name}" for name in record.metrics]
                yield make.hparam(self._folder.name, record.values, names, when)
                for name, value in record.metrics.items():
                    yield make.scalar(f"final/{name}", value, step, when)

    def _image(self, record: Image) -> Iterator[Any]:
        from PIL import Image as Picture
        from visualdl.component import base_component as make

        path = self._folder / record.path
        try:
            with Picture.open(path) as picture:
                pixels = np.array(picture.convert("RGB"))
        except OSError as error:
            # The curves must not depend on a picture that somebody has deleted.
            _logger.warning("%s cannot be shown in VisualDL: %s", path, error)
            return
        yield make.image(record.tag, pixels, record.step, record.time)


def load_visualdl() -> None:
    """Import VisualDL, which creates a settings folder in the home directory as it is imported.

    Raises:
        InputError: when that folder cannot be written.
    """
    try:
        import visualdl.component.base_component  # noqa: F401
    except OSError as error:
        raise InputError.single(
            str(error.filename), f"VisualDL keeps its settings there: {error.strerror}. Set HOME to a writable folder"
        ) from error


def _header() -> Any:
    from visualdl.component import base_component as make

    # Of fixed time, like everything that a rebuilt file has to repeat.
    return make.meta_data(walltime=0)


def _framed(messages: Iterable[Any]) -> bytes:
    """Messages as they stand in a record file: each behind its length."""
    from visualdl.writer.record_writer import RecordWriter

    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    for message in messages:
        writer.write(message.SerializeToString())
    return buffer.getvalue()
