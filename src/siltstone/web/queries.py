"""The query strings that several routes take, as models: FastAPI checks and describes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from siltstone.base.clock import iso_ms
from siltstone.base.errors import SiltstoneError, UsageError
from siltstone.commands.browsing import PAGE_RECORDS, PAGE_RECORDS_MAX, RecordQuery
from siltstone.commands.catalogue import PAGE_MAX, PAGE_ROWS, TopicQuery
from siltstone.commands.decoding import Decoding, check_decoding

_DIGITS = re.compile(r"-?[0-9]+(\.0+)?")
_TRUTHS = {"true": True, "false": False}


def _number(value: object) -> object:
    """The value, which pydantic parses next. Raises ValueError for a text that is no whole number."""
    if isinstance(value, str) and not _DIGITS.fullmatch(value):
        raise ValueError("it is a whole number, in digits")
    return value


def _truth(value: object) -> object:
    """The value, a text as a bool. Raises ValueError for a text that is neither true nor false."""
    if not isinstance(value, str):
        return value
    if value.lower() not in _TRUTHS:
        raise ValueError("it is true or false")
    return _TRUTHS[value.lower()]


DIGITS = BeforeValidator(_number)
"""For a number in a path or a query; if it has bounds, after ``Field(ge=…)``. pydantic alone would take
``1_000`` and `` 7``. ``7.0`` is 7, as in JSON."""
IntText = Annotated[int, DIGITS]
"""A whole number in a path or a query."""
BoolText = Annotated[bool, BeforeValidator(_truth)]
"""``true`` or ``false`` in a query (also as Python writes them); pydantic alone takes ``1`` and ``yes``."""


def isolation_of(*, committed: bool) -> str:
    """The isolation level of a form's box *only committed*."""
    return "read_committed" if committed else "read_uncommitted"


def is_whole_number(text: str, digits_max: int = 9) -> bool:
    """Is the text of a field a whole number from 0 on, in at most ``digits_max`` ASCII digits?"""
    return text.isascii() and text.isdigit() and len(text) <= digits_max


class ConsoleForm(BaseModel):
    """A form of the console that knows which of its fields was refused, so that its page shows the reason
    beside it."""

    _refused: str = PrivateAttr("")

    @property
    def refused_field(self) -> str:
        """The name of the field that was refused, "" if none was, or none alone."""
        return self._refused

    @contextmanager
    def field(
        self, name: str, kinds: type[SiltstoneError] | tuple[type[SiltstoneError], ...] = SiltstoneError
    ) -> Iterator[None]:
        """What is raised inside refuses this field, if it is of these ``kinds``."""
        try:
            yield
        except kinds:
            self._refused = name
            raise


class TopicParameters(BaseModel):
    """Which topics of the list, in which order; see ``commands.catalogue.TopicQuery``."""

    sort: str = "name"
    descending: BoolText = False
    contains: str = ""
    policy: str = ""
    state: str = ""
    internal: BoolText = True
    start: IntText = Field(default=0, ge=0)
    count: IntText = Field(default=PAGE_ROWS, ge=1, le=PAGE_MAX)

    def query(self) -> TopicQuery:
        """The query that ``commands.catalogue`` takes."""
        return TopicQuery(
            sort=self.sort,
            descending=self.descending,
            contains=self.contains,
            policy=self.policy,
            state=self.state,
            with_internal=self.internal,
            start=self.start,
            count=self.count,
        )


class DecodingParameters(BaseModel):
    """How keys and values are shown."""

    key_decoding: str = "auto"
    value_decoding: str = "auto"

    def decodings(self) -> tuple[Decoding, Decoding]:
        """The decodings of keys and of values, as ``commands.browsing`` takes them. Raises UsageError."""
        return check_decoding(self.key_decoding), check_decoding(self.value_decoding)


class _ChosenRecords(DecodingParameters):
    """Which records of a topic; see ``commands.browsing.RecordQuery``. Keys and texts are UTF-8."""

    partition: list[Annotated[int, Field(ge=0), DIGITS]] | None = None
    offset: IntText | None = None
    from_ms: IntText | None = None
    key: str | None = None
    key_contains: str | None = None
    value_contains: str | None = None
    tombstones: BoolText = False
    view: str = "log"
    isolation: str = "read_uncommitted"
    limit: IntText = Field(default=PAGE_RECORDS, ge=1, le=PAGE_RECORDS_MAX)
    cursor: str | None = None

    def query(self) -> RecordQuery:
        """The query that ``commands.browsing`` takes. Raises UsageError."""
        of_keys, of_values = self.decodings()
        return RecordQuery(
            partitions=None if self.partition is None else tuple(self.partition),
            start_offset=self.offset,
            start_ms=self.from_ms,
            key=_bytes(self.key),
            key_contains=_bytes(self.key_contains),
            value_contains=_bytes(self.value_contains),
            only_tombstones=self.tombstones,
            view=self.view,  # type: ignore[arg-type]  # browsing refuses an unknown one
            isolation=self.isolation,
            limit=self.limit,
            key_decoding=of_keys,
            value_decoding=of_values,
        )


