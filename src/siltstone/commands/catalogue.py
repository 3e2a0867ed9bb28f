"""The catalogue of a server: a row for each topic and each partition, in columns, replaced as a whole.

::

    Watch (files, no lock) ─ refresh, in a thread ─► Catalogue: topics, partitions, totals, ``at_ms``
                                                         ▲
    requests ────────────────── sort, filter, page ──────┘

A request never waits for the files: it gets the newest catalogue with its age. The states are the nine of
``clean --watch``. While the directories are read for the first time, the rows that were not read yet are
``skipped``, for the reason ``watch.NOT_READ``.

A refresh reads a partition again only if its directory or its active segment has changed, its checkpoint has
moved, its settings are other ones, or its state depends on the time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from siltstone.base.clock import Clock
from siltstone.base.closing import Closing
from siltstone.base.config import Config
from siltstone.base.errors import SiltstoneError, UnknownTopicError, UsageError
from siltstone.commands.directories import INTERNAL_TOPICS
from siltstone.commands.watch import (
    SKIPPED,
    STATES,
    UNCLEANABLE,
    Watch,
    WatchedLog,
    WatchedTopic,
    WatchSnapshot,
)
from siltstone.log.names import TopicPartition

PAGE_ROWS, PAGE_MAX = 50, 500
UNKNOWN = -1
"""In a column of numbers: not known."""
_CODE = {state: number for number, state in enumerate(STATES)}
_logger = logging.getLogger("siltstone")
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """One topic: sums over its partitions, the most urgent state of them, and the settings that matter.

    ``dirty_ratio``: of the dirtiest partition. Settings are None if they are not known; ``records``: those
    that are stored, None until they were counted; ``saved_bytes_7d``: what cleanings of the last seven days
    have removed. ``last_cleaning_ms``: when the newest cleaning began.
    """

    name: str
    topic_id: str | None
    partitions: int
    policy: str | None
    retention_ms: int | None
    retention_bytes: int | None
    min_dirty_ratio: float | None
    bytes: int
    clean_bytes: int
    dirty_bytes: int
    dirty_ratio: float
    records: int | None
    saved_bytes_7d: int | None
    last_cleaning_ms: int | None
    state: str
    reason: str
    is_internal: bool

    def to_json(self) -> dict[str, object]:
        """One object; unknown values are null."""
        return {name: getattr(self, name) for name in TopicRow.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One partition: its log as ``clean --watch`` sees it, its bytes also if the topic is not compacted, and
    the records that are stored, None until they were counted."""

    watched: WatchedLog
    bytes: int
    segments: int
    records: int | None

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return self.watched.topic_partition

    def to_json(self) -> dict[str, object]:
        """The keys of ``clean --watch``, with bytes, segments and records of every log."""
        sizes = {"bytes": self.bytes, "segments": self.segments, "records": self.records}
        return {**self.watched.to_json(), **sizes}


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueTotals:
    """Sums over all logs; ``states`` counts logs."""

    topics: int = 0
    partitions: int = 0
    bytes: int = 0
    clean_bytes: int = 0
    dirty_bytes: int = 0
    uncleanable_bytes: int = 0
    states: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """One object."""
        return {name: getattr(self, name) for name in CatalogueTotals.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What other parts of a server know of partitions: stored records, and bytes saved in seven days."""

    records: Mapping[TopicPartition, int] = field(default_factory=dict)
    saved_bytes_7d: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """All topics and partitions at ``at_ms``, sorted by name.

    ``watched``: a log for each partition; ``sizes``: (bytes, segments) of each; ``topics``: by name. The
    columns are arrays with a row a partition, or a row a topic. ``error``: why the last refresh failed; the
    rows are older then. ``notes``: on the directories, for display. ``is_complete``: False while the
    directories are read for the first time. ``seconds``: how long the refresh took.
    """

    at_ms: int
    watched: Sequence[WatchedLog] = ()
    topics: Mapping[str, WatchedTopic] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)
    notes: tuple[str, ...] = ()
    directories: Mapping[str, bool] = field(default_factory=dict)
    error: str | None = None
    is_complete: bool = False
    seconds: float = 0.0

    @cached_property
    def names(self) -> list[str]:
        """The topics' names, in order."""
        return sorted(self.topics)

    @cached_property
    def _row_of_topic(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.names)}

    @cached_property
    def partition_columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """By name a column with a row a partition: ``topic`` is the topic's row, ``state`` the state's place
        in ``STATES``; unknown numbers are ``UNKNOWN``."""
        logs, count = self.watched, len(self.watched)
        row_of = self._row_of_topic

        def column(values: Iterable[int], kind: Any = np.int64) -> npt.NDArray[Any]:
            return np.fromiter(values, kind, count)

        ranges = [None if log.snapshot is None else log.snapshot.range for log in logs]
        records, saved = self.facts.records, self.facts.saved_bytes_7d
        clean = column(0 if bounds is None else bounds.clean_bytes for bounds in ranges)
        dirty = column(0 if bounds is None else bounds.cleanable_bytes for bounds in ranges)
        return {
            "topic": column(row_of[log.topic_partition.topic] for log in logs),
            "partition": column(log.topic_partition.partition for log in logs),
            "state": column((_CODE[log.state] for log in logs), np.int8),
            "bytes": column(log.size for log in logs),
            "segments": column(log.segment_count for log in logs),
            "clean_bytes": clean,
            "dirty_bytes": dirty,
            "dirty_ratio": dirty / np.maximum(clean + dirty, 1),
            "overdue_ms": column(0 if bounds is None else bounds.overdue_ms for bounds in ranges),
            "records": column(records.get(log.topic_partition, UNKNOWN) for log in logs),
            "saved_bytes_7d": column(saved.get(log.topic_partition, UNKNOWN) for log in logs),
            "last_cleaning_ms": column(
                UNKNOWN if log.last_cleaning is None else log.last_cleaning.began_ms for log in logs
            ),
        }

    @cached_property
    def topic_columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """By name a column with a row a topic, in the order of ``names``."""
        of_partitions, count = self.partition_columns, len(self.names)
        topic = of_partitions["topic"]

        def total(name: str) -> Numbers:
            sums = np.zeros(count, np.int64)
            np.add.at(sums, topic, np.maximum(of_partitions[name], 0))
            return sums

        def most(name: str, start: float, kind: Any = np.int64) -> npt.NDArray[Any]:
            values = np.full(count, start, kind)
            np.maximum.at(values, topic, of_partitions[name])
            return values

        state = np.full(count, _CODE[SKIPPED], np.int8)
        np.minimum.at(state, topic, of_partitions["state"])
        columns: dict[str, npt.NDArray[Any]] = {
            "name": np.arange(count),
            "partitions": np.bincount(topic, minlength=count),
            "state": state,
            "dirty_ratio": most("dirty_ratio", 0, np.float64),
            "last_cleaning_ms": most("last_cleaning_ms", UNKNOWN),
            **{name: total(name) for name in ("bytes", "clean_bytes", "dirty_bytes")},
            **self._setting_columns(),
        }
        for name in ("records", "saved_bytes_7d"):
            unknown = np.zeros(count, bool)
            np.logical_or.at(unknown, topic, of_partitions[name] == UNKNOWN)
            columns[name] = np.where(unknown, UNKNOWN, total(name))
        return columns

    def _setting_columns(self) -> dict[str, npt.NDArray[Any]]:
        """The settings that lists show: -2 where they are not known."""
        known: dict[int, tuple[str, int, int, float]] = {}
        rows = []
        for name in self.names:
            config = self.topics[name].settings
            if isinstance(config, str):
                rows.append(("", -2, -2, -2.0))
                continue
            if id(config) not in known:  # topics without settings of their own share the broker's
                known[id(config)] = (
                    ",".join(config.policies),
                    config.integer("retention.ms"),
                    config.integer("retention.bytes"),
                    config.number("min.cleanable.dirty.ratio"),
                )
            rows.append(known[id(config)])
        policies = sorted({row[0] for row in rows})
        place = {policy: number for number, policy in enumerate(policies)}
        return {
            "policy": np.array([place[row[0]] for row in rows], np.int64),
            "retention_ms": np.array([row[1] for row in rows], np.int64),
            "retention_bytes": np.array([row[2] for row in rows], np.int64),
            "min_dirty_ratio": np.array([row[3] for row in rows], np.float64),
        }

    @cached_property
    def _first_rows(self) -> Numbers:
        """Where the partitions of each topic begin, and the end."""
        edges = np.searchsorted(self.partition_columns["topic"], np.arange(len(self.names) + 1))
        return edges.astype(np.int64)

    @cached_property
    def totals(self) -> CatalogueTotals:
        """Sums over all logs."""
        columns = self.partition_columns
        counts = np.bincount(columns["state"], minlength=len(STATES)).tolist()
        uncleanable = columns["state"] == _CODE[UNCLEANABLE]
        return CatalogueTotals(
            topics=len(self.names),
            partitions=len(self.watched),
            bytes=int(columns["bytes"].sum()),
            clean_bytes=int(columns["clean_bytes"].sum()),
            dirty_bytes=int(columns["dirty_bytes"].sum()),
            uncleanable_bytes=int(columns["bytes"][uncleanable].sum()),
            states={state: count for state, count in zip(STATES, counts, strict=True) if count},
        )

    def partition(self, row: int) -> PartitionRow:
        """The partition in a row of ``partition_columns``."""
        log = self.watched[row]
        return PartitionRow(
            watched=log,
            bytes=log.size,
            segments=log.segment_count,
            records=self.facts.records.get(log.topic_partition),
        )

    def partitions_of(self, topic: str) -> list[PartitionRow]:
        """The partitions of a topic. Raises UnknownTopicError."""
        row = self._row(topic)
        return [self.partition(number) for number in range(*self._first_rows[row : row + 2].tolist())]

    def partition_of(self, topic_partition: TopicPartition) -> PartitionRow:
        """One partition. Raises UnknownTopicError."""
        for row in self.partitions_of(topic_partition.topic):
            if row.topic_partition == topic_partition:
                return row
        raise UnknownTopicError("there is no such partition", path=str(topic_partition)[:256])

    def _row(self, topic: str) -> int:
        if topic not in self._row_of_topic:
            raise UnknownTopicError(f"there is no topic {topic[:256]!r}")
        return self._row_of_topic[topic]

    def topic(self, topic: str) -> TopicRow:
        """One topic. Raises UnknownTopicError."""
        return self.topic_row(self._row(topic))

    def topic_row(self, row: int) -> TopicRow:
        """The topic in a row of ``topic_columns``."""
        name = self.names[row]
        values = {key: column[row].item() for key, column in self.topic_columns.items()}
        settings = self.topics[name].settings
        config = settings if isinstance(settings, Config) else None
        first, end = self._first_rows[row : row + 2].tolist()
        state = STATES[values["state"]]
        reasons = (log.reason for log in self.watched[first:end] if log.state == state and log.reason)

        def known(key: str) -> int | None:
            return None if values[key] == UNKNOWN else int(values[key])

        return TopicRow(
            name=name,
            topic_id=self.topics[name].description.topic_id,
            partitions=values["partitions"],
            policy=None if config is None else ",".join(config.policies),
            retention_ms=None if config is None else values["retention_ms"],
            retention_bytes=None if config is None else values["retention_bytes"],
            min_dirty_ratio=None if config is None else values["min_dirty_ratio"],
            bytes=values["bytes"],
            clean_bytes=values["clean_bytes"],
            dirty_bytes=values["dirty_bytes"],
            dirty_ratio=values["dirty_ratio"],
            records=known("records"),
            saved_bytes_7d=known("saved_bytes_7d"),
            last_cleaning_ms=known("last_cleaning_ms"),
            state=state,
            reason=next(reasons, ""),
            is_internal=is_internal(name),
        )


