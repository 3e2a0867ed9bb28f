"""A key is erased: what a receipt says holds, byte by byte; what holds the key is said, and has no
receipt."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.errors import (
    LogError,
    MessageTooLargeError,
    PolicyViolationError,
    StorageError,
    UnknownTopicError,
    UsageError,
)
from siltstone.commands import erasing
from siltstone.commands.changes import CHANGES_FILE, Actor, ChangeLog
from siltstone.commands.erasing import (
    ABSENT,
    ERASE_KEY,
    FOUND,
    HELD,
    KEY_GONE,
    KEYS_MAX,
    VALUES_GONE,
    Erasure,
    ErasureRequest,
    KeyFingerprint,
    erase_keys,
    parse_key,
)
from siltstone.commands.forced_cleaning import OpenDirectories
from siltstone.commands.key_search import ELSEWHERE, KEPT, LEDGER, LOG, STAGED, WRITE
from siltstone.compaction.ledger.compactor import InProcessCompactionEngine, TwoPhaseCompactor
from siltstone.compaction.report import Cleaning, LogResult, append_cleanings
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.runtime.producing import NewRecord, append
from tests.support.cleaning.serving import USERS, TransactionalWriter, serving, table, write
from tests.support.log.managed import NOW

_random = random.Random(25)
KEY, VALUE = _random.randbytes(24), _random.randbytes(120)
"""No codec can make random bytes shorter, so they stand in a compressed file as they are."""
ACTOR = Actor(user="ada", way="cli")
RETENTION = 86_400_000


@contextmanager
def open_at(
    path: Path,
    clock: ManualClock | None = None,
    *,
    partitions: int = 1,
    topic: Mapping[str, str] | None = None,
) -> Iterator[OpenDirectories]:
    with serving(path, clock=clock, partitions=partitions, topic=topic) as (manager, cleaner):
        changes = ChangeLog(manager.serving()[0].path, manager.clock)
        yield OpenDirectories(manager=manager, cleaner=cleaner, changes=changes)


def put(log: PartitionLog, value: bytes | None = VALUE, key: bytes = KEY) -> None:
    append(log, [NewRecord(key=key, value=value)], now_ms=NOW)


def erase(here: OpenDirectories, key: bytes = KEY, *kept: Path, dry_run: bool = False) -> Erasure:
    request = ErasureRequest(topic="users", keys=(key,), kept=kept)
    return erase_keys(here, ACTOR, request, dry_run=dry_run).keys[0]


def files_with(path: Path, needle: bytes) -> list[str]:
    """The files of a directory in which the bytes occur."""
    return sorted(
        str(file.relative_to(path))
        for file in path.rglob("*")
        if file.is_file() and needle in file.read_bytes()
    )


def outcomes(here: OpenDirectories) -> list[str | None]:
    return [change.outcome for change in here.changes.all_of(ERASE_KEY, "users")]


def receipts(here: OpenDirectories) -> list[object]:
    changes = here.changes.all_of(ERASE_KEY, "users")
    return [change.receipt["step"] for change in changes if change.receipt is not None]


def tombstones(log: PartitionLog, key: bytes = KEY) -> int:
    return sum(record.key == key and record.value is None for record in log)


@pytest.mark.parametrize("codec", ["uncompressed", "zstd"])
def test_what_the_receipts_say_is_true_of_every_byte(tmp_path: Path, codec: str) -> None:
    clock = ManualClock(NOW)
    with open_at(tmp_path, clock, partitions=2, topic={"compression.type": codec}) as here:
        logs = here.manager["users"].logs()
        for log in logs:  # partition 1 is not where Kafka's partitioner sends the key
            write(log, 12)
            put(log)
            write(log, 12)
            put(log, VALUE[::-1])
        others = [table(log) for log in logs]
        for before in others:
            before.pop(KEY)
        assert files_with(tmp_path, VALUE) and files_with(tmp_path, KEY)
        done = erase(here)
        assert (done.status, done.values, done.partitions, done.holders) == (VALUES_GONE, 4, [0, 1], ())
        assert done.due_ms == NOW + RETENTION
        assert files_with(tmp_path, VALUE) == files_with(tmp_path, VALUE[::-1]) == []
        assert files_with(tmp_path, KEY), "the tombstones have it"
        assert [table(log) for log in logs] == others
        ends = [log.log_end_offset for log in logs]
        early = erase(here)
        assert (early.status, early.receipts, early.due_ms) == (VALUES_GONE, (), NOW + RETENTION)
        assert [log.log_end_offset for log in logs] == ends, "no tombstone is written twice"
        clock.advance(RETENTION + 1)
        last = erase(here)
        assert (last.status, last.due_ms, last.values, last.tombstones) == (KEY_GONE, None, 0, 2)
        assert files_with(tmp_path, KEY) == [], "not in the audit log either"
        assert [table(log) for log in logs] == others
        assert receipts(here) == ["values", "key"]
        assert erase(here).status == ABSENT
    assert files_with(tmp_path, KEY) == files_with(tmp_path, VALUE) == [], "nor after the close"


def test_both_steps_of_an_erasure_have_one_salted_hash(tmp_path: Path) -> None:
    with open_at(tmp_path, topic={"delete.retention.ms": "0"}) as here:
        for _ in range(2):
            put(here.manager["users", 0])
            done = erase(here)
            assert done.status == KEY_GONE
            assert [receipt["step"] for receipt in done.receipts] == ["values", "key"]
        keys = [
            KeyFingerprint.parse(change.after["key"]) for change in here.changes.all_of(ERASE_KEY, "users")
        ]
        assert keys[0] == keys[1] != keys[2] == keys[3]
        assert all(key is not None and key.is_of(KEY) and not key.is_of(KEY + b"x") for key in keys)


@pytest.mark.parametrize(
    "key", [b"", b"\x00\n\r\x1b[31m\xff", b"K" * 1_000_000], ids=["empty", "control", "1 MB"]
)
def test_any_key_is_erased(tmp_path: Path, key: bytes) -> None:
    with open_at(tmp_path, topic={"delete.retention.ms": "0", "segment.bytes": "10000000"}) as here:
        put(here.manager["users", 0], key=key)
        put(here.manager["users", 0], b"other", key=b"other")
        assert erase(here, key).status == KEY_GONE
        assert [record.key for record in here.manager["users", 0]] == [b"other"]
        if key:
            assert files_with(tmp_path, key) == []


def test_many_keys_are_searched_and_cleaned_together_with_a_receipt_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, keys = ManualClock(NOW), tuple(b"key-%d" % number for number in range(5))
    absent, request = b"nobody", ErasureRequest(topic="users", keys=(*keys, b"nobody", keys[0]))
    with open_at(tmp_path, clock, partitions=2) as here:
        logs = here.manager["users"].logs()
        for number, key in enumerate(keys):
            put(logs[number % 2], key=key)
            put(logs[0], key=key)
        put(logs[1], b"stays", key=b"other")
        searches, cleanings = list[int](), list[int]()
        search, clean = erasing.search_keys, OpenDirectories.clean_fully

        def counted_search(topic: Any, keys: Any, *more: Any) -> Any:
            searches.append(len(keys))
            return search(topic, keys, *more)

        def counted_clean(here: OpenDirectories, logs: Any) -> Any:
            cleanings.append(len(logs))
            return clean(here, logs)

        monkeypatch.setattr(erasing, "search_keys", counted_search)
        monkeypatch.setattr(OpenDirectories, "clean_fully", counted_clean)
        looked = erase_keys(here, ACTOR, request, dry_run=True)
        assert [key.status for key in looked.keys] == [FOUND] * 5 + [ABSENT, FOUND]
        done = erase_keys(here, ACTOR, request)
        assert [key.status for key in done.keys] == [VALUES_GONE] * 5 + [ABSENT, VALUES_GONE]
        assert [key.values for key in done.keys] == [2] * 5 + [0, 2]
        assert (searches, cleanings) == ([6, 6, 5], [2])
        assert not done.is_complete and "5 of 7" not in done.sentence and "6 of 7 keys" in done.sentence
        # A key that is written again goes through the first step again, while the others take the second.
        clock.advance(RETENTION + 1)
        put(logs[0], key=keys[2])
        again = erase_keys(here, ACTOR, ErasureRequest(topic="users", keys=keys))
        assert [key.status for key in again.keys] == [KEY_GONE] * 2 + [VALUES_GONE] + [KEY_GONE] * 2
        assert "key-" not in here.changes.path.read_text() and absent.decode() not in str(again.to_json())
        receipts = [
            change.receipt for change in here.changes.all_of(ERASE_KEY, "users") if change.receipt is not None
        ]
        assert [receipt["step"] for receipt in receipts] == ["values"] * 6 + ["key"] * 4
        proofs = [KeyFingerprint.parse(receipt["key"]) for receipt in receipts]
        assert [sum(proof is not None and proof.is_of(key) for proof in proofs) for key in keys] == [2] * 5
    assert [record.value for record in table_of(tmp_path)] == [b"stays", None]


def table_of(path: Path) -> list[Any]:
    """All records that are left."""
    with open_at(path, partitions=2) as here:
        return sorted(
            (record for log in here.manager["users"].logs() for record in log),
            key=lambda record: record.value is None,
        )


def test_one_key_that_is_refused_is_named_by_its_place(tmp_path: Path) -> None:
    with open_at(tmp_path, topic={"max.message.bytes": "300"}) as here:
        log, long = here.manager["users", 0], b"k" * 200
        put(log, b"v", key=long)
        put(log, b"v", key=KEY)
        here.manager.topics.alter("users", {"max.message.bytes": "150"})
        with pytest.raises(LogError, match="key 2: "):
            erase_keys(here, ACTOR, ErasureRequest(topic="users", keys=(KEY, long)))
        assert {str(change.outcome).partition(":")[0] for change in here.changes.newest()} == {"failed"}


@pytest.mark.parametrize("count", [0, KEYS_MAX + 1])
def test_too_many_keys_or_none(count: int) -> None:
    with pytest.raises(UsageError, match="keys cannot be erased together"):
        ErasureRequest(topic="users", keys=(KEY,) * count)


def test_a_dry_run_finds_and_changes_nothing(tmp_path: Path) -> None:
    with open_at(tmp_path) as here:
        put(here.manager["users", 0])
        found = erase(here, dry_run=True)
        assert (found.status, found.values, found.tombstones) == (FOUND, 1, 0)
        assert [(holder.kind, holder.partition) for holder in found.holders] == [(LOG, 0)]
        assert erase(here, b"nobody", dry_run=True).status == ABSENT
        assert here.manager["users", 0].log_end_offset == 1
        assert not (tmp_path / CHANGES_FILE).exists()


def test_a_key_that_no_record_has_is_not_receipted(tmp_path: Path) -> None:
    with open_at(tmp_path) as here:
        put(here.manager["users", 0])
        assert erase(here, b"nobody").status == ABSENT
        assert here.changes.newest() == []


# What holds the key.


def test_a_compaction_lag_holds_it_until_then(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with open_at(tmp_path, clock, topic={"min.compaction.lag.ms": "60000"}) as here:
        log = here.manager["users", 0]
        put(log)
        done = erase(here)
        (holder,) = done.holders
        assert (done.status, done.receipts, holder.kind) == (HELD, (), LOG)
        assert holder.until_ms == NOW + 60_000 and "min.compaction.lag.ms" in holder.reason
        assert files_with(tmp_path, VALUE)
        clock.advance(60_001)
        assert erase(here).status == VALUES_GONE
        assert tombstones(log) == 1 and files_with(tmp_path, VALUE) == []
        assert [str(outcome).split(":")[0] for outcome in outcomes(here)] == ["held", "done"]


def test_an_open_transaction_holds_it(tmp_path: Path) -> None:
    with open_at(tmp_path) as here:
        log = here.manager["users", 0]
        put(log)
        writer = TransactionalWriter(log, 7)
        writer.put("other", "x")
        done = erase(here)
        assert done.status == HELD and "transaction" in done.holders[0].reason
        assert "transaction" in done.holders[0].advice
        writer.end(commit=True)
        assert erase(here).status == VALUES_GONE


def test_records_of_an_aborted_transaction_are_erased_too(tmp_path: Path) -> None:
    with open_at(tmp_path) as here:
        log = here.manager["users", 0]
        writer = TransactionalWriter(log, 7)
        writer.put("anna", "in-the-aborted-one")
        writer.end(commit=False)
        assert files_with(tmp_path, b"in-the-aborted-one")
        done = erase(here, b"anna")
        assert (done.status, done.values) == (VALUES_GONE, 1)
        assert files_with(tmp_path, b"in-the-aborted-one") == []


@pytest.mark.parametrize("commit", [False, True])
def test_a_tombstone_of_a_transaction_leaves_the_value_to_one_that_nothing_aborts(
    tmp_path: Path, commit: bool
) -> None:
    with open_at(tmp_path) as here:
        log = here.manager["users", 0]
        put(log, key=b"anna")
        writer = TransactionalWriter(log, 7)
        writer.put("anna", None)
        writer.end(commit=commit)
        assert erase(here, b"anna").status == VALUES_GONE
        assert files_with(tmp_path, VALUE) == [] and tombstones(log, b"anna") == 1


@pytest.mark.parametrize("segment_bytes", ["300", "100000"])
def test_a_value_below_the_log_start_is_erased_too(tmp_path: Path, segment_bytes: str) -> None:
    settings = {"cleanup.policy": "compact,delete", "segment.bytes": segment_bytes}
    with open_at(tmp_path, topic=settings) as here:
        log = here.manager["users", 0]
        put(log)
        write(log, 5)
        here.manager.delete_records(USERS, 3)
        assert files_with(tmp_path, VALUE), "no reader gets it, and it is there"
        done = erase(here)
        assert (done.status, done.values) == (VALUES_GONE, 1)
        assert files_with(tmp_path, VALUE) == []


def test_a_log_that_is_left_alone_holds_it(tmp_path: Path) -> None:
    with open_at(tmp_path) as here:
        put(here.manager["users", 0])
        here.cleaner.pause(USERS)
        done = erase(here)
        assert done.status == HELD and done.holders[0].reason == "the cleaning of the log is paused"
        here.cleaner.resume(USERS)
        here.manager.mark_uncleanable(USERS, "byte 61 is damaged", NOW)
        done = erase(here)
        assert done.status == HELD and "byte 61 is damaged" in done.holders[0].reason
        here.manager.retry_cleaning(USERS)
        assert erase(here).status == VALUES_GONE
        assert tombstones(here.manager["users", 0]) == 1


def test_a_value_that_is_written_meanwhile_holds_it(tmp_path: Path) -> None:
    with open_at(tmp_path) as here:
        log = here.manager["users", 0]
        put(log)

        def produce(_: str, stage: str, done: int, total: int) -> None:
            if stage == "cleaning":
                put(log, b"again")

        request = ErasureRequest(topic="users", keys=(KEY,))
        (done,) = erase_keys(here, ACTOR, request, progress=produce).keys
        assert done.status == HELD and "written again at offset 2" in done.holders[0].reason
        assert receipts(here) == []
        assert erase(here).status == VALUES_GONE


def test_a_key_that_is_written_again_later_needs_a_new_first_receipt(tmp_path: Path) -> None:
    with open_at(tmp_path) as here:
        log = here.manager["users", 0]
        put(log)
        assert erase(here).status == VALUES_GONE
        put(log)
        assert [receipt["step"] for receipt in erase(here).receipts] == ["values"]
        assert receipts(here) == ["values", "values"]


def test_other_younger_tombstones_of_an_idle_log_delay_the_second_step(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with open_at(tmp_path, clock) as here:
        log = here.manager["users", 0]
        put(log)
        assert erase(here).status == VALUES_GONE
        clock.advance(RETENTION // 2)
        put(log, None, b"other")
        here.cleaner.clean_now(["users"], force=True)
        clock.advance(RETENTION // 2 + 1)
        done = erase(here)
        assert done.status == VALUES_GONE and done.due_ms == NOW + RETENTION // 2 + RETENTION
        clock.advance(RETENTION // 2)
        assert erase(here).status == KEY_GONE


def test_a_tombstone_that_no_cleaning_has_seen_is_stamped_by_the_next_run(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with open_at(tmp_path, clock) as here:
        put(here.manager["users", 0], None)
        here.cleaner.pause(USERS)
        done = erase(here)
        assert (done.status, receipts(here), done.due_ms) == (VALUES_GONE, ["values"], None)
        assert done.holders[0].reason == "the cleaning of the log is paused"
        here.cleaner.resume(USERS)
        clock.advance(5)
        done = erase(here)
        assert (done.status, done.holders, done.due_ms) == (VALUES_GONE, (), NOW + 5 + RETENTION)
        clock.advance(RETENTION)
        assert erase(here).status == KEY_GONE
        assert receipts(here) == ["values", "key"]


def test_a_partition_that_cannot_be_opened_may_have_the_key(tmp_path: Path) -> None:
    with open_at(tmp_path, partitions=2) as here:
        put(here.manager["users", 0])
    metadata = tmp_path / "users-1" / "partition.metadata"
    whole = metadata.read_bytes()
    metadata.write_bytes(b"?")
    with open_at(tmp_path) as here:
        done = erase(here)
        assert done.status == HELD and [holder.partition for holder in done.holders] == [1]
        assert "cannot be searched" in done.holders[0].reason
        assert files_with(tmp_path, VALUE) == [] and receipts(here) == []
    metadata.write_bytes(whole)
    with open_at(tmp_path) as here:
        assert erase(here).status == VALUES_GONE


# Copies beside the log.


def copied(here: OpenDirectories, target: Path) -> Path:
    """A copy of the first segment's file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    here.manager["users", 0].flush()
    shutil.copy(here.manager["users", 0].directory / f"{0:020d}.log", target)
    return target


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (WRITE, "users-0/.siltstone-writes/w/0-1.batches"),
        (ELSEWHERE, f"users-0.{'0' * 32}-delete/{0:020d}.log"),
        (ELSEWHERE, f"users-3.{'0' * 32}-stray/{0:020d}.log"),
        (LEDGER, f"users-0/.compacted/run-x/{0:020d}.0.log"),
    ],
)
def test_a_copy_that_is_not_ours_to_remove_is_named(tmp_path: Path, kind: str, place: str) -> None:
    with open_at(tmp_path) as here:
        put(here.manager["users", 0])
        copy = copied(here, tmp_path / place)
        done = erase(here)
        assert done.status == HELD and [(holder.kind, holder.path) for holder in done.holders] == [
            (kind, str(copy))
        ]
        assert done.holders[0].advice
        copy.unlink()
        assert erase(here).status == VALUES_GONE