class RecordParameters(_ChosenRecords):
    """A page of records."""

    until_ms: IntText | None = None
    last: IntText | None = None

    def query(self) -> RecordQuery:
        """The query that ``commands.browsing`` takes. Raises UsageError."""
        return replace(super().query(), end_ms=self.until_ms, last=self.last)


class StreamParameters(_ChosenRecords):
    """A stream of records, in the order of the log. ``cursor``: the ``id`` after which it continues;
    ``wait``: for new records."""

    model_config = ConfigDict(extra="forbid")
    wait: BoolText = True

    def query(self) -> RecordQuery:
        """The query that ``commands.browsing`` takes. Raises UsageError."""
        return replace(super().query(), newest_first=False)


class RecordForm(ConsoleForm):
    """The form of the records page: all its fields are texts or ticks. ``time``: as an input of the type
    ``datetime-local`` has it, in UTC; ``part``: in which part of a record ``contains`` is searched;
    ``any_partition``: ``key`` is searched in all partitions, not only in that of its hash."""

    partition: str = ""
    position: str = "last"
    offset: str = ""
    time: str = ""
    key: str = ""
    any_partition: bool = False
    part: str = "value"
    contains: str = ""
    tombstones: bool = False
    committed: bool = False
    control: bool = False
    view: str = "log"
    key_decoding: str = "auto"
    value_decoding: str = "auto"
    cursor: str = ""

    def query(self) -> RecordQuery:
        """The query that ``commands.browsing`` takes. Raises UsageError."""
        searched = _bytes(self.contains or None)
        query = RecordQuery(
            partitions=(self._whole("partition"),) if self.partition else None,
            key=_bytes(self.key or None),
            any_partition=self.any_partition,
            key_contains=searched if self.part == "key" else None,
            header_contains=searched if self.part == "header" else None,
            value_contains=searched if self.part not in ("key", "header") else None,
            only_tombstones=self.tombstones,
            isolation=isolation_of(committed=self.committed),
            control_records=self.control,
            view=self.view,  # type: ignore[arg-type]  # browsing refuses an unknown one
            key_decoding=check_decoding(self.key_decoding),
            value_decoding=check_decoding(self.value_decoding),
        )
        if self.position in ("offset", "time") and not getattr(self, self.position):
            with self.field(self.position):
                raise UsageError(
                    f"the {self.position} to begin from is missing",
                    advice=f"write the {self.position}, or begin from the start or with the last records",
                )
        if self.position == "offset":
            return replace(query, start_offset=self._whole("offset"))
        if self.position == "time":
            return replace(query, start_ms=self._milliseconds())
        if self.position == "last" and query.view == "log" and query.key is None:
            return replace(query, last=PAGE_RECORDS)
        return query

    def _whole(self, name: str) -> int:
        """The whole number, from 0 on, in a field. Raises UsageError."""
        text = str(getattr(self, name)).strip()
        with self.field(name):
            if not (is_whole_number(text, digits_max=19) and int(text) < 1 << 63):
                advice = "write a whole number from 0 on" + (
                    ", or nothing for all" if name != "offset" else ""
                )
                raise UsageError(f"{text[:32]!r} is no {name}", advice=advice)
        return int(text)

    def _milliseconds(self) -> int:
        """The time to begin from, in ms: in UTC, unless it has a zone of its own. Raises UsageError."""
        with self.field("time"):
            at_ms = iso_ms(self.time)
            if at_ms is None:
                advice = "write it as 2026-11-27T08:30"
                raise UsageError(f"{self.time[:32]!r} is no time", advice=advice)
        return at_ms

    def tail_query(self) -> RecordQuery:
        """The query that follows new records: of the log, and without a position, since it begins with the
        next record. Raises UsageError."""
        return self.model_copy(update={"position": "start", "view": "log"}).query()

    def api_parameters(self) -> dict[str, object]:
        """The query parameters that ask the REST API for the same, as far as it can. Raises UsageError."""
        query, searched = self.query(), self.contains
        return {
            "partition": self.partition,
            "offset": query.start_offset,
            "from_ms": query.start_ms,
            "last": query.last,
            "key": self.key,
            "key_contains": searched if query.key_contains else "",
            "value_contains": searched if query.value_contains else "",
            "tombstones": "true" if self.tombstones else "",
            "view": self.view if self.view != "log" else "",
            "isolation": query.isolation if self.committed else "",
        }


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")
