"""Erases keys from a compacted topic: two steps, each with a receipt of each key in the audit log.

::

    search ─► tombstone ─► roll, clean ─► search ─┬─► receipt "values": no value of the key is left
                                                  └─► held: what has one still, and what to do; no receipt
              … delete.retention.ms …
    search ─────────────► roll, clean ─► search ─┬─► receipt "key": the key is in no file
                                                 └─► held

Several keys take these steps together: one search, one cleaning, and a receipt for each key. The same command
does both steps: a run searches first, and does what is left to do. So a run that was interrupted is completed
by the next one, and a tombstone that is there already is not written a second time. A receipt is one line of
the audit log. It is written after its search, which runs while no cleaning or compaction writes
(``files_at_rest``).

Neither the key nor a value goes into the audit log, a job or a result. A receipt has SHA-256(salt ‖ key) and
the salt, which is random. With the key one can prove that a receipt is about it. Without the key, a table of
hashes is of no use, and the receipts of two topics do not show that they are about the same key. (A key that
can be guessed, such as a number, can still be tried.)
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from siltstone.base import files
from siltstone.base.clock import Clock, SystemClock, time_text
from siltstone.base.config import Config
from siltstone.base.errors import LogError, SiltstoneError, UsageError
from siltstone.commands.changes import INTERRUPTED, Actor, AuditedChange, ChangeLog
from siltstone.commands.directories import BrokerDirectories, Snapshot
from siltstone.commands.explain_page import counted
from siltstone.commands.forced_cleaning import (
    COMPACT_ADVICE,
    RUN_AGAIN,
    NotRemoved,
    OpenDirectories,
    WorkProgress,
    no_progress,
    note_failures,
    opened_for_cleaning,
    refuse_internal,
    refuse_not_compacted,
)
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
    search_keys,
)
from siltstone.commands.library import EngineName
from siltstone.compaction.inplace.originals import kept_folders_of
from siltstone.compaction.report import LogResult, read_cleanings
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadableLog
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
KEYS_MAX = 1000
"""Keys of one run: each is compared with each record."""
NOT_COMPACTED_ADVICE = (
    "retention deletes its records with their segments: lower retention.ms, or siltstone delete-records; "
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
    f"then {RUN_AGAIN}",
    WRITE: f"let the write be committed, or remove its folder; then {RUN_AGAIN}",
    KEPT: f"remove the run's folder (undo is not possible any more); then {RUN_AGAIN}",
    ELSEWHERE: f"remove it, or wait until it is removed; then {RUN_AGAIN}",
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
    """A receipt's proof of the key, without the key: ``sha256`` of the ``salt``'s bytes and the key's, both
    in hex."""

    salt: str
    sha256: str

    @classmethod
    def of(cls, key: bytes, salt: bytes | None = None) -> KeyFingerprint:
        """The fingerprint of ``key``, with a random salt unless one is passed."""
        salt = secrets.token_bytes(16) if salt is None else salt
        return cls(salt=salt.hex(), sha256=hashlib.sha256(salt + key).hexdigest())

    @classmethod
    def parse(cls, document: object) -> KeyFingerprint | None:
        """The fingerprint in a line of the audit log; None if it has none."""
        if not isinstance(document, Mapping):
            return None
        salt, digest = document.get("salt"), document.get("sha256")
        return cls(salt=salt, sha256=digest) if isinstance(salt, str) and isinstance(digest, str) else None

    def is_of(self, key: bytes) -> bool:
        """Is it the fingerprint of ``key``?"""
        try:
            return hashlib.sha256(bytes.fromhex(self.salt) + key).hexdigest() == self.sha256
        except ValueError:
            return False

    def to_json(self) -> dict[str, object]:
        """One object."""
        return {"salt": self.salt, "sha256": self.sha256}


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRequest:
    """The keys to erase, ``KEYS_MAX`` at most, and folders in which ``clean --keep-originals`` kept
    originals, besides those that the history of cleanings names."""

    topic: str
    keys: tuple[bytes, ...]
    kept: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if not all(isinstance(key, bytes) for key in self.keys):
            reason = "a key that is null cannot be erased: such records belong to no key"
            raise UsageError(reason, advice="a cleaning removes records without a key")
        if not 0 < len(self.keys) <= KEYS_MAX:
            advice = f"pass 1 to {KEYS_MAX:,} at a time"
            raise UsageError(f"{len(self.keys):,} keys cannot be erased together", advice=advice)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A file that still has the key: why, and what to do. ``until_ms``: when the reason ends, None if it does
    not end by time."""

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
    """The result for one key. ``values`` and ``tombstones``: the records that the first search found, in
    ``partitions``; ``holders``: the files that still have the key, or a value; ``receipts``: those that were
    written; ``due_ms``: when the second step may be taken, None if that is not known or was taken. ``files``
    and ``bytes``: what the last search read."""

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
            text = f"{text}; the tombstone with the key may go at {time_text(self.due_ms)}: {RUN_AGAIN} then"
        return text

    def to_json(self) -> dict[str, object]:
        """One object, without the key."""
        plain = {"sentence": self.sentence, **{name: getattr(self, name) for name in Erasure.__slots__}}
        plain["holders"] = [holder.to_json() for holder in self.holders]
        return {**plain, "partitions": list(self.partitions), "notes": list(self.notes)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasures:
    """The results for several keys, in the order of the request."""

    topic: str
    dry_run: bool
    keys: Sequence[Erasure]

    @property
    def is_complete(self) -> bool:
        """Was each key found, and is no value of one left?"""
        return all(key.status not in (ABSENT, HELD) for key in self.keys)

    @property
    def sentence(self) -> str:
        """What holds now, and what is to be done."""
        if len(self.keys) == 1:
            return self.keys[0].sentence
        counts = Counter(_SENTENCES[key.status] for key in self.keys)
        text = "; ".join(f"{count:,} of {len(self.keys):,} keys: {words}" for words, count in counts.items())
        due = [key.due_ms for key in self.keys if key.due_ms is not None]
        return (
            f"{text}; the last tombstone may go at {time_text(max(due))}: {RUN_AGAIN} then" if due else text
        )

    def to_json(self) -> dict[str, object]:
        """One object, without the keys."""
        return {
            "sentence": self.sentence,
            "topic": self.topic,
            "dry_run": self.dry_run,
            "keys": [key.to_json() for key in self.keys],
        }


# Earlier runs, from the audit log.


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRuns:
    """An erasure of a key that has begun and is not complete: its ``fingerprint``, None if there is no such
    erasure; the receipt of its first step, None if that is not complete."""

    fingerprint: KeyFingerprint | None = None
    values_receipt: Mapping[str, object] | None = None


def earlier_runs(
    directories: Iterable[Path], clock: Clock, request: ErasureRequest
) -> dict[bytes, EarlierRuns]:
    """The earlier runs for each key of the request, from the directories' audit logs. Raises OSError."""
    changes = list[AuditedChange]()
    for directory in directories:
        changes += ChangeLog(directory, clock).all_of(ERASE_KEY, request.topic)
    steps = list[tuple[AuditedChange, KeyFingerprint]]()
    for change in sorted(changes, key=lambda change: change.at_ms):
        fingerprint = KeyFingerprint.parse(change.after.get("key"))
        if fingerprint is not None:
            steps.append((change, fingerprint))
    return {key: _earlier_runs_of(key, steps) for key in request.keys}


def _earlier_runs_of(key: bytes, steps: Iterable[tuple[AuditedChange, KeyFingerprint]]) -> EarlierRuns:
    state = EarlierRuns()
    for change, fingerprint in steps:
        if not fingerprint.is_of(key):
            continue
        if change.after.get("step") == VALUES:  # again, if the key was written again after a first receipt
            state = EarlierRuns(fingerprint=fingerprint, values_receipt=change.receipt)
        elif change.receipt is not None:  # complete: a later run begins a new erasure
            state = EarlierRuns()
    return state


# The topic to search.


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
        may_have_replicas=not manager.topics.describe(topic).is_registered,
        unreadable=unreadable,
        kept=(*kept, *_known_originals(directories, topic)),
    )