def test_what_an_interrupted_cleaning_left_is_removed(tmp_path: Path) -> None:
    with open_at(tmp_path) as here:
        put(here.manager["users", 0])
        staged = copied(here, tmp_path / "users-0" / ".siltstone" / "RUN" / f"{0:020d}.1.piece")
        found = erase(here, dry_run=True)
        assert sorted(holder.kind for holder in found.holders) == [LOG, STAGED]
        assert erase(here).status == VALUES_GONE
        assert not staged.exists()


def test_a_topic_with_a_similar_name_is_not_searched(tmp_path: Path) -> None:
    with open_at(tmp_path) as here:
        put(here.manager["users", 0])
        copied(here, tmp_path / f"users-x-0.{'0' * 32}-delete" / f"{0:020d}.log")
        assert erase(here).status == VALUES_GONE


def test_a_damaged_copy_may_have_the_key(tmp_path: Path) -> None:
    with open_at(tmp_path) as here:
        put(here.manager["users", 0], b"small", b"other")
        put(here.manager["users", 0])
        copy = copied(here, tmp_path / "users-0" / ".siltstone-writes" / "w" / "0-1.batches")
        content = bytearray(copy.read_bytes())
        content[-1] ^= 1
        copy.write_bytes(content)
        done = erase(here)
        assert done.status == HELD and "cannot be searched" in done.holders[0].reason
        assert receipts(here) == []


