"""Ways to spoil a sound result of Kafka's cleaner, and the problems that a check must then find."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from siltstone.log.indexes import TRANSACTION_ENTRY
from tests.support import golden_sets
from tests.support.records.twin import Record
from tests.support.verify.editing import (
    CONTROL,
    HORIZON,
    TRANSACTIONAL,
    Edited,
    Spoiler,
    bases,
    patched,
    read_batches,
)


def _is_value(batch: Edited, record: Record) -> bool:
    return batch.is_data and record.key is not None and record.value is not None


def lose_a_value(s: Spoiler) -> None:
    s.drop_record(_is_value)


def lose_a_batch(s: Spoiler) -> None:
    s.change(
        lambda batch: batch.is_data and any(r.value is not None for r in batch.records), lambda batch: b""
    )


def lose_a_segment(s: Spoiler) -> None:
    base = s.random.choice(s.closed)
    for path in s.partition.glob(f"{base:020}.*"):
        path.unlink()


def lose_an_empty_segments_neighbour(s: Spoiler) -> None:
    """The last closed segment emptied: the cleaned part's last offset goes with it."""
    s.write(s.closed[-1], [])


def another_value(s: Spoiler) -> None:
    s.change_record(lambda record: record.value is not None, value=b"another value")


def no_value(s: Spoiler) -> None:
    s.change_record(lambda record: record.value is not None, value=None)


def another_key(s: Spoiler) -> None:
    s.change_record(key=b"another key")


def another_header(s: Spoiler) -> None:
    s.change_record(headers=((b"a", b"b"),))


def another_time(s: Spoiler) -> None:
    s.change_record(timestamp=1)


def flip_a_byte(s: Spoiler) -> None:
    path = s.partition / f"{s.random.choice(s.closed):020}.log"
    data = bytearray(path.read_bytes())
    data[s.random.randrange(70, len(data))] ^= 0x10
    path.write_bytes(data)


def cut_a_segment(s: Spoiler) -> None:
    path = s.partition / f"{s.random.choice(s.closed):020}.log"
    path.write_bytes(path.read_bytes()[: -s.random.randrange(1, 60)])


def put_a_superseded_record_back(s: Spoiler) -> None:
    s.restore(lambda record, _: record.key is not None and record.value is not None)


def put_an_aborted_record_back(s: Spoiler) -> None:
    ends = [entry["last_offset"] for entry in _aborted(s.pair.original)]
    starts = [entry["first_offset"] for entry in _aborted(s.pair.original)]
    owners = [entry["producer_id"] for entry in _aborted(s.pair.original)]
    spans = list(zip(owners, starts, ends, strict=True))

    def aborted(record: Record, old: Edited) -> bool:
        place = (old.header.producer_id, record.offset)
        inside = any(owner == place[0] and first <= place[1] <= last for owner, first, last in spans)
        return bool(old.header.attributes & TRANSACTIONAL) and old.is_data and inside

    s.restore(aborted)


def put_a_keyless_record_back(s: Spoiler) -> None:
    s.restore(lambda record, _: record.key is None)


def put_an_old_tombstone_back(s: Spoiler) -> None:
    later: dict[bytes | None, int] = {}
    for base in bases(s.pair.original)[:-1]:
        for batch in read_batches(s.pair.original, base):
            later.update({record.key: record.offset for record in batch.records if batch.is_data})
    s.restore(
        lambda record, old: (
            record.value is None
            and bool(old.header.attributes & HORIZON)
            and later[record.key] == record.offset
        )
    )


def clean_nothing(s: Spoiler) -> None:
    """Only the checkpoint moves."""
    shutil.rmtree(s.partition)
    shutil.copytree(s.pair.original, s.partition, copy_function=shutil.copy2)


def swap_two_batches(s: Spoiler) -> None:
    base, number, batches = s.choose(lambda batch: True)
    if len(batches) < 2:
        s.random.shuffle(batches)
    raw = [batch.raw for batch in batches]
    other = number - 1 if number else 1
    raw[number], raw[other] = raw[other], raw[number]
    s.write(base, raw)


def repeat_a_batch(s: Spoiler) -> None:
    s.change(lambda batch: True, lambda batch: batch.raw * 2)


def move_a_batch(s: Spoiler) -> None:
    def is_long(batch: Edited) -> bool:
        return batch.header.last_offset - batch.header.base_offset > 1 and bool(batch.records)

    s.change(is_long, lambda batch: patched(batch.raw, base_offset=batch.header.base_offset + 1))


