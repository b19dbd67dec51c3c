"""What a recipe says of a series: the file, its columns, where the splits begin, and what to do with bad rows."""

from __future__ import annotations

import contextlib
import re
from datetime import date, datetime, timezone
from typing import Annotated, Literal, TypeAlias, cast, final

from pydantic import BeforeValidator, Field, PositiveInt, field_validator, model_validator

from paddle_stable.recipe import DataConfig, Section

Policy: TypeAlias = Literal["stop", "drop", "forward_fill", "keep"]
Kind: TypeAlias = Literal[
    "missing", "infinite", "text", "ragged", "repeated_time", "unordered_time", "jump", "undefined", "constant"
]
Transform: TypeAlias = Literal["value", "log", "log_return", "log_realised_volatility"]
TargetTransform: TypeAlias = Literal["value", "log_return", "log_realised_volatility"]


def _as_cut(value: object) -> object:
    """YAML reads an unquoted 2013-01-01 as a date, and 7e-1 as text."""
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            number = float(value)
            return number if 0.0 < number < 1.0 else value
    return value


Cut: TypeAlias = Annotated[int | float | str, BeforeValidator(_as_cut)]
"""Where a split begins: a fraction of the file's rows (0.7), a number of rows before it (8640), or a date."""


@final
class PolicyConfig(Section):
    """What to do with each kind of bad data. `stop` lists all of it by file and line before step 0.

    `drop` leaves the row out (its neighbours become consecutive), `forward_fill` repeats the column's last value
    (only the past is used, but for jumps: whether one comes back is seen in the rows after it), `keep` lets it through
    to the model as NaN or inf, or as it stands.
    """

    missing: Policy = "stop"
    """Empty cells, `.`, NA, NaN, null."""
    infinite: Policy = "stop"
    """inf and -inf."""
    text: Policy = "stop"
    """Anything else in a numeric column that is not a number; kept, it becomes NaN."""
    ragged: Literal["stop", "drop"] = "stop"
    """Rows with more or fewer cells than the header, or with a time that cannot be read."""
    repeated_time: Literal["stop", "drop", "keep"] = "stop"
    """A row with the time of the row before; `drop` keeps the first."""
    unordered_time: Literal["stop", "drop"] = "stop"
    """A row older than one before it."""
    jump: Policy = "keep"
    """A one-step change far beyond the usual: a wrong unit for a few rows, or a share split. `keep` warns.
    `drop` and `forward_fill` act on rows that jump away and come back within five rows; with either, windows across
    a jump that does not come back are left out."""
    undefined: Literal["stop", "drop", "keep"] = "stop"
    """A logarithm that does not exist: of a value that is not positive, of a volatility of rows that do not move.
    `drop` leaves the windows out that need it."""
    constant: Literal["stop", "drop", "keep"] = "stop"
    """A feature that never moves in the training rows; `drop` leaves the feature out, `keep` feeds zeros."""
    scope: Literal["train", "all"] = "train"
    """train: bad values in dev and test rows always stop, so that the evaluation never changes silently.
    all: `drop` and `forward_fill` work there too, and the run says how many rows changed. `keep` never lets a NaN
    into dev or test."""

    def of(self, kind: Kind) -> Policy:
        """The policy for one kind of finding."""
        return cast(Policy, self.model_dump()[kind])


@final
class FeatureConfig(Section):
    """One input of the network at every row, computed from that row and rows before it, never from later ones."""

    column: str
    """Column of the file."""
    transform: Transform = "value"
    """log_return: log of the value over the value `rows` rows ago. log_realised_volatility: log of the root mean
    square of the last `rows` one-row log returns."""
    rows: PositiveInt = 1
    """How far `log_return` and `log_realised_volatility` look back."""

    @property
    def name(self) -> str:
        """Such as `log_return(Close, 5)`."""
        match self.transform:
            case "value":
                return self.column
            case "log":
                return f"log({self.column})"
            case _:
                return f"{self.transform}({self.column}, {self.rows})"

    @property
    def reach(self) -> int:
        """Rows before its own that it needs."""
        return self.rows if self.transform in ("log_return", "log_realised_volatility") else 0