@pytest.mark.parametrize("by_history", [False, True])
def test_kept_originals_are_searched(tmp_path: Path, by_history: bool) -> None:
    root, keep = tmp_path / "logs", tmp_path / "keep"
    with open_at(root) as here:
        put(here.manager["users", 0])
        copy = copied(here, keep / "RUN" / "users-0" / f"{0:020d}.log")
        copied(here, keep / "RUN" / "orders-0" / f"{0:020d}.log")
        if by_history:
            result = LogResult(topic="users", partition=0, directory="", status="cleaned")
            append_cleanings(root, [Cleaning(began_ms=NOW, result=result, kept_originals=str(copy.parent))])
            done = erase(here)
        else:
            done = erase(here, KEY, keep)
        assert done.status == HELD and [(holder.kind, holder.path) for holder in done.holders] == [
            (KEPT, str(copy))
        ]
        shutil.rmtree(copy.parent)
        assert erase(here).status == VALUES_GONE


def test_kept_originals_of_a_run_that_the_history_has_forgotten_are_searched(tmp_path: Path) -> None:
    """They are beside those of a run that it has."""
    root, keep = tmp_path / "logs", tmp_path / "keep"
    with open_at(root) as here:
        put(here.manager["users", 0])
        copy = copied(here, keep / "EARLIER" / "users-0" / f"{0:020d}.log")
        other = copied(here, keep / "EARLIER" / "orders-0" / f"{0:020d}.log")
        for folder in (copy.parent, other.parent):
            (folder / "undo.json").write_text("{}")
        result = LogResult(topic="orders", partition=0, directory="", status="cleaned")
        last = str(keep / "LAST" / "orders-0")
        append_cleanings(root, [Cleaning(began_ms=NOW, result=result, kept_originals=last)])
        assert [each.path for each in erase(here).holders] == [str(copy)]