def snapshot_topic(snapshot: Snapshot, topic: str, kept: Sequence[Path] = ()) -> SearchedTopic:
    """A topic of a snapshot, without locks. Raises UnknownTopicError."""
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
        may_have_replicas=not description.is_registered,
        unreadable=unreadable,
        kept=(*kept, *_known_originals(roots, topic)),
    )


def roots_of(snapshot: Snapshot) -> list[Path]:
    """The log directories of a snapshot, where their histories and audit logs are."""
    return [directory.path for directory in snapshot.directories]


def _known_originals(directories: Iterable[Path], topic: str) -> list[Path]:
    """The folders with originals of the topic that the history of cleanings names and that are still there,
    and those of all other runs in the same folders KEEP: the history has only the newest cleanings, and of
    the older ones those that name each KEEP."""
    named, keeps = dict[Path, None](), dict[Path, None]()
    for directory in directories:
        with contextlib.suppress(OSError):
            for cleaning in read_cleanings(directory):
                if cleaning.kept_originals is not None and cleaning.keep_folder is not None:
                    keeps[cleaning.keep_folder] = None
                    if cleaning.result.topic == topic:
                        named[Path(cleaning.kept_originals)] = None
    for keep in keeps:
        named |= dict.fromkeys(kept_folders_of(keep, topic))
    return [path for path in named if files.exists(path)]