def _refuse_bad_format(text: str) -> None:
    """Raise ValueError for what strptime cannot read back from what it wrote, or what names no day, month or year."""
    moment = datetime(2003, 5, 17, 16, 45, 30, tzinfo=timezone.utc)
    month, year = datetime(2003, 5, 1), datetime(2003, 1, 1)
    try:
        read = datetime.strptime(moment.strftime(text), text)
    except (ValueError, re.error) as error:
        raise ValueError(f"expected a format of strptime such as %Y-%m-%d, got {text!r} ({error})") from error
    if read.date() != moment.date() and read not in (month, year):
        expected = "a format with the year, and with what is above the smallest unit in it, such as %Y-%m-%d or %Y-%m"
        raise ValueError(f"expected {expected}, got {text!r}")


@final
class SeriesConfig(DataConfig):
    """Windows over one CSV file, in the order of time."""

    file: str
    """CSV file, `.csv.gz` too, one row a time step, oldest first."""
    header: bool = True
    """Whether the first line names the columns; without, they are called column_1, column_2, ..."""
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    """What separates two cells."""
    time_column: str | None = None
    """Column with the time of a row; null: the file has none, and rows count as equally spaced and in order."""
    time_format: str | None = None
    """As for strptime, such as "%m/%d/%Y", or "%Y-%m" for months; null: ISO 8601, such as 2003-05-01 or
    2003-05-01 16:00:00."""
    features: tuple[FeatureConfig, ...] | None = None
    """Inputs; null: every column but the time, as it stands."""
    target_column: str
    """Column to forecast."""
    target_transform: TargetTransform = "value"
    """What is forecast of it. value: the next `horizon` values. log_return: log of each of the next `horizon` values
    over the last known one. log_realised_volatility: one number, the log of the root mean square of the next
    `horizon` one-row log returns."""
    lookback: PositiveInt = 32
    """Rows that the network sees."""
    horizon: PositiveInt = 1
    """Rows ahead that it forecasts."""
    stride: PositiveInt = 1
    """Rows between the beginnings of two training windows. Dev and test use every row."""
    dev_from: Cut = 0.7
    """First row of dev: a fraction of all rows, a number of rows before it, or a date. Rows before are train."""
    test_from: Cut | None = 0.85
    """First row of test; null: no test split."""
    until: Cut | None = None
    """First row that is not used any more; null: the file's end."""
    scaling: Literal["standard", "robust"] = "standard"
    """standard: mean and standard deviation; robust: median and interquartile range. Fitted on train rows."""
    policy: PolicyConfig = PolicyConfig()
    """What to do with bad rows."""

    @field_validator("time_format")
    @classmethod
    def _is_a_format_of_time(cls, value: str | None) -> str | None:
        if value is not None:
            _refuse_bad_format(value)
        return value

    @field_validator("dev_from", "test_from", "until")
    @classmethod
    def _cut_is_possible(cls, value: int | float | str | None) -> int | float | str | None:
        if isinstance(value, str):
            try:
                datetime.fromisoformat(value)
            except ValueError as error:
                expected = "a fraction, a number of rows or a date like 2013-01-01"
                raise ValueError(f"must be {expected}, got {value!r}") from error
        elif isinstance(value, float) and not 0.0 < value < 1.0:
            raise ValueError(f"a fraction of the rows must lie between 0 and 1, got {value}")
        elif isinstance(value, int) and value < 1:
            raise ValueError(f"a number of rows must be at least 1, got {value}")
        return value

    @model_validator(mode="after")
    def _belongs_together(self) -> SeriesConfig:
        cuts = (self.dev_from, self.test_from, self.until)
        if self.time_column is None and any(isinstance(cut, str) for cut in cuts):
            raise ValueError("dev_from, test_from and until can only be dates when time_column is given")
        if self.target_column == self.time_column:
            raise ValueError(f"target_column: must be a column of numbers, got the time_column {self.time_column!r}")
        if self.bad_samples != "stop":
            raise ValueError("bad_samples: a series has `policy` instead, with one answer for each kind of bad row")
        if self.features == ():
            raise ValueError("features: needs at least one; null takes every column")
        return self