def test_kept_originals_of_a_fleet_are_searched_and_those_that_are_named_twice_counted_once(
    tmp_path: Path,
) -> None:
    root, keep = tmp_path / "logs", tmp_path / "keep"
    with open_at(root) as here:
        put(here.manager["users", 0])
        copy = copied(here, keep / "rack1" / "broker1" / "RUN" / "users-0" / f"{0:020d}.log")
        found = erase(here, KEY, keep, keep / "rack1", copy.parent, dry_run=True)
        assert [(holder.kind, holder.path) for holder in found.holders][1:] == [(KEPT, str(copy))]
        assert found.values == 2 and found.files == 2
        assert erase(here, KEY, keep).status == HELD and receipts(here) == []


def compacted(here: OpenDirectories) -> None:
    log = here.manager["users", 0]
    log.flush()
    TwoPhaseCompactor(InProcessCompactionEngine(1), clock=here.manager.clock).compact(log)


def test_a_compacted_ledger_holds_the_values_and_then_the_tombstone(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with open_at(tmp_path, clock) as here:
        put(here.manager["users", 0])
        write(here.manager["users", 0], 3)
        compacted(here)
        done = erase(here)
        assert done.status == HELD and {holder.kind for holder in done.holders} == {LEDGER}
        assert "compact-topic" in done.holders[0].advice
        store = LedgerStore(here.manager["users", 0].directory)
        store.delete_cursor()
        store.delete_unused()
        compacted(here)
        assert erase(here).status == VALUES_GONE
        clock.advance(RETENTION + 1)
        assert erase(here).status == KEY_GONE


# Interruptions.


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(5, "Input/output error")], ids=["ctrl-c", "disk"]
)
def test_what_is_interrupted_between_tombstone_and_cleaning_continues(
    tmp_path: Path, error: BaseException
) -> None:
    def stop(_: str, stage: str, done: int, total: int) -> None:
        if stage == "cleaning":
            raise error

    request, root = ErasureRequest(topic="users", keys=(KEY,)), tmp_path / "logs"
    with open_at(root) as here:
        put(here.manager["users", 0])
        with pytest.raises(type(error)):
            erase_keys(here, ACTOR, request, progress=stop)
        assert receipts(here) == []
    crashed = tmp_path / "crashed"
    shutil.copytree(root, crashed)
    (crashed / ".kafka_cleanshutdown").unlink()
    with open_at(crashed) as here:
        assert tombstones(here.manager["users", 0]) == 1
        assert erase(here).status == VALUES_GONE
        assert tombstones(here.manager["users", 0]) == 1
        assert files_with(crashed, VALUE) == []


