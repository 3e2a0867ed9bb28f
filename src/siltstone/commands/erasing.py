"""Erases a key from a compacted topic: two steps, each with a receipt in the audit log.

::

    search ─► tombstone ─► roll, clean ─► search ─┬─► receipt "values": no value of the key is left
                                                  └─► held: what has one still, and what to do; no receipt
              … delete.retention.ms …
    search ─────────────► roll, clean ─► search ─┬─► receipt "key": the key is in no file
                                                 └─► held

The same command does both: each run searches first, and does what is left to do. So one that was interrupted
goes on when it is run again, and a tombstone that is there already is not written a second time. A receipt is
one line, written after the search that it tells of; the search happens while no cleaning or compaction writes
(``files_at_rest``).

Neither the key nor a value goes into the audit log, a job or a result. A receipt has SHA-256(salt ‖ key) with
a random salt, which it has, too: whoever knows the key can prove that it is meant, but there is no table in
which hashes of keys could be looked up, and the receipts of two topics do not show that they are of the same
key. (A key that can be guessed, such as a number, can still be tried.)
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from siltstone.base import files
from siltstone.base.clock import Clock, SystemClock, time_text
from siltstone.base.config import Config
from siltstone.base.errors import SiltstoneError, UsageError
from siltstone.commands.changes import INTERRUPTED, Actor, AuditedChange, ChangeLog
from siltstone.commands.circumstances import Circumstances
from siltstone.commands.directories import BrokerDirectories, Snapshot
from siltstone.commands.key_search import (
    ELSEWHERE,
    KEPT,
    LEDGER,
    LOG,
    WRITE,
    KeyPlace,
    KeySearch,
    SearchedTopic,
    partition_name,
    search_key,
)
from siltstone.commands.open_directories import (
    AGAIN,
    COMPACT_BESIDE,
    Hold,
    OpenDirectories,
    WorkProgress,
    no_progress,
    opened,
    refuse_internal,
    refuse_not_compacted,
    tell_failures,
)
from siltstone.compaction.inplace.planning import find_horizons
from siltstone.compaction.report import LogResult, read_cleanings
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadableLog
from siltstone.log.segments import find_segment
from siltstone.runtime.manager import LogManager
from siltstone.runtime.producing import NewRecord, append

ERASE_KEY = "erase-key"
"""The action in the audit log."""
VALUES, KEY = "values", "key"
"""The two steps, and their receipts."""
ABSENT, FOUND, HELD, VALUES_GONE, KEY_GONE = "absent", "found", "held", "values_gone", "key_gone"
"""Statuses: no record has the key; a dry run found it; a value is left; no value is left; the key is in no
file."""
KEY_FORMATS = ("utf8", "hex", "base64")
NOT_COMPACTED_ADVICE = (
    "its records go with their segments: lower retention.ms, or siltstone delete-records; "
    "cleanup.policy=compact would keep the last record of each key"
)
_SENTENCES = {
    ABSENT: "no record has this key, and no erasure of it has begun",
    FOUND: "dry run: nothing was changed",
    HELD: "not erased: a value is left",
    VALUES_GONE: "no value of the key is left; its tombstone is",
    KEY_GONE: "the key is in none of the files",
}
_STATEMENTS = {
    VALUES: "no value of the key is left in the files that were searched",
    KEY: "the key is in none of the files that were searched",
}
_ADVICE = {
    LEDGER: "run siltstone compact-topic for the topic (with --reset, if the key is still there after that), "
    f"then {AGAIN}",
    WRITE: f"let the write be committed, or remove its folder; then {AGAIN}",
    KEPT: f"remove the run's folder (undo is not possible any more); then {AGAIN}",
    ELSEWHERE: f"remove it, or wait until it is removed; then {AGAIN}",
}


def parse_key(text: str, key_format: str = "utf8") -> bytes:
    """The bytes of a key. Raises UsageError."""
    try:
        if key_format == "utf8":  # bytes of a command line that are no text are surrogates
            return text.encode("utf-8", "surrogateescape")
        if key_format == "hex":
            return bytes.fromhex(text)
        if key_format == "base64":
            return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise UsageError(f"the key is not {key_format}", advice="look at how it was copied") from None
    raise UsageError(f"there is no key format {key_format[:32]!r}", advice=f"pass {', '.join(KEY_FORMATS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFingerprint:
    """What a receipt has instead of the key: ``sha256`` of the ``salt``'s bytes and the key's, both in
    hex."""

    salt: str
    sha256: str

    @classmethod
    def of(cls, key: bytes, salt: bytes | None = None) -> KeyFingerprint:
        """A new one, with a random salt unless one is passed."""
        salt = secrets.token_bytes(16) if salt is None else salt
        return cls(salt=salt.hex(), sha256=hashlib.sha256(salt + key).hexdigest())

    @classmethod
    def parse(cls, document: object) -> KeyFingerprint | None:
        """That of a line of the audit log; None if it has none."""
        if not isinstance(document, Mapping):
            return None
        salt, digest = document.get("salt"), document.get("sha256")
        return cls(salt=salt, sha256=digest) if isinstance(salt, str) and isinstance(digest, str) else None

    def is_of(self, key: bytes) -> bool:
        """Is it that of ``key``?"""
        try:
            return self.of(key, bytes.fromhex(self.salt)) == self
        except ValueError:
            return False

    def to_json(self) -> dict[str, object]:
        """One object."""
        return {"salt": self.salt, "sha256": self.sha256}


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRequest:
    """The key to erase, and folders in which ``clean --keep-originals`` kept originals, besides those that
    the history of cleanings names."""

    topic: str
    key: bytes
    kept: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.key, bytes):
            reason = "a key that is null cannot be erased: such records belong to no key"
            raise UsageError(reason, advice="a cleaning removes records without a key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A file that has the key still, why, and what to do. ``until_ms``: when the reason ends, None if no time
    ends it."""

    kind: str
    path: str
    partition: int | None
    values: int
    tombstones: int
    reason: str
    advice: str
    until_ms: int | None = None

    def to_json(self) -> dict[str, object]:
        """One object."""
        return {name: getattr(self, name) for name in Holder.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """What became of a key. ``values`` and ``tombstones``: records that were found first, in ``partitions``;
    ``holders``: what has the key, or a value, still; ``receipts``: that were written; ``due_ms``: when the
    second step may be taken, None if it is not known or was taken. ``files`` and ``bytes``: that the last
    search read."""

    topic: str
    status: str
    dry_run: bool
    values: int
    tombstones: int
    partitions: Sequence[int]
    files: int
    bytes: int
    holders: Sequence[Holder] = ()
    receipts: Sequence[Mapping[str, object]] = ()
    due_ms: int | None = None
    notes: Sequence[str] = ()

    @property
    def sentence(self) -> str:
        """What holds now, and what is to be done."""
        text = _SENTENCES[self.status]
        if self.holders and not self.dry_run:
            text = f"{text}: {self.holders[0].reason}; {self.holders[0].advice}"
        if self.due_ms is not None:
            text = f"{text}; the tombstone with the key may go at {time_text(self.due_ms)}: {AGAIN} then"
        return text

    def to_json(self) -> dict[str, object]:
        """One object, without the key."""
        plain = {"sentence": self.sentence, **{name: getattr(self, name) for name in Erasure.__slots__}}
        plain["holders"] = [holder.to_json() for holder in self.holders]
        return {**plain, "partitions": list(self.partitions), "notes": list(self.notes)}


# What earlier runs have left in the audit log.


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRuns:
    """An erasure that has begun and is not complete: its fingerprint, None without one; its first receipt."""

    fingerprint: KeyFingerprint | None = None
    values_receipt: Mapping[str, object] | None = None


def earlier_runs(directories: Iterable[Path], clock: Clock, topic: str, key: bytes) -> EarlierRuns:
    """What the audit logs of some directories say of this key. Raises OSError."""
    changes = list[AuditedChange]()
    for directory in directories:
        changes += ChangeLog(directory, clock).all_of(ERASE_KEY, topic)
    state = EarlierRuns()
    for change in sorted(changes, key=lambda change: change.at_ms):
        fingerprint = KeyFingerprint.parse(change.after.get("key"))
        if fingerprint is None or not fingerprint.is_of(key):
            continue
        if change.after.get("step") == VALUES:  # again, if the key was written again after a first receipt
            state = EarlierRuns(fingerprint=fingerprint, values_receipt=change.receipt)
        elif change.receipt is not None:
            state = EarlierRuns()
    return state


# What is searched.


def opened_topic(manager: LogManager, topic: str, kept: Sequence[Path] = ()) -> SearchedTopic:
    """A topic of open directories. Raises UnknownTopicError."""
    logs, unreadable = list[ReadableLog](), dict[int, str]()
    for number in manager.partitions_of(topic):
        try:
            logs.append(manager.get(TopicPartition(topic, number)))
        except SiltstoneError as error:
            unreadable[number] = str(error)
    directories = [served.path for served in manager.serving()]
    return SearchedTopic(
        name=topic,
        logs=logs,
        directories=directories,
        count=manager.partition_count(topic),
        is_brokers=not manager.topics.describe(topic).is_registered,
        unreadable=unreadable,
        kept=(*kept, *_known_originals(directories, topic)),
    )


def looked_topic(snapshot: Snapshot, topic: str, kept: Sequence[Path] = ()) -> SearchedTopic:
    """A topic of directories that are only looked at. Raises UnknownTopicError."""
    description, roots = snapshot.topic(topic), roots_of(snapshot)
    logs, unreadable = list[ReadableLog](), dict[int, str]()
    for number in description.partitions:
        try:
            logs.append(snapshot.log(TopicPartition(topic, number)))
        except (SiltstoneError, OSError) as error:
            unreadable[number] = str(error)
    return SearchedTopic(
        name=topic,
        logs=logs,
        directories=roots,
        count=snapshot.partition_count(description),
        is_brokers=not description.is_registered,
        unreadable=unreadable,
        kept=(*kept, *_known_originals(roots, topic)),
    )


def roots_of(snapshot: Snapshot) -> list[Path]:
    """The log directories of a snapshot, where their histories and audit logs are."""
    return [directory.path for directory in snapshot.directories]


def _known_originals(directories: Iterable[Path], topic: str) -> list[Path]:
    """The folders with originals of the topic that the history of cleanings names, and that are still
    there."""
    named = dict[Path, None]()
    for directory in directories:
        with contextlib.suppress(OSError):
            for cleaning in read_cleanings(directory):
                if cleaning.result.topic == topic and cleaning.kept_originals is not None:
                    named[Path(cleaning.kept_originals)] = None
    return [path for path in named if files.exists(path)]


def _notes(topic: SearchedTopic) -> list[str]:
    notes, here = list[str](), len(topic.logs) + len(topic.unreadable)
    if topic.count is not None and topic.count > here:
        others = "erase the key where the others are, too"
        notes.append(f"{here} of the topic's {topic.count} partitions are here: {others}")
    if topic.is_brokers:
        notes.append("the topic is a broker's: its other replicas have copies of their own")
    return notes


def look_for_key(
    topic: SearchedTopic, key: bytes, earlier: EarlierRuns, progress: WorkProgress = no_progress
) -> Erasure:
    """A dry run: where the key is. Raises OSError."""
    found = search_key(topic, key, lambda done, total: progress(topic.name, "searching", done, total))
    holders = [
        _holder(place, "it has records of the key" if place.damage is None else place.damage, "")
        for place in found.places
    ]
    is_absent = not found.places and earlier.fingerprint is None
    horizons = [place.horizon_ms for place in found.places if place.horizon_ms is not None]
    return Erasure(
        topic=topic.name,
        status=ABSENT if is_absent else FOUND,
        dry_run=True,
        values=found.values,
        tombstones=found.tombstones,
        partitions=found.partitions,
        files=found.files,
        bytes=found.bytes,
        holders=holders,
        due_ms=None if found.with_values else max(horizons, default=None),
        notes=_notes(topic),
    )


def _holder(place: KeyPlace, reason: str, advice: str, until_ms: int | None = None) -> Holder:
    return Holder(
        kind=place.kind,
        path=place.path,
        partition=place.partition,
        values=place.values,
        tombstones=place.tombstones,
        reason=reason,
        advice=advice,
        until_ms=until_ms,
    )


def refuse_topic(topic: str, config: Config) -> None:
    """Raises PolicyViolationError for a topic from which no key can be erased."""
    refuse_internal(topic, "a tombstone of ours")
    refuse_not_compacted(topic, config, NOT_COMPACTED_ADVICE)


def erase_in(
    directories: BrokerDirectories,
    actor: Actor,
    request: ErasureRequest,
    *,
    dry_run: bool = False,
    progress: WorkProgress = no_progress,
) -> Erasure:
    """Erase a key from directories that no process has open; a dry run takes no lock. Raises as
    ``erase_key``, and DirectoryLockedError."""
    if not dry_run:
        with opened(directories) as here:
            return erase_key(here, actor, request, progress=progress)
    snapshot = directories.snapshot()
    refuse_topic(request.topic, snapshot.config_of(snapshot.topic(request.topic)))
    earlier = earlier_runs(roots_of(snapshot), SystemClock(), request.topic, request.key)
    topic = looked_topic(snapshot, request.topic, request.kept)
    return look_for_key(topic, request.key, earlier, progress)


def erase_key(
    here: OpenDirectories,
    actor: Actor,
    request: ErasureRequest,
    *,
    dry_run: bool = False,
    progress: WorkProgress = no_progress,
) -> Erasure:
    """Erase a key: take the steps that can be taken now.

    Raises UnknownTopicError, PolicyViolationError, LogError (a tombstone that the log refuses), StorageError
    (also if the audit log cannot be written; nothing was changed then, or the receipt is missing),
    SiltstoneError, OSError.
    """
    here.manager.partitions_of(request.topic)
    refuse_topic(request.topic, here.manager.topics.settings(request.topic))
    directories = [served.path for served in here.manager.serving()]
    earlier = earlier_runs(directories, here.manager.clock, request.topic, request.key)
    if dry_run:
        topic = opened_topic(here.manager, request.topic, request.kept)
        return look_for_key(topic, request.key, earlier, progress)
    return _Erasing(here, actor, request, earlier, progress).run()


class _Erasing:
    """One run on open directories. ``results``: of the last cleaning of each log; ``receipts``: that were
    written; ``superseded``: the offset of the tombstone that supersedes a log's values."""

    def __init__(
        self,
        here: OpenDirectories,
        actor: Actor,
        request: ErasureRequest,
        earlier: EarlierRuns,
        progress: WorkProgress,
    ) -> None:
        self.here, self.actor, self.request = here, actor, request
        self.earlier, self.progress = earlier, progress
        self.results = dict[TopicPartition, LogResult]()
        self.receipts = list[Mapping[str, object]]()
        self.superseded = dict[TopicPartition, int]()

    def run(self) -> Erasure:
        """Take the steps that can be taken now."""
        first = found = self._search()
        fingerprint = self.earlier.fingerprint
        if not found.places and fingerprint is None:
            return self._result(ABSENT, first, found)
        fingerprint = fingerprint or KeyFingerprint.of(self.request.key)
        if self.earlier.values_receipt is None or found.with_values:
            found, holders = self._step(VALUES, found, fingerprint)
            if holders:
                return self._result(HELD, first, found, holders)
        elif any(place.unstamped for place in found.places if place.kind == LOG):
            found = self._stamp(found)
        due_ms, waiting = self._waiting(found)
        if waiting or (due_ms is not None and due_ms > self._now_ms()):
            return self._result(VALUES_GONE, first, found, waiting, due_ms)
        found, holders = self._step(KEY, found, fingerprint)
        if not holders:
            return self._result(KEY_GONE, first, found)
        until = [holder.until_ms for holder in holders if holder.until_ms is not None]
        status = HELD if found.with_values else VALUES_GONE
        return self._result(status, first, found, holders, max(until, default=None))

    def _now_ms(self) -> int:
        return self.here.manager.clock.now_ms()

    def _result(
        self,
        status: str,
        first: KeySearch,
        last: KeySearch,
        holders: Sequence[Holder] = (),
        due_ms: int | None = None,
    ) -> Erasure:
        return Erasure(
            topic=self.request.topic,
            status=status,
            dry_run=False,
            values=first.values,
            tombstones=first.tombstones,
            partitions=first.partitions,
            files=last.files,
            bytes=last.bytes,
            holders=tuple(holders),
            receipts=tuple(self.receipts),
            due_ms=due_ms,
            notes=_notes(self._topic()),
        )

    def _topic(self) -> SearchedTopic:
        return opened_topic(self.here.manager, self.request.topic, self.request.kept)

    def _log(self, partition: int) -> TopicPartition:
        return TopicPartition(self.request.topic, partition)

    # One step

    def _step(
        self, step: str, found: KeySearch, fingerprint: KeyFingerprint
    ) -> tuple[KeySearch, Sequence[Holder]]:
        """Take a step, and search again: what was found, and what holds the step's receipt back. The receipt
        is written if nothing does."""
        changes, key = self.here.changes, fingerprint.to_json()
        change_id = changes.begin(
            self.actor,
            ERASE_KEY,
            self.request.topic,
            before={"values": found.values, "tombstones": found.tombstones},
            after={"key": key, "step": step},
        )
        outcome: str | None = INTERRUPTED
        try:
            self._remove(step, found)
            found = self._search_at_rest()
            holders = [
                self._explained(place, found)
                for place in (found.with_values if step == VALUES else found.places)
            ]
            if holders:
                kinds = sorted({holder.kind for holder in holders})
                outcome = f"held: {', '.join(kinds)}: {holders[0].reason}"
            else:
                receipt = self._receipt(step, found, key)
                changes.end_with_receipt(change_id, receipt)
                outcome = None
                self.receipts.append(receipt)
            return found, holders
        except Exception as error:
            outcome = f"failed: {error}"
            raise
        finally:
            if outcome is not None:
                changes.end(change_id, outcome)

    def _receipt(self, step: str, found: KeySearch, key: Mapping[str, object]) -> Mapping[str, object]:
        topic = self._topic()
        return {
            "step": step,
            "states": _STATEMENTS[step],
            "at_ms": self._now_ms(),
            "topic": topic.name,
            "key": key,
            "partitions": [log.topic_partition.partition for log in topic.logs],
            "files": found.files,
            "bytes": found.bytes,
            "kept_originals": [str(path) for path in topic.kept],
        }

    def _remove(self, step: str, found: KeySearch) -> None:
        """Write the tombstones that are missing, and clean the logs that have what is to go."""
        to_clean = set[TopicPartition]()
        for place in found.places:
            if place.kind != LOG or place.partition is None or place.damage is not None:
                continue
            if step == KEY or place.values or place.unstamped:
                to_clean.add(self._log(place.partition))
        if step == VALUES:
            for log in to_clean:
                self._supersede(log, found.in_log(log.partition))
        self.progress(self.request.topic, "cleaning", 0, 0)
        self.results = self.here.clean_fully(to_clean)

    def _stamp(self, found: KeySearch) -> KeySearch:
        """Clean the logs with tombstones that no cleaning has given a delete horizon yet, and search
        again."""
        in_logs = [place for place in found.places if place.kind == LOG and place.unstamped]
        logs = {self._log(place.partition) for place in in_logs if place.partition is not None}
        changes = self.here.changes
        with changes.recorded(self.actor, "clean", self.request.topic, after={"force": True}) as change:
            self.results = self.here.clean_fully(logs)
            tell_failures(change, self.results.values())
        return self._search()

    def _supersede(self, topic_partition: TopicPartition, places: Sequence[KeyPlace]) -> None:
        """Append a tombstone, unless the values are superseded by one already: by a run that was
        interrupted."""
        last_value = max((place.last_value for place in places if place.last_value is not None), default=-1)
        last_tombstone = _last_tombstone(places)
        served = self.here.manager.directory_of(topic_partition)
        first_dirty = served.cleaner_checkpoint().get(topic_partition, 0)
        # A cleaning compares older records with those of the dirty section only.
        if last_value < 0 or last_tombstone > max(last_value, first_dirty - 1):
            self.superseded[topic_partition] = last_tombstone
            return
        log, tombstone = self.here.manager.get(topic_partition), NewRecord(key=self.request.key)
        appended = append(log, [tombstone], now_ms=self._now_ms(), sync=True)
        self.superseded[topic_partition] = appended.first_offset

    # Searching

    def _search(self) -> KeySearch:
        name = self.request.topic
        return search_key(
            self._topic(),
            self.request.key,
            lambda done, total: self.progress(name, "searching", done, total),
        )

    def _search_at_rest(self) -> KeySearch:
        """Remove the files that wait for their removal, and search, while nothing else writes."""
        manager = self.here.manager
        with contextlib.ExitStack() as stack:
            for log in self._topic().logs:
                stack.enter_context(manager.files_at_rest(log.topic_partition))
                manager.remove_leftovers(log.topic_partition)
            return self._search()

    # What holds the key

    def _waiting(self, found: KeySearch) -> tuple[int | None, Sequence[Holder]]:
        """When the tombstones may go (None: there are none), and those of which that is not known yet."""
        in_logs = [place for place in found.places if place.kind == LOG and place.tombstones]
        horizons = [place.horizon_ms for place in in_logs if place.horizon_ms is not None]
        unstamped = [self._explained(place, found) for place in in_logs if place.unstamped]
        return max(horizons, default=None), unstamped

    def _explained(self, place: KeyPlace, found: KeySearch) -> Holder:
        """Why a file has the key still, and what to do."""
        if place.damage is not None:
            advice = f"repair or remove it, then {AGAIN}"
            return _holder(place, f"it cannot be searched: {place.damage}", advice)
        if place.kind != LOG or place.partition is None:
            reason = f"{place.kind}: {'a value' if place.values else 'a tombstone'} of the key is there"
            return _holder(place, reason, _ADVICE.get(place.kind, AGAIN))
        log = self._log(place.partition)
        hold = self._hold(place, log, _last_tombstone(found.in_log(place.partition)))
        return _holder(place, hold.reason, hold.advice, hold.until_ms)

    def _hold(self, place: KeyPlace, log: TopicPartition, last_tombstone: int) -> Hold:
        last_value = -1 if place.last_value is None else place.last_value
        if last_value > max(last_tombstone, self.superseded.get(log, last_value)):
            return Hold(
                reason=f"a value was written again at offset {last_value}",
                advice=f"stop what writes it, then {AGAIN}",
            )
        held = self.here.what_holds(log, max(last_value, last_tombstone), self.results.get(log))
        if held is not None:
            return held
        facts = self.here.circumstances(log)
        bound, newest_ms = facts.bounds.tombstones_from, self._newest_horizon(facts)
        if not place.values and last_tombstone >= bound:
            reason = f"side-by-side compaction has only reached offset {bound}, and needs the tombstone"
            return Hold(reason=reason, advice=COMPACT_BESIDE)
        if not place.values and newest_ms is not None and newest_ms > facts.now_ms:
            reason = (
                f"nothing in the log is dirty, and other tombstones stay until {time_text(newest_ms)}; "
                "it is cleaned when all of them may go"
            )
            return Hold(reason=reason, advice=f"{AGAIN} after that time", until_ms=newest_ms)
        return Hold(reason="the cleaning has left it")

    def _newest_horizon(self, facts: Circumstances) -> int | None:
        bases = [segment.base_offset for segment in facts.log.view.segments[:-1]]
        segments = [find_segment(facts.log.directory, base) for base in bases]
        return find_horizons(segments, facts.range.clean_end, facts.now_ms).newest_ms if segments else None


def _last_tombstone(places: Iterable[KeyPlace]) -> int:
    """The offset of the last tombstone of the key in a log, -1 without one."""
    return max((place.last_tombstone for place in places if place.last_tombstone is not None), default=-1)


def holder_text(topic: str, holder: Holder) -> str:
    """One line for people."""
    advice = f"; {holder.advice}" if holder.advice else ""
    where = partition_name(topic, holder.partition)
    return f"{where}: {holder.path}: {holder.reason}{advice}"