def _notes(topic: SearchedTopic) -> list[str]:
    """Where copies of the records may be that are not searched here."""
    notes, present = list[str](), len(topic.logs) + len(topic.unreadable)
    if topic.count is not None and topic.count > present:
        others = "erase the key where the others are, too"
        verb = "is" if present == 1 else "are"
        notes.append(f"{present} of the topic's {counted(topic.count, 'partition')} {verb} here: {others}")
    if topic.may_have_replicas:
        notes.append("the topic is a broker's: its other replicas have copies of their own")
    return notes


def find_keys(
    topic: SearchedTopic,
    request: ErasureRequest,
    earlier: Mapping[bytes, EarlierRuns],
    progress: WorkProgress = no_progress,
) -> Erasures:
    """A dry run: where the keys are. Raises OSError."""
    keys, notes = list(earlier), _notes(topic)  # a key that is requested twice is searched once
    searches = search_keys(topic, keys, lambda done, total: progress(topic.name, "searching", done, total))
    erasures = {
        key: _found_erasure(topic.name, search, earlier[key], notes)
        for key, search in zip(keys, searches, strict=True)
    }
    return Erasures(topic=topic.name, dry_run=True, keys=[erasures[key] for key in request.keys])


def _found_erasure(topic: str, search: KeySearch, earlier: EarlierRuns, notes: Sequence[str]) -> Erasure:
    holders = [
        _holder(place, "it has records of the key" if place.damage is None else place.damage, "")
        for place in search.places
    ]
    is_absent = not search.places and earlier.fingerprint is None
    horizons = [place.horizon_ms for place in search.places if place.horizon_ms is not None]
    return Erasure(
        topic=topic,
        status=ABSENT if is_absent else FOUND,
        dry_run=True,
        values=search.values,
        tombstones=search.tombstones,
        partitions=search.partitions,
        files=search.files,
        bytes=search.bytes,
        holders=holders,
        due_ms=None if search.with_values else max(horizons, default=None),
        notes=notes,
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
    refuse_internal(topic, "a tombstone for a key")
    refuse_not_compacted(topic, config, NOT_COMPACTED_ADVICE)


def erase_in(
    directories: BrokerDirectories,
    actor: Actor,
    request: ErasureRequest,
    *,
    dry_run: bool = False,
    engine: EngineName = "auto",
    progress: WorkProgress = no_progress,
) -> Erasures:
    """Erase keys from directories that no process has open; a dry run takes no lock. ``engine``: the
    cleaner's. Raises as ``erase_keys``, and DirectoryLockedError."""
    if not dry_run:
        with opened_for_cleaning(directories, request.topic, engine) as opened:
            return erase_keys(opened, actor, request, progress=progress)
    snapshot = directories.snapshot()
    refuse_topic(request.topic, snapshot.config_of(snapshot.topic(request.topic)))
    earlier = earlier_runs(roots_of(snapshot), SystemClock(), request)
    return find_keys(snapshot_topic(snapshot, request.topic, request.kept), request, earlier, progress)


def erase_keys(
    opened: OpenDirectories,
    actor: Actor,
    request: ErasureRequest,
    *,
    dry_run: bool = False,
    progress: WorkProgress = no_progress,
) -> Erasures:
    """Erase keys: take the steps that can be taken now.

    Raises UnknownTopicError, PolicyViolationError, LogError (a tombstone that the log refuses), StorageError
    (also if the audit log cannot be written; nothing was changed then, or a receipt is missing),
    SiltstoneError, OSError.
    """
    opened.manager.partitions_of(request.topic)
    refuse_topic(request.topic, opened.manager.topics.settings(request.topic))
    directories = [served.path for served in opened.manager.serving()]
    earlier = earlier_runs(directories, opened.manager.clock, request)
    if dry_run:
        topic = opened_topic(opened.manager, request.topic, request.kept)
        return find_keys(topic, request, earlier, progress)
    keys = [_ErasedKey(key, runs) for key, runs in earlier.items()]
    done = dict(zip(earlier, _Erasing(opened, actor, request, keys, progress).run(), strict=True))
    return Erasures(topic=request.topic, dry_run=False, keys=[done[key] for key in request.keys])


class _ErasedKey:
    """One key of a run. ``first``, ``last``: the results of the first and of the newest search;
    ``superseding``: the offset of the tombstone that supersedes the values in a log, -1 if it had no value;
    ``holders``: the files that hold back the receipt of the step that was taken last; ``receipts``: those
    that were written; ``status``: None while there is something to do."""

    def __init__(self, key: bytes, earlier: EarlierRuns) -> None:
        self.key, self.earlier = key, earlier
        self.fingerprint = earlier.fingerprint or KeyFingerprint.of(key)
        self.first = self.last = KeySearch()
        self.superseding = dict[TopicPartition, int]()
        self.holders: Sequence[Holder] = ()
        self.receipts = list[Mapping[str, object]]()
        self.status: str | None = None
        self.due_ms: int | None = None

    def end(self, status: str, holders: Sequence[Holder] = (), due_ms: int | None = None) -> None:
        """Nothing more can be done now."""
        self.status, self.holders, self.due_ms = status, holders, due_ms

    @property
    def unstamped(self) -> list[int]:
        """The partitions with tombstones that no cleaning has given a delete horizon yet."""
        places = [place for place in self.last.places if place.kind == LOG and place.unstamped]
        return [place.partition for place in places if place.partition is not None]


class _Erasing:
    """One run on open directories (``opened``). ``results``: of the last cleaning of each log."""

    def __init__(
        self,
        opened: OpenDirectories,
        actor: Actor,
        request: ErasureRequest,
        keys: Sequence[_ErasedKey],
        progress: WorkProgress,
    ) -> None:
        self.opened, self.actor, self.request = opened, actor, request
        self.keys, self.progress = keys, progress
        self.results = dict[TopicPartition, LogResult]()

    def run(self) -> list[Erasure]:
        """Take the steps that can be taken now, each for all keys that need it."""
        self._search()
        for key in self.keys:
            key.first = key.last
            if not key.first.places and key.earlier.fingerprint is None:
                key.end(ABSENT)
        first_step = [key for key in self._left if key.earlier.values_receipt is None or key.last.with_values]
        self._step(VALUES, first_step)
        for key in first_step:
            if key.holders:
                key.end(HELD, key.holders)
        # The values of the other keys were removed in an earlier run. A tombstone may go only after its
        # delete horizon, and one without a horizon gets it from a cleaning.
        self._stamp([key for key in self._left if key not in first_step and key.unstamped])
        for key in self._left:
            due_ms, waiting = self._waiting(key)
            if waiting or (due_ms is not None and due_ms > self._now_ms()):
                key.end(VALUES_GONE, waiting, due_ms)
        last_step = self._left
        self._step(KEY, last_step)
        for key in last_step:
            until = [holder.until_ms for holder in key.holders if holder.until_ms is not None]
            status = HELD if key.last.with_values else VALUES_GONE
            key.end(status if key.holders else KEY_GONE, key.holders, max(until, default=None))
        notes = _notes(self._topic())
        return [self._result(key, notes) for key in self.keys]

    @property
    def _left(self) -> list[_ErasedKey]:
        """The keys for which there is still something to do."""
        return [key for key in self.keys if key.status is None]

    def _now_ms(self) -> int:
        return self.opened.manager.clock.now_ms()

    def _result(self, key: _ErasedKey, notes: Sequence[str]) -> Erasure:
        assert key.status is not None
        return Erasure(
            topic=self.request.topic,
            status=key.status,
            dry_run=False,
            values=key.first.values,
            tombstones=key.first.tombstones,
            partitions=key.first.partitions,
            files=key.last.files,
            bytes=key.last.bytes,
            holders=tuple(key.holders),
            receipts=tuple(key.receipts),
            due_ms=key.due_ms,
            notes=notes,
        )

    def _topic(self) -> SearchedTopic:
        return opened_topic(self.opened.manager, self.request.topic, self.request.kept)

    def _topic_partition(self, partition: int) -> TopicPartition:
        return TopicPartition(self.request.topic, partition)

    # One step

    def _step(self, step: str, keys: Sequence[_ErasedKey]) -> None:
        """Take a step for some keys, and search again. A key that some file still has gets ``holders``; the
        others get a receipt."""
        if not keys:
            return
        changes, begun, outcome = self.opened.changes, dict[str, _ErasedKey](), INTERRUPTED
        try:
            for key in keys:
                change_id = changes.begin(
                    self.actor,
                    ERASE_KEY,
                    self.request.topic,
                    before={"values": key.last.values, "tombstones": key.last.tombstones},
                    after={"key": key.fingerprint.to_json(), "step": step},
                )
                begun[change_id] = key
            self._remove(step, keys)
            self._search_at_rest()
            topic = self._topic()
            for change_id, key in list(begun.items()):
                places = key.last.with_values if step == VALUES else key.last.places
                key.holders = [self._explained(place, key) for place in places]
                if key.holders:
                    kinds = sorted({holder.kind for holder in key.holders})
                    changes.end(change_id, f"held: {', '.join(kinds)}: {key.holders[0].reason}")
                else:
                    receipt = self._receipt(step, topic, key)
                    changes.end_with_receipt(change_id, receipt)
                    key.receipts.append(receipt)
                del begun[change_id]
        except Exception as error:
            outcome = f"failed: {error}"
            raise
        finally:
            for change_id in begun:
                changes.end(change_id, outcome)

    def _receipt(self, step: str, topic: SearchedTopic, key: _ErasedKey) -> Mapping[str, object]:
        return {
            "step": step,
            "states": _STATEMENTS[step],
            "at_ms": self._now_ms(),
            "topic": topic.name,
            "key": key.fingerprint.to_json(),
            "partitions": [log.topic_partition.partition for log in topic.logs],
            "files": key.last.files,
            "bytes": key.last.bytes,
            "kept_originals": [str(path) for path in topic.kept],
        }

    def _remove(self, step: str, keys: Sequence[_ErasedKey]) -> None:
        """Write the tombstones that are missing, and clean the logs with records that have to go."""
        to_clean = set[TopicPartition]()
        for key in keys:
            has_key = set[TopicPartition]()
            for place in key.last.places:
                if place.kind != LOG or place.partition is None or place.damage is not None:
                    continue
                if step == KEY or place.values or place.unstamped:
                    has_key.add(self._topic_partition(place.partition))
            for topic_partition in has_key if step == VALUES else ():
                self._supersede(topic_partition, key)
            to_clean |= has_key
        self.progress(self.request.topic, "cleaning", 0, 0)
        self.results |= self.opened.clean_fully(to_clean)

    def _stamp(self, keys: Sequence[_ErasedKey]) -> None:
        """Clean the logs with tombstones of these keys that no cleaning has given a delete horizon yet, and
        search again."""
        logs = {self._topic_partition(number) for key in keys for number in key.unstamped}
        if not logs:
            return
        changes = self.opened.changes
        with changes.recorded(self.actor, "clean", self.request.topic, after={"force": True}) as change:
            results = self.opened.clean_fully(logs)
            self.results |= results
            note_failures(change, results.values())
        self._search()

    def _supersede(self, topic_partition: TopicPartition, key: _ErasedKey) -> None:
        """Append a tombstone, unless the log has one already that supersedes the values, as after a run that
        was interrupted. One of a transaction, which may be aborted, does not count. Raises LogError."""
        places = key.last.in_log(topic_partition.partition)
        last_value = max((place.last_value for place in places if place.last_value is not None), default=-1)
        plain = [place.last_plain_tombstone for place in places if place.last_plain_tombstone is not None]
        last_tombstone = max(plain, default=-1)
        served = self.opened.manager.directory_of(topic_partition)
        first_dirty = served.cleaner_checkpoint().get(topic_partition, 0)
        # A cleaning compares older records with those of the dirty section only, so the tombstone must be
        # there.
        if last_value < 0 or last_tombstone > max(last_value, first_dirty - 1):
            key.superseding[topic_partition] = last_tombstone
            return
        log, tombstone = self.opened.manager.get(topic_partition), NewRecord(key=key.key)
        try:
            appended = append(log, [tombstone], now_ms=self._now_ms(), sync=True)
        except LogError as error:
            if len(self.keys) > 1:  # the user has to know which key of the list to leave out
                error.reason = f"key {self.request.keys.index(key.key) + 1}: {error.reason}"
            raise
        key.superseding[topic_partition] = appended.first_offset

    # Searching

    def _search(self) -> None:
        """Search all keys that are left."""
        name, keys = self.request.topic, self._left
        searches = search_keys(
            self._topic(),
            [key.key for key in keys],
            lambda done, total: self.progress(name, "searching", done, total),
        )
        for key, search in zip(keys, searches, strict=True):
            key.last = search

    def _search_at_rest(self) -> None:
        """Remove the files that wait for their removal, and search, while nothing else writes."""
        manager = self.opened.manager
        with contextlib.ExitStack() as stack:
            for log in self._topic().logs:
                stack.enter_context(manager.files_at_rest(log.topic_partition))
                manager.remove_leftovers(log.topic_partition)
            self._search()

    # What holds the key

    def _waiting(self, key: _ErasedKey) -> tuple[int | None, Sequence[Holder]]:
        """When the tombstones may go (None: there are none), and the holders with a tombstone for which that
        is not known yet."""
        in_logs = [place for place in key.last.places if place.kind == LOG and place.tombstones]
        horizons = [place.horizon_ms for place in in_logs if place.horizon_ms is not None]
        unstamped = [self._explained(place, key) for place in in_logs if place.unstamped]
        return max(horizons, default=None), unstamped

    def _explained(self, place: KeyPlace, key: _ErasedKey) -> Holder:
        """Why a file has the key still, and what to do."""
        if place.damage is not None:
            advice = f"repair or remove it, then {RUN_AGAIN}"
            return _holder(place, f"it cannot be searched: {place.damage}", advice)
        if place.kind != LOG or place.partition is None:
            reason = f"{place.kind}: {'a value' if place.values else 'a tombstone'} of the key is there"
            return _holder(place, reason, _ADVICE.get(place.kind, RUN_AGAIN))
        hold = self._why_left(place, self._topic_partition(place.partition), key)
        return _holder(place, hold.reason, hold.advice, hold.until_ms)

    def _why_left(self, place: KeyPlace, topic_partition: TopicPartition, key: _ErasedKey) -> NotRemoved:
        """Why a segment of the log still has the key after the last cleaning."""
        last_tombstone = _last_tombstone(key.last.in_log(topic_partition.partition))
        last_value = -1 if place.last_value is None else place.last_value
        if last_value > max(last_tombstone, key.superseding.get(topic_partition, last_value)):
            return NotRemoved(
                reason=f"a value was written again at offset {last_value}",
                advice=f"stop what writes it, then {RUN_AGAIN}",
            )
        held = self.opened.why_not_removed(
            topic_partition, max(last_value, last_tombstone), self.results.get(topic_partition)
        )
        if held is not None:
            return held
        conditions = self.opened.conditions(topic_partition)
        bound, newest_ms = conditions.bounds.tombstones_from, conditions.horizons.newest_ms
        if not place.values and last_tombstone >= bound:
            reason = f"side-by-side compaction has only reached offset {bound}, and needs the tombstone"
            return NotRemoved(reason=reason, advice=COMPACT_ADVICE)
        if not place.values and newest_ms is not None and newest_ms > conditions.now_ms:
            reason = (
                f"nothing in the log is dirty, and other tombstones stay until {time_text(newest_ms)}; "
                "it is cleaned when all of them may go"
            )
            return NotRemoved(reason=reason, advice=f"{RUN_AGAIN} after that time", until_ms=newest_ms)
        return NotRemoved(reason="the cleaning has not removed it")


def _last_tombstone(places: Iterable[KeyPlace]) -> int:
    """The offset of the last tombstone of the key in a log, -1 without one."""
    return max((place.last_tombstone for place in places if place.last_tombstone is not None), default=-1)


def holder_text(topic: str, holder: Holder) -> str:
    """A line that describes a holder."""
    advice = f"; {holder.advice}" if holder.advice else ""
    where = partition_name(topic, holder.partition)
    return f"{where}: {holder.path}: {holder.reason}{advice}"