def test_a_tombstone_below_the_checkpoint_is_written_again(tmp_path: Path) -> None:
    """A value and a later tombstone in the clean section stay: a cleaning compares with the dirty section
    only."""
    with open_at(tmp_path) as here:
        log, served = here.manager["users", 0], here.manager.directory_of(USERS)
        put(log)
        put(log, None)
        log.roll()
        log.flush()
        served.write_cleaner_checkpoint(USERS, log.log_end_offset)
        assert erase(here).status == VALUES_GONE
        assert files_with(tmp_path, VALUE) == []


def test_a_receipt_that_cannot_be_written_is_written_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_at(tmp_path, topic={"delete.retention.ms": "0"}) as here:
        put(here.manager["users", 0])
        write_line = here.changes._append

        def full(line: Mapping[str, object]) -> None:
            if "receipt" in line:
                raise OSError(28, "No space left on device")
            write_line(line)

        monkeypatch.setattr(here.changes, "_append", full)
        with pytest.raises(StorageError, match="the receipt cannot be written"):
            erase(here)
        assert files_with(tmp_path, VALUE) == [] and receipts(here) == []
        monkeypatch.undo()
        here.cleaner.clean_now(["users"], force=True)  # now the tombstone is gone, too
        assert erase(here).status == KEY_GONE
        assert receipts(here) == ["values", "key"]