def is_internal(topic: str) -> bool:
    """Is it a topic of the broker itself?"""
    return topic in INTERNAL_TOPICS or topic.startswith("__")


# Lists: the rows of a page are made into objects, all others stay columns.


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Which topics of a list, in which order: those whose name has ``contains``, with this ``policy``
    ("compact", "compact,delete") and ``state``; ``count`` rows from row ``start``."""

    sort: str = "name"
    descending: bool = False
    contains: str = ""
    policy: str = ""
    state: str = ""
    with_internal: bool = True
    start: int = 0
    count: int = PAGE_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPage:
    """Rows of a list, how many there are in all, and where the next page begins: None at the end."""

    rows: Sequence[TopicRow]
    total: int
    next_start: int | None


SORTS = (
    "name partitions policy retention_ms retention_bytes bytes dirty_bytes dirty_ratio records "
    "saved_bytes_7d last_cleaning_ms state"
).split()
"""The columns by which a list of topics may be sorted."""


def list_topics(catalogue: Catalogue, listing: Listing) -> TopicPage:
    """A page of topics. Raises UsageError for a column, a state or a page that does not exist."""
    if listing.sort not in SORTS:
        advice = f"pass {', '.join(SORTS)}"
        raise UsageError(f"sort={listing.sort[:64]!r}: there is no such column", advice=advice)
    if listing.state and listing.state not in STATES:
        advice = f"pass {', '.join(STATES)}"
        raise UsageError(f"state={listing.state[:64]!r}: there is no such state", advice=advice)
    if listing.start < 0 or not 1 <= listing.count <= PAGE_MAX:
        raise UsageError("the page is out of range", advice=f"pass 1 to {PAGE_MAX} rows, from 0 on")
    rows = _matching_rows(catalogue, listing)
    keys = catalogue.topic_columns[listing.sort][rows]
    # Stable, also in descending order: equal rows stay in the order of their names.
    order = np.argsort(-keys if listing.descending else keys, kind="stable")
    end = listing.start + listing.count
    shown = rows[order[listing.start : end]].tolist()
    return TopicPage(
        rows=[catalogue.topic_row(row) for row in shown],
        total=len(rows),
        next_start=end if end < len(rows) else None,
    )


def _matching_rows(catalogue: Catalogue, listing: Listing) -> Numbers:
    chosen = np.ones(len(catalogue.names), bool)
    if listing.contains:
        chosen &= np.fromiter((listing.contains in name for name in catalogue.names), bool, len(chosen))
    if not listing.with_internal:
        chosen &= ~np.fromiter(map(is_internal, catalogue.names), bool, len(chosen))
    if listing.state:
        chosen &= catalogue.topic_columns["state"] == _CODE[listing.state]
    if listing.policy:
        wanted = set(listing.policy.split(","))
        chosen &= np.fromiter(
            (
                isinstance(topic.settings, Config) and set(topic.settings.policies) == wanted
                for topic in (catalogue.topics[name] for name in catalogue.names)
            ),
            bool,
            len(chosen),
        )
    return np.flatnonzero(chosen).astype(np.int64)


def dirtiest(catalogue: Catalogue, count: int) -> list[PartitionRow]:
    """The compacted logs with the highest dirty ratios."""
    ratios = catalogue.partition_columns["dirty_ratio"]
    order = np.argsort(-ratios, kind="stable")[:count].tolist()
    return [catalogue.partition(row) for row in order if catalogue.watched[row].snapshot is not None]


# The refresh.


class Cataloguer(Closing):
    """Refreshes the catalogue in a thread, again and again.

    A refresh follows ``every_seconds`` after the last one, and after ten times as long as that took; a change
    of ours asks for one at once (``refresh_soon``). ``facts``: asked at each refresh.
    """

    def __init__(
        self,
        watch: Watch,
        clock: Clock,
        *,
        every_seconds: float = 5.0,
        facts: Callable[[], Facts] = Facts,
    ) -> None:
        self._watch, self._clock, self._every, self._facts = watch, clock, every_seconds, facts
        self._lock = threading.Lock()
        self._wake, self._is_closed = threading.Event(), False
        self._thread: threading.Thread | None = None
        self.current = Catalogue(at_ms=clock.now_ms())

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._work, name="siltstone-catalogue", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        with contextlib.suppress(SiltstoneError, OSError):  # the refresh says what is wrong
            self.outline()
        while not self._is_closed:
            self._wake.clear()
            self.refresh()
            self._wake.wait(max(self._every, 10 * self.current.seconds))

    def refresh(self) -> Catalogue:
        """Read what has changed in the directories; the new catalogue. A failure is its ``error``."""
        with self._lock:
            began = time.monotonic()
            try:
                built = self._build(began)
            except Exception as error:
                if not isinstance(error, (SiltstoneError, OSError)):
                    _logger.exception("The catalogue could not be refreshed")
                built = replace(self.current, error=str(error), seconds=time.monotonic() - began)
            self.current = built
            return built

    def outline(self) -> Catalogue:
        """The names alone, which are there long before all files are read. Raises SiltstoneError, OSError."""
        with self._lock:
            self.current = self._of(self._watch.outline(), time.monotonic(), is_complete=False)
            return self.current

    def _build(self, began: float) -> Catalogue:
        snapshot = self._watch.snapshot()
        if snapshot.error is not None:
            raise UsageError(snapshot.error, advice="look at the directories")
        built = self._of(snapshot, began, is_complete=True)
        # The columns are made here, in this thread, and not by the first request.
        _ = built.totals, built.topic_columns, built._first_rows
        return built

    def _of(self, snapshot: WatchSnapshot, began: float, *, is_complete: bool) -> Catalogue:
        return Catalogue(
            at_ms=snapshot.at_ms,
            watched=snapshot.logs,
            topics=self._watch.topics,
            facts=self._facts(),
            notes=snapshot.notes,
            directories=snapshot.directories,
            is_complete=is_complete,
            seconds=time.monotonic() - began,
        )

    def refresh_soon(self) -> None:
        """Let the thread refresh now."""
        self._wake.set()

    def close(self) -> None:
        """End the thread."""
        self._is_closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
