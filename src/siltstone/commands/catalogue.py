"""Keeps the catalogue of a server: a row for each topic and each partition, in columns, replaced as a whole.

::

    Watch (files, no lock) ─ refresh, in a thread ─► Catalogue: topics, partitions, totals, ``at_ms``
                                                         ▲
    requests ────────────────── sort, filter, page ──────┘

A request never waits for the files: it gets the newest catalogue with its age. The states are the nine of
``clean --watch``. While the directories are read for the first time, the rows that were not read yet are
``skipped``, for the reason ``watch.NOT_READ``.

A refresh reads a partition again only if its directory or its active segment has changed, its checkpoint has
moved, its settings are other ones, or its state depends on the time. Stored records are counted between two
refreshes, a little at a time; a log's count is unknown until then.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
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
from siltstone.base.collector import collector_paused
from siltstone.base.config import Config
from siltstone.base.errors import SiltstoneError, UnknownTopicError, UsageError
from siltstone.commands.row_texts import RowTexts
from siltstone.commands.watch import (
    SKIPPED,
    STATES,
    UNCLEANABLE,
    UNREADABLE,
    Watch,
    WatchedLog,
    WatchedTopic,
    WatchSnapshot,
)
from siltstone.log.names import INTERNAL_TOPICS, TopicPartition

PAGE_ROWS, PAGE_MAX = 50, 500
FIGURES_SECONDS = 0.25
"""How long the thread of a catalogue counts records at a time."""
UNKNOWN = -1
"""In a column of numbers: not known."""
_CODE = {state: number for number, state in enumerate(STATES)}
"""The number of a state in a column, the most urgent first."""
_logger = logging.getLogger("siltstone")
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """One topic: sums over its partitions, the most urgent of their states, and the settings that lists show.

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

    @property
    def may_be_compacted(self) -> bool:
        """Is the topic compacted, as far as its policy is known?"""
        return self.policy is None or "compact" in self.policy

    def to_json(self) -> dict[str, object]:
        """One object; unknown values are null."""
        return {name: getattr(self, name) for name in TopicRow.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One partition: its log as ``clean --watch`` sees it, its bytes also if the topic is not compacted, and
    the records that are stored, None until they were counted. ``damage``: why a file of the log cannot be
    read, "" if none was met."""

    watched: WatchedLog
    bytes: int
    segments: int
    records: int | None
    damage: str = ""

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
class SlowFigures:
    """Figures of logs that take longer to find than their states.

    ``records``: the records that each log stores, in the order of the catalogue's ``watched``; ``UNKNOWN``
    until they were counted; None: no log was counted yet. ``damage``: why a log cannot be counted: a file of
    it is damaged, or cannot be read. ``saved_bytes_7d``: by topic what the last seven days' cleanings have
    saved, None: not known. ``is_complete``: all logs are counted.
    """

    records: Numbers | None = None
    damage: Mapping[TopicPartition, str] = field(default_factory=dict)
    saved_bytes_7d: Mapping[str, int] | None = None
    is_complete: bool = True


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """All topics and partitions at ``at_ms``, sorted by name.

    ``watched``: a log for each partition; ``topics``: by name. The columns are arrays with a row a partition,
    or a row a topic. ``error``: why the last refresh failed; the rows are older then. ``notes``: on the
    directories, for display; ``directories``: whether a process uses each of them, by path. ``is_complete``:
    False while the directories are read for the first time. ``seconds``: how long the refresh took.
    """

    at_ms: int
    watched: Sequence[WatchedLog] = ()
    topics: Mapping[str, WatchedTopic] = field(default_factory=dict)
    figures: SlowFigures = field(default_factory=SlowFigures)
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

    def with_changes(self, **values: Any) -> Catalogue:
        """A copy with other ``figures``, ``error`` or ``seconds``. The logs are the same, so the columns
        that were made of them are kept."""
        changed = replace(self, **values)
        # A copy: other threads make columns meanwhile, which are entries of the same dictionary.
        entries = vars(self).copy().items()
        vars(changed).update({name: value for name, value in entries if name in _DERIVED_FROM_LOGS})
        return changed

    @cached_property
    def partition_columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """By name a column with a row a partition: ``topic`` is the topic's row, ``state`` the state's index
        in ``STATES``, ``reason`` that in ``reasons``; unknown numbers are ``UNKNOWN``. ``is_read``: is the
        log compacted, and was it read?"""
        records = self.figures.records
        unknown = np.full(len(self.watched), UNKNOWN, np.int64)
        return {**self._log_columns, "records": unknown if records is None else records}

    @cached_property
    def _log_columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """The columns of partitions that are made of the logs."""
        logs, count = self.watched, len(self.watched)
        row_of = self._row_of_topic
        code_of_reason = {reason: code for code, reason in enumerate(self.reasons)}

        def column(values: Iterable[int], kind: Any = np.int64) -> npt.NDArray[Any]:
            return np.fromiter(values, kind, count)

        ranges = [None if log.snapshot is None else log.snapshot.range for log in logs]
        clean = column(0 if bounds is None else bounds.clean_bytes for bounds in ranges)
        dirty = column(0 if bounds is None else bounds.cleanable_bytes for bounds in ranges)
        return {
            "topic": column(row_of[log.topic_partition.topic] for log in logs),
            "partition": column(log.topic_partition.partition for log in logs),
            "state": column((_CODE[log.state] for log in logs), np.int8),
            "reason": column((code_of_reason[log.reason] for log in logs), np.int32),
            "is_read": column((bounds is not None for bounds in ranges), np.bool_),
            "is_uncleanable": column((log.uncleanable is not None for log in logs), np.bool_),
            "bytes": column(log.size for log in logs),
            "segments": column(log.segment_count for log in logs),
            "clean_bytes": clean,
            "dirty_bytes": dirty,
            "dirty_ratio": dirty / np.maximum(clean + dirty, 1),
            "overdue_ms": column(0 if bounds is None else bounds.overdue_ms for bounds in ranges),
            "last_cleaning_ms": column(
                UNKNOWN if log.last_cleaning is None else log.last_cleaning.began_ms for log in logs
            ),
        }

    @cached_property
    def topic_columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """By name a column with a row a topic, in the order of ``names``."""
        saved = self.figures.saved_bytes_7d
        known_saved = (UNKNOWN if saved is None else saved.get(name, 0) for name in self.names)
        return {
            **self._topic_columns,
            "records": self.topic_sums("records"),
            "saved_bytes_7d": np.fromiter(known_saved, np.int64, len(self.names)),
        }

    def topic_sums(self, name: str) -> Numbers:
        """The sums by topic of a column of ``partition_columns``; ``UNKNOWN`` if one partition's value is."""
        values, topic = self.partition_columns[name], self._log_columns["topic"]
        sums, unknown = np.zeros(len(self.names), np.int64), np.zeros(len(self.names), bool)
        np.add.at(sums, topic, values)
        np.logical_or.at(unknown, topic, values == UNKNOWN)
        sums[unknown] = UNKNOWN
        return sums

    def topic_maxima(self, name: str) -> npt.NDArray[Any]:
        """The largest value by topic of a column of ``partition_columns``, at least 0."""
        values = self.partition_columns[name]
        most = np.zeros(len(self.names), values.dtype)
        np.maximum.at(most, self._log_columns["topic"], values)
        return most

    @cached_property
    def _topic_columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """The columns of topics that are made of the logs."""
        of_logs, count = self._log_columns, len(self.names)
        topic = of_logs["topic"]
        state = np.full(count, _CODE[SKIPPED], np.int8)
        np.minimum.at(state, topic, of_logs["state"])  # the most urgent: ``STATES`` begins with it
        last_cleaning = np.full(count, UNKNOWN, np.int64)
        np.maximum.at(last_cleaning, topic, of_logs["last_cleaning_ms"])
        return {
            "name": np.arange(count),
            "is_internal": np.fromiter(map(is_internal, self.names), np.bool_, count),
            "partitions": np.bincount(topic, minlength=count),
            "state": state,
            "dirty_ratio": self.topic_maxima("dirty_ratio"),
            "last_cleaning_ms": last_cleaning,
            **{name: self.topic_sums(name) for name in ("bytes", "clean_bytes", "dirty_bytes")},
            **self._setting_columns(),
        }

    @cached_property
    def by_dirty_ratio(self) -> Numbers:
        """The rows of the compacted logs that were read, the dirtiest first."""
        columns = self._log_columns
        order: Numbers = np.argsort(-columns["dirty_ratio"], kind="stable").astype(np.int64)
        rows: Numbers = order[columns["is_read"][order]]
        return rows

    @cached_property
    def not_cleanable_yet_bytes(self) -> int:
        """Bytes of compacted logs that are neither clean nor dirty: of their active segments, and what lags
        or open transactions hold back."""
        columns = self._log_columns
        is_here = columns["is_read"] & (columns["state"] != _CODE[UNCLEANABLE])
        return int((columns["bytes"] - columns["clean_bytes"] - columns["dirty_bytes"])[is_here].sum())

    @cached_property
    def queue_texts(self) -> RowTexts:
        """What a filter searches in the rows of ``by_dirty_ratio``: log, state and reason."""
        logs = map(self.watched.__getitem__, self.by_dirty_ratio.tolist())
        return RowTexts(f"{log.topic_partition} {log.state} {log.reason}" for log in logs)

    @cached_property
    def name_texts(self) -> RowTexts:
        """What a filter searches in the rows of topics."""
        return RowTexts(self.names)

    @cached_property
    def reasons(self) -> list[str]:
        """The distinct reasons of the logs' states, sorted: the column ``reason`` has indexes into this
        list."""
        return sorted({log.reason for log in self.watched})

    @cached_property
    def uncleanable_rows(self) -> Numbers:
        """The rows of the logs that the cleaner skips, in order of name."""
        return np.flatnonzero(self._log_columns["is_uncleanable"]).astype(np.int64)

    @cached_property
    def damaged_rows(self) -> Numbers:
        """The rows of the logs that the cleaner skips, and of those with a file that cannot be read, in order
        of name."""
        columns = self._log_columns
        is_damaged = columns["is_uncleanable"] | (columns["state"] == _CODE[UNREADABLE])
        for topic_partition in self.figures.damage:
            with contextlib.suppress(UnknownTopicError):
                is_damaged[self.row_of(topic_partition)] = True
        return np.flatnonzero(is_damaged).astype(np.int64)

    @cached_property
    def sums_by_directory(self) -> Mapping[str, tuple[int, int]]:
        """(Logs, their bytes) of each log directory, by its path."""
        sums = dict.fromkeys(self.directories, (0, 0))
        for log in self.watched:
            path = os.path.dirname(str(log.directory))
            count, size = sums.get(path, (0, 0))
            sums[path] = count + 1, size + log.size
        return sums

    @cached_property
    def policies(self) -> list[str]:
        """The distinct policies of topics, sorted: the column ``policy`` has indexes into this list. ""
        stands for one that is not known."""
        return sorted({policy for policy, *_ in self._setting_rows})

    @cached_property
    def _setting_rows(self) -> list[tuple[str, int, int, float]]:
        """(policy, retention.ms, retention.bytes, min.cleanable.dirty.ratio) of each topic: "" and -2 where
        they are not known (-1 is a value: unlimited)."""
        known: dict[int, tuple[str, int, int, float]] = {}
        rows = list[tuple[str, int, int, float]]()
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
        return rows

    def _setting_columns(self) -> dict[str, npt.NDArray[Any]]:
        """The settings that lists show."""
        rows, code_of = self._setting_rows, {policy: code for code, policy in enumerate(self.policies)}
        return {
            "policy": np.array([code_of[row[0]] for row in rows], np.int64),
            "retention_ms": np.array([row[1] for row in rows], np.int64),
            "retention_bytes": np.array([row[2] for row in rows], np.int64),
            "min_dirty_ratio": np.array([row[3] for row in rows], np.float64),
        }

    @cached_property
    def _first_rows(self) -> Numbers:
        """The first row of each topic's partitions, which are neighbours since ``watched`` is sorted; the
        last entry is the number of all rows."""
        edges = np.searchsorted(self._log_columns["topic"], np.arange(len(self.names) + 1))
        return edges.astype(np.int64)

    @cached_property
    def totals(self) -> CatalogueTotals:
        """Sums over all logs."""
        columns = self._log_columns
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
        log, records = self.watched[row], int(self.partition_columns["records"][row])
        return PartitionRow(
            watched=log,
            bytes=log.size,
            segments=log.segment_count,
            records=None if records == UNKNOWN else records,
            damage=log.reason
            if log.state == UNREADABLE
            else self.figures.damage.get(log.topic_partition, ""),
        )

    def partitions_of(self, topic: str) -> list[PartitionRow]:
        """The partitions of a topic. Raises UnknownTopicError."""
        row = self._row(topic)
        return [self.partition(number) for number in range(*self._first_rows[row : row + 2].tolist())]

    def damage_of(self, topic: str) -> str:
        """Why a file of a topic cannot be read, "" if none was met. Raises UnknownTopicError."""
        if not self.figures.damage and not self.totals.states.get(UNREADABLE):
            return ""
        return next((row.damage for row in self.partitions_of(topic) if row.damage), "")

    def partition_of(self, topic_partition: TopicPartition) -> PartitionRow:
        """One partition. Raises UnknownTopicError."""
        return self.partition(self.row_of(topic_partition))

    def row_of(self, topic_partition: TopicPartition) -> int:
        """The row of a partition in ``watched`` and in the columns. Raises UnknownTopicError."""
        row = self._row(topic_partition.topic)
        first, end = self._first_rows[row : row + 2].tolist()
        numbers = self._log_columns["partition"][first:end]
        log: int = first + int(np.searchsorted(numbers, topic_partition.partition))
        if log < end and self.watched[log].topic_partition == topic_partition:
            return log
        raise UnknownTopicError("there is no such partition", path=str(topic_partition)[:256])

    def _row(self, topic: str) -> int:
        """The row of a topic in ``topic_columns``. Raises UnknownTopicError."""
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


_DERIVED_FROM_LOGS = frozenset(
    "names _row_of_topic _log_columns _topic_columns policies _first_rows totals by_dirty_ratio "
    "uncleanable_rows sums_by_directory queue_texts name_texts reasons "
    "not_cleanable_yet_bytes".split()
)
"""The cached properties of a catalogue that do not depend on its slow figures."""


def is_internal(topic: str) -> bool:
    """Is it a topic of the broker itself?"""
    return topic in INTERNAL_TOPICS or topic.startswith("__")


# Lists: the rows of a page are made into objects, all others stay columns.


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQuery:
    """Which topics of a list, in which order: those whose name has ``contains``, whatever its case, with
    this ``policy`` ("compact", "compact,delete") and ``state``; ``count`` rows from row ``start``."""

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


def list_topics(catalogue: Catalogue, query: TopicQuery) -> TopicPage:
    """A page of topics. Raises UsageError for a column, a state or a page that does not exist."""
    if query.sort not in SORTS:
        advice = f"pass {', '.join(SORTS)}"
        raise UsageError(f"sort={query.sort[:64]!r}: there is no such column", advice=advice)
    if query.state and query.state not in STATES:
        advice = f"pass {', '.join(STATES)}"
        raise UsageError(f"state={query.state[:64]!r}: there is no such state", advice=advice)
    if query.start < 0 or not 1 <= query.count <= PAGE_MAX:
        raise UsageError("the page is out of range", advice=f"pass 1 to {PAGE_MAX} rows, from 0 on")
    rows = _matching_rows(catalogue, query)
    keys = catalogue.topic_columns[query.sort][rows]
    # Stable, also in descending order: equal rows stay in the order of their names.
    order = np.argsort(-keys if query.descending else keys, kind="stable")
    end = query.start + query.count
    shown = rows[order[query.start : end]].tolist()
    return TopicPage(
        rows=[catalogue.topic_row(row) for row in shown],
        total=len(rows),
        next_start=end if end < len(rows) else None,
    )


def _matching_rows(catalogue: Catalogue, query: TopicQuery) -> Numbers:
    chosen = np.ones(len(catalogue.names), bool)
    if query.contains:
        has_text = np.zeros(len(chosen), bool)
        has_text[catalogue.name_texts.rows_with(query.contains)] = True
        chosen &= has_text
    if not query.with_internal:
        chosen &= ~catalogue.topic_columns["is_internal"]
    if query.state:
        chosen &= catalogue.topic_columns["state"] == _CODE[query.state]
    if query.policy:
        wanted = set(query.policy.split(","))
        codes = [code for code, policy in enumerate(catalogue.policies) if set(policy.split(",")) == wanted]
        chosen &= np.isin(catalogue.topic_columns["policy"], codes)
    return np.flatnonzero(chosen).astype(np.int64)


def dirtiest(catalogue: Catalogue, count: int, start: int = 0) -> list[PartitionRow]:
    """The compacted logs by dirty ratio, the highest first: ``count`` of them from ``start`` on."""
    rows = catalogue.by_dirty_ratio[start : start + count]
    return [catalogue.partition(row) for row in rows.tolist()]


def uncleanable(catalogue: Catalogue, count: int, start: int = 0) -> list[PartitionRow]:
    """The logs that the cleaner skips, in order of name: ``count`` of them from ``start`` on."""
    rows = catalogue.uncleanable_rows[start : start + count]
    return [catalogue.partition(row) for row in rows.tolist()]


# The refresh.


class Cataloguer(Closing):
    """Refreshes the catalogue in a thread, again and again.

    A refresh follows ``every_seconds`` after the last one, or ten times as long as that took, if this is
    longer. A change by the server asks for one at once (``refresh_soon``). ``figures``: returns the slow
    figures of the logs. It is called at each refresh, and between two while they are not complete, and works
    for ``FIGURES_SECONDS`` at most.
    """

    def __init__(
        self,
        watch: Watch,
        clock: Clock,
        *,
        every_seconds: float = 5.0,
        figures: Callable[[Sequence[WatchedLog]], SlowFigures] = lambda _: SlowFigures(),
    ) -> None:
        self._watch, self._clock, self._every, self._figures = watch, clock, every_seconds, figures
        self._lock = threading.Lock()
        self._wake, self._is_closed = threading.Event(), False
        self._thread: threading.Thread | None = None
        self.current = Catalogue(at_ms=clock.now_ms())

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._work, name="siltstone-catalogue", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        self._read_first()
        while not self._is_closed:
            until = time.monotonic() + max(self._every, 10 * self.current.seconds)
            # A third of one core at most, so that a large log is counted without being felt.
            while not self.current.figures.is_complete and time.monotonic() < until:
                if self._wake.wait(2 * FIGURES_SECONDS):
                    break
                self.refresh_figures()
            self._wake.wait(max(until - time.monotonic(), 0))
            if not self._is_closed:
                self._wake.clear()
                self.refresh()

    def _read_first(self) -> None:
        """Read the names, then all rows. The rows have no cycles and stay: the collector never goes over
        them."""
        with collector_paused():
            with contextlib.suppress(SiltstoneError, OSError):  # the refresh says what is wrong
                self.outline()
            self.refresh()
            gc.freeze()

    def refresh(self) -> Catalogue:
        """Read what has changed in the directories; the new catalogue. A failure is its ``error``."""
        with self._lock:
            began = time.monotonic()
            try:
                built = self._build(began)
            except Exception as error:
                if not isinstance(error, (SiltstoneError, OSError)):
                    _logger.exception("The catalogue could not be refreshed")
                built = self.current.with_changes(error=str(error), seconds=time.monotonic() - began)
            self.current = built
            return built

    def refresh_figures(self) -> Catalogue:
        """Find more of the slow figures of the same logs."""
        with self._lock:
            try:
                self.current = self.current.with_changes(figures=self._figures(self.current.watched))
            except Exception as error:  # the thread goes on, whatever it is
                if not isinstance(error, (SiltstoneError, OSError)):
                    _logger.exception("The records of the catalogue could not be counted")
                self.current = self.current.with_changes(error=str(error))
            return self.current

    def outline(self) -> Catalogue:
        """A catalogue of the names alone, which is ready long before all files are read. Raises
        SiltstoneError, OSError."""
        with self._lock:
            self.current = self._catalogue_of(self._watch.outline(), time.monotonic(), figures=SlowFigures())
            return self.current

    def _build(self, began: float) -> Catalogue:
        """A new catalogue. ``began``: when the refresh began (``time.monotonic``)."""
        snapshot = self._watch.snapshot()
        if snapshot.error is not None:
            raise UsageError(snapshot.error, advice="look at the directories")
        built = self._catalogue_of(snapshot, began, figures=self._figures(snapshot.logs), is_complete=True)
        # The columns are made here, in this thread, and not by the first request.
        _ = built.totals, built.topic_columns, built._first_rows, built.by_dirty_ratio
        _ = built.sums_by_directory, built.queue_texts, built.name_texts
        return built

    def _catalogue_of(
        self, snapshot: WatchSnapshot, began: float, *, figures: SlowFigures, is_complete: bool = False
    ) -> Catalogue:
        return Catalogue(
            at_ms=snapshot.at_ms,
            watched=snapshot.logs,
            topics=self._watch.topics,
            figures=figures,
            notes=snapshot.notes,
            directories=snapshot.directories,
            is_complete=is_complete,
            seconds=time.monotonic() - began,
        )

    def refresh_soon(self) -> None:
        """Let the thread refresh now, without waiting for it."""
        self._wake.set()

    def close(self) -> None:
        """End the thread."""
        self._is_closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