def test_what_cannot_be_recorded_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(line: object) -> None:
        raise OSError(28, "No space left on device")

    with open_at(tmp_path) as here:
        put(here.manager["users", 0])
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        monkeypatch.setattr(here.changes, "_append", full)
        with pytest.raises(StorageError, match="not recorded"):
            erase(here)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_cleaning_that_is_under_way_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_at(tmp_path) as here:
        put(here.manager["users", 0])
        claim = here.manager.cleaning_states.begin(USERS)
        assert claim is not None
        wait = here.manager.cleaning_states.wait_until_unclaimed

        def end_then_wait(log: TopicPartition, timeout: float | None = None) -> bool:
            claim.done()
            return wait(log, timeout)

        monkeypatch.setattr(here.manager.cleaning_states, "wait_until_unclaimed", end_then_wait)
        assert erase(here).status == VALUES_GONE


def test_a_tombstone_that_the_log_refuses_is_an_error_without_the_key(tmp_path: Path) -> None:
    with open_at(tmp_path) as here:
        key = b"user-4711" * 20
        put(here.manager["users", 0], key=key)
        here.manager.topics.alter("users", {"max.message.bytes": "100"})
        with pytest.raises(MessageTooLargeError) as refused:
            erase(here, key)
        assert "user-4711" not in str(refused.value) + (tmp_path / CHANGES_FILE).read_text()
        assert [str(outcome).split(":")[0] for outcome in outcomes(here)] == ["failed"]
        assert here.manager["users", 0].log_end_offset == 1