def shorten_a_batch(s: Spoiler) -> None:
    """Its last offset is another one: a reader's next fetch, or a producer's duplicate, goes wrong."""

    def ends_beyond_its_records(batch: Edited) -> bool:
        last = batch.records[-1].offset if batch.records else batch.header.last_offset
        return last < batch.header.last_offset and batch.is_data

    def edit(batch: Edited) -> bytes:
        return patched(batch.raw, last_delta=batch.header.last_offset - batch.header.base_offset - 1)

    s.change(ends_beyond_its_records, edit)


def merge_two_batches(s: Spoiler) -> None:
    for base in s.random.sample(s.closed, len(s.closed)):
        batches = read_batches(s.partition, base)
        for number in range(len(batches) - 1):
            first, second = batches[number : number + 2]
            if first.is_data and second.is_data and first.records and second.records:
                merged = first.rebuilt(
                    [*first.records, *second.records], last_offset=second.header.last_offset
                )
                raw = [batch.raw for batch in batches]
                s.write(base, [*raw[:number], merged, *raw[number + 2 :]])
                return
    raise AssertionError("no neighbours")


def invent_a_record(s: Spoiler) -> None:
    def room(batch: Edited) -> list[int]:
        known = {record.offset for record in batch.records}
        return [o for o in range(batch.header.base_offset, batch.header.last_offset + 1) if o not in known]

    def edit(batch: Edited) -> bytes:
        old = {
            record.offset
            for base in bases(s.pair.original)
            for original in read_batches(s.pair.original, base)
            for record in original.records
        }
        free = [offset for offset in room(batch) if offset in old] or room(batch)
        new = Record(
            offset=s.random.choice(free), timestamp=batch.records[0].timestamp, key=b"new", value=b"new"
        )
        return batch.rebuilt(sorted([*batch.records, new], key=lambda record: record.offset))

    s.change(lambda batch: batch.is_data and bool(batch.records) and bool(room(batch)), edit)


def another_epoch(s: Spoiler) -> None:
    s.change(lambda batch: True, lambda batch: patched(batch.raw, leader_epoch=7))


def another_producer_epoch(s: Spoiler) -> None:
    s.change(
        lambda batch: batch.header.producer_id >= 0,
        lambda batch: patched(batch.raw, producer_epoch=batch.header.producer_epoch + 1),
    )


def another_sequence(s: Spoiler) -> None:
    s.change(
        lambda batch: batch.header.base_sequence >= 0,
        lambda batch: patched(batch.raw, base_sequence=batch.header.base_sequence + 1),
    )


def another_codec(s: Spoiler) -> None:
    s.change(lambda batch: batch.is_data and bool(batch.records), lambda batch: batch.rebuilt(codec=1))


def another_timestamp_type(s: Spoiler) -> None:
    s.change(
        lambda batch: batch.is_data and len({record.timestamp for record in batch.records}) == 1,
        lambda batch: patched(batch.raw, attributes=batch.header.attributes | 0x08),
    )


def another_largest_timestamp(s: Spoiler) -> None:
    s.change(
        lambda batch: batch.is_data and bool(batch.records) and batch.header.count < _span(batch),
        lambda batch: patched(batch.raw, max_timestamp=batch.header.max_timestamp + 1),
    )


def _span(batch: Edited) -> int:
    return batch.header.last_offset - batch.header.base_offset + 1


def rewrite_for_nothing(s: Spoiler) -> None:
    """A batch that lost nothing gets other bytes for the same records."""
    original_counts = {
        batch.header.base_offset: len(batch.records)
        for base in bases(s.pair.original)
        for batch in read_batches(s.pair.original, base)
    }

    def lost_nothing(batch: Edited) -> bool:
        is_unstamped = batch.is_data and not batch.header.attributes & HORIZON
        return is_unstamped and len(batch.records) == original_counts[batch.header.base_offset] > 1

    def edit(batch: Edited) -> bytes:
        attributes = batch.header.attributes | 0x80
        return patched(batch.raw, attributes=attributes)

    s.change(lost_nothing, edit)


def lose_a_fresh_tombstone(s: Spoiler) -> None:
    s.drop_record(lambda batch, record: record.value is None)


def forget_a_horizon(s: Spoiler) -> None:
    s.change(lambda batch: bool(batch.tombstones), lambda batch: batch.rebuilt(delete_horizon_ms=None))


def shift_a_horizon(s: Spoiler) -> None:
    s.change(
        lambda batch: bool(batch.tombstones),
        lambda batch: batch.rebuilt(delete_horizon_ms=batch.header.base_timestamp - 1),
    )