# What is refused, and what is kept of a key.


def test_topics_from_which_no_key_can_be_erased(tmp_path: Path) -> None:
    with open_at(tmp_path) as here:
        here.manager.topics.create("events", 1, {"cleanup.policy": "delete"})
        here.manager.topics.create("__consumer_offsets", 1, {"cleanup.policy": "compact"})
        for topic, says in (("events", "cleanup.policy=delete"), ("__consumer_offsets", "an internal topic")):
            with pytest.raises(PolicyViolationError, match=says) as refused:
                erase_keys(here, ACTOR, ErasureRequest(topic=topic, keys=(KEY,)))
            assert refused.value.advice
        with pytest.raises(UnknownTopicError):
            erase_keys(here, ACTOR, ErasureRequest(topic="nobody", keys=(KEY,)))
        with pytest.raises(UsageError, match="null"):
            ErasureRequest(topic="users", keys=(None,))  # type: ignore[arg-type]
        assert here.changes.newest() == []


def test_keys_are_written_in_three_ways() -> None:
    assert parse_key("añ") == parse_key("61c3b1", "hex") == parse_key("YcOx", "base64") == b"a\xc3\xb1"
    assert parse_key("\udcff") == b"\xff"
    for text, key_format in (("6", "hex"), ("?", "base64"), ("\ud800", "utf8"), ("a", "rot13")):
        with pytest.raises(UsageError):
            parse_key(text, key_format)


def test_nothing_that_is_kept_or_returned_has_the_key_or_a_value(tmp_path: Path) -> None:
    key, value = b"user-4711@example.org", b"born in Ulm"
    with open_at(tmp_path, topic={"min.compaction.lag.ms": "60000"}) as here:
        put(here.manager["users", 0], value, key)
        done = erase(here, key)
        text = json.dumps(done.to_json()) + (tmp_path / CHANGES_FILE).read_text()
        assert done.status == HELD and "user-4711" not in text and "Ulm" not in text
        assert KeyFingerprint.of(key).sha256 not in text, "the salt is random"


def test_a_foreign_line_of_the_audit_log_is_passed_over(tmp_path: Path) -> None:
    with open_at(tmp_path) as here:
        lines: list[Callable[[], object]] = [
            lambda: here.changes.begin(ACTOR, ERASE_KEY, "users", after={"key": "x", "step": "values"}),
            lambda: here.changes.begin(
                ACTOR, ERASE_KEY, "users", after={"key": {"salt": "zz", "sha256": ""}}
            ),
            lambda: here.changes.begin(ACTOR, ERASE_KEY, "users"),
        ]
        for line in lines:
            line()
        assert erase(here).status == ABSENT
        put(here.manager["users", 0])
        assert erase(here).status == VALUES_GONE