def shift_all_horizons(s: Spoiler) -> None:
    """All the same, but not of this cleaning's clock."""
    for base in s.closed:
        raw = [
            batch.rebuilt(delete_horizon_ms=batch.header.base_timestamp + 5)
            if batch.header.attributes & HORIZON
            else batch.raw
            for batch in read_batches(s.partition, base)
        ]
        s.write(base, raw)


def stamp_without_need(s: Spoiler) -> None:
    horizon = next(
        batch.header.base_timestamp
        for base in s.closed
        for batch in read_batches(s.partition, base)
        if batch.header.attributes & HORIZON
    )
    s.change(
        lambda batch: batch.is_data and bool(batch.records) and not batch.tombstones,
        lambda batch: batch.rebuilt(delete_horizon_ms=horizon),
    )


def lose_a_marker(s: Spoiler) -> None:
    s.change(lambda batch: not batch.is_data and bool(batch.records), lambda batch: b"")


def stamp_a_marker_early(s: Spoiler) -> None:
    s.change(
        lambda batch: not batch.is_data and not batch.header.attributes & HORIZON and bool(batch.records),
        lambda batch: batch.rebuilt(delete_horizon_ms=batch.header.base_timestamp + 1000),
    )


def turn_an_abort_into_a_commit(s: Spoiler) -> None:
    def is_abort(batch: Edited) -> bool:
        return not batch.is_data and bool(batch.records) and batch.records[0].key == b"\0\0\0\0"

    def edit(batch: Edited) -> bytes:
        (record,) = batch.records
        changed = Record(
            offset=record.offset, timestamp=record.timestamp, key=b"\0\0\0\1", value=record.value
        )
        return batch.rebuilt([changed])

    s.change(is_abort, edit)


def put_an_old_marker_back(s: Spoiler) -> None:
    s.restore(lambda record, old: bool(old.header.attributes & CONTROL))


def _aborted(partition: Path) -> list[dict[str, int]]:

    entries = []
    for path in sorted(partition.glob("*.txnindex")):
        for row in np.frombuffer(path.read_bytes(), TRANSACTION_ENTRY):
            entries.append({name: int(row[name]) for name in TRANSACTION_ENTRY.names or ()})
    return entries


def lose_an_aborted_entry(s: Spoiler) -> None:
    path = s.random.choice([path for path in s.partition.glob("*.txnindex") if path.stat().st_size])
    entries, size = path.read_bytes(), TRANSACTION_ENTRY.itemsize
    at = s.random.randrange(len(entries) // size) * size
    path.write_bytes(entries[:at] + entries[at + size :])


def change_an_aborted_entry(s: Spoiler) -> None:
    path = s.random.choice([path for path in s.partition.glob("*.txnindex") if path.stat().st_size])
    entries = bytearray(path.read_bytes())
    entries[17] ^= 1  # the last byte of the first entry's first offset
    path.write_bytes(entries)


def lose_a_producers_last_batch(s: Spoiler) -> None:
    s.change(lambda batch: batch.header.count == 0, lambda batch: b"")


def keep_an_empty_batch(s: Spoiler) -> None:
    """One that no producer needs, where a batch lost all."""
    present = {batch.header.base_offset for base in s.closed for batch in read_batches(s.partition, base)}
    old = [
        batch
        for base in bases(s.pair.original)
        for batch in read_batches(s.pair.original, base)
        if batch.is_data and batch.header.base_offset not in present and base < s.closed[-1]
    ]
    lost = s.random.choice(old)
    home = max(base for base in s.closed if base <= lost.header.base_offset)
    empty = patched(
        lost.raw[:61], size=49, attributes=lost.header.attributes & ~0x47, base_timestamp=-1, count=0
    )
    batches = {batch.header.base_offset: batch.raw for batch in read_batches(s.partition, home)}
    batches[lost.header.base_offset] = empty
    s.write(home, [batches[base] for base in sorted(batches)])


def empty_batch_with_a_time(s: Spoiler) -> None:
    s.change(lambda batch: batch.header.count == 0, lambda batch: patched(batch.raw, base_timestamp=5))


def _index(s: Spoiler, kind: str, minimum: int) -> Path:
    paths = [
        path
        for base in s.closed
        for path in [s.partition / f"{base:020}.{kind}"]
        if path.stat().st_size >= minimum
    ]
    return s.random.choice(paths)


def shift_an_index_entry(s: Spoiler) -> None:
    path = _index(s, "index", 8)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def skip_by_an_index_entry(s: Spoiler) -> None:
    """An entry that says of the second batch that it begins where the third does: a reader misses it."""
    path = _index(s, "index", 8)
    data = bytearray(path.read_bytes())
    entry = int.from_bytes(data[-8:-4], "big")
    data[-8:-4] = (entry - 1 if entry else entry + 1).to_bytes(4, "big")
    base = int(path.stem)
    positions, position = [], 0
    for batch in read_batches(s.partition, base):
        positions.append(position)
        position += len(batch.raw)
    data[-4:] = positions[-1].to_bytes(4, "big")
    path.write_bytes(data)


def lose_an_index(s: Spoiler) -> None:
    _index(s, "index", 0).unlink()


def thin_an_index(s: Spoiler) -> None:
    path = _index(s, "index", 8)
    path.write_bytes(path.read_bytes()[:-8])


def make_a_time_entry_too_old(s: Spoiler) -> None:
    path = _index(s, "timeindex", 12)
    data = bytearray(path.read_bytes())
    data[-12:-4] = (1).to_bytes(8, "big")
    path.write_bytes(data)


def lose_a_time_index(s: Spoiler) -> None:
    _index(s, "timeindex", 0).unlink()


def change_the_active_segment(s: Spoiler) -> None:
    s.change(lambda batch: bool(batch.records), lambda batch: patched(batch.raw, leader_epoch=9), active=True)


def lose_the_end(s: Spoiler) -> None:
    base = bases(s.partition)[-1]
    s.write(base, [batch.raw for batch in read_batches(s.partition, base)][:-1])


def append_a_batch(s: Spoiler) -> None:
    base = bases(s.partition)[-1]
    batches = read_batches(s.partition, base)
    last = batches[-1]
    span = _span(last)
    s.write(
        base,
        [*(batch.raw for batch in batches), patched(last.raw, base_offset=last.header.base_offset + span)],
    )


def _checkpoint(s: Spoiler, offset: int | None) -> None:
    topic, _, number = s.partition.name.rpartition("-")
    path = s.pair.after / "cleaner-offset-checkpoint"
    if offset is None:
        path.unlink()
    else:
        golden_sets.write_checkpoint(path, {(topic, int(number)): offset})


def checkpoint_too_far(s: Spoiler) -> None:
    _checkpoint(s, bases(s.partition)[-1] + 1)


def checkpoint_back(s: Spoiler) -> None:
    _checkpoint(s, 1)


def checkpoint_gone(s: Spoiler) -> None:
    _checkpoint(s, None)


def leave_a_cleaned_file(s: Spoiler) -> None:
    (s.partition / f"{s.closed[0]:020}.log.cleaned").write_bytes(b"")


def leave_a_run(s: Spoiler) -> None:
    (s.partition / ".siltstone").mkdir()


def leave_an_index(s: Spoiler) -> None:
    (s.partition / f"{bases(s.partition)[-1] - 1:020}.timeindex").write_bytes(b"")


def rename_a_segment(s: Spoiler) -> None:
    base = s.closed[-1]
    for path in s.partition.glob(f"{base:020}.*"):
        path.rename(s.partition / f"{base - 1:020}{path.suffix}")


def lose_the_newest_snapshot(s: Spoiler) -> None:
    max(s.partition.glob("*.snapshot")).unlink()


def lose_the_epochs(s: Spoiler) -> None:
    (s.partition / "leader-epoch-checkpoint").unlink()


def another_topic_id(s: Spoiler) -> None:
    (s.partition / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n")


def lose_the_log(s: Spoiler) -> None:
    other = s.pair.after / "other-0"
    s.partition.rename(other)


@dataclass(frozen=True, kw_only=True)
class Spoiling:
    """A way of spoiling, the golden round that it is done to, and what must be found (one of them)."""

    spoil: Callable[[Spoiler], None]
    case: str
    round: int
    found: set[str]


def _of(spoil: Callable[[Spoiler], None], case: str, number: int, *found: str) -> Spoiling:
    return Spoiling(spoil=spoil, case=case, round=number, found=set(found))


SPOILINGS = [
    _of(lose_a_value, "basic", 0, "lost"),
    _of(lose_a_value, "transactions/txn_java", 2, "lost"),
    _of(lose_a_batch, "tombstones", 1, "lost"),
    _of(lose_a_segment, "basic", 0, "lost", "segment_missing"),
    _of(lose_a_segment, "idempotent", 1, "lost", "segment_missing", "sequence_lost"),
    _of(lose_an_empty_segments_neighbour, "basic", 0, "lost", "last_batch_lost"),
    _of(another_value, "basic", 0, "value_changed"),
    _of(no_value, "basic", 0, "value_changed"),
    _of(another_key, "basic", 0, "key_changed"),
    _of(another_header, "basic", 0, "headers_changed"),
    _of(another_time, "basic", 0, "timestamp_changed"),
    _of(flip_a_byte, "basic", 0, "unreadable"),
    _of(cut_a_segment, "basic", 0, "unreadable"),
    _of(put_a_superseded_record_back, "basic", 0, "superseded_kept"),
    _of(put_an_aborted_record_back, "txn", 0, "aborted_kept"),
    _of(put_a_keyless_record_back, "keyless", 0, "keyless_kept"),
    _of(put_an_old_tombstone_back, "tombstones", 1, "tombstone_kept"),
    _of(clean_nothing, "basic", 0, "superseded_kept"),
    _of(swap_two_batches, "basic", 0, "order"),
    _of(repeat_a_batch, "basic", 0, "order"),
    _of(move_a_batch, "basic", 0, "batch_unknown", "order", "segment_bounds"),
    _of(shorten_a_batch, "basic", 0, "header_changed"),
    _of(merge_two_batches, "basic", 0, "batch_unknown"),
    _of(invent_a_record, "basic", 0, "record_unknown", "key_changed"),
    _of(another_epoch, "basic", 0, "header_changed"),
    _of(another_producer_epoch, "idempotent", 0, "header_changed"),
    _of(another_sequence, "idempotent", 0, "header_changed"),
    _of(another_codec, "basic", 0, "header_changed"),
    _of(another_timestamp_type, "basic", 0, "header_changed"),
    _of(another_largest_timestamp, "basic", 0, "batch_times"),
    _of(rewrite_for_nothing, "min_lag", 0, "batch_changed"),
    _of(lose_a_fresh_tombstone, "tombstones", 0, "tombstone_lost"),
    _of(forget_a_horizon, "tombstones", 0, "unstamped"),
    _of(forget_a_horizon, "tombstones", 1, "unstamped", "horizon_changed"),
    _of(shift_a_horizon, "tombstones", 0, "horizons_differ"),
    _of(shift_all_horizons, "basic", 0, "horizons_differ"),
    _of(shift_all_horizons, "tombstones", 2, "horizon_changed"),
    _of(stamp_without_need, "basic", 0, "needless_horizon"),
    _of(lose_a_marker, "txn", 0, "marker_lost"),
    _of(lose_a_marker, "txn", 1, "marker_lost"),
    _of(stamp_a_marker_early, "txn", 0, "marker_stamp"),
    _of(turn_an_abort_into_a_commit, "txn", 0, "key_changed"),
    _of(put_an_old_marker_back, "txn", 2, "marker_kept"),
    _of(lose_an_aborted_entry, "txn", 0, "aborted_entry"),
    _of(change_an_aborted_entry, "txn", 0, "aborted_entry"),
    _of(lose_a_producers_last_batch, "txn", 1, "sequence_lost"),
    _of(lose_a_producers_last_batch, "idempotent", 1, "sequence_lost"),
    _of(keep_an_empty_batch, "basic", 0, "empty_batch"),
    _of(empty_batch_with_a_time, "idempotent", 0, "empty_batch"),
    _of(shift_an_index_entry, "basic", 0, "index"),
    _of(skip_by_an_index_entry, "basic", 0, "index"),
    _of(lose_an_index, "basic", 0, "index"),
    _of(thin_an_index, "basic", 0, "index"),
    _of(make_a_time_entry_too_old, "basic_zipf_ts", 0, "time_index"),
    _of(lose_a_time_index, "basic", 0, "time_index"),
    _of(change_the_active_segment, "basic", 0, "beyond_range"),
    _of(lose_the_end, "basic", 0, "end_moved"),
    _of(append_a_batch, "basic", 0, "end_moved"),
    _of(checkpoint_too_far, "basic", 0, "checkpoint"),
    _of(checkpoint_back, "tombstones", 1, "checkpoint"),
    _of(checkpoint_gone, "tombstones", 1, "checkpoint"),
    _of(leave_a_cleaned_file, "basic", 0, "leftover"),
    _of(leave_a_run, "basic", 0, "leftover"),
    _of(leave_an_index, "basic", 0, "leftover"),
    _of(rename_a_segment, "basic", 0, "segment_name"),
    _of(lose_the_newest_snapshot, "idempotent", 0, "snapshot"),
    _of(lose_the_epochs, "basic", 0, "leader_epochs"),
    _of(another_topic_id, "basic", 0, "topic_id"),
]
