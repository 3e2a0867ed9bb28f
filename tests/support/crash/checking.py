"""What a start finds after a crash, held to what was promised before it."""

from __future__ import annotations

from pathlib import Path

from siltstone.base.clock import ManualClock
from siltstone.log.fetch import READ_COMMITTED
from siltstone.log.partition import PartitionLog
from siltstone.runtime.manager import LogManager
from tests.support.cleaning import logs
from tests.support.cleaning.logs import NOW, WHERE
from tests.support.crash.session import Promise, message, open_manager
from tests.support.log import driving
from tests.support.log.index_checks import check_indexes
from tests.support.log.model import Model, Stored

LATER = NOW + 10_000_000
LEFTOVERS = (".cleaned", ".swap", ".deleted", ".tmp")


def start_and_check(root: Path, promise: Promise) -> None:
    """Start on what is there; the log must be one that was promised, work, and stop cleanly."""
    manager = open_manager(root, ManualClock(LATER))
    try:
        check_log(manager, promise)
        check_use(manager, promise)
        topic_partition = manager[WHERE]
        bounds = (topic_partition.log_start_offset, topic_partition.log_end_offset)
    finally:
        manager.close()
    check_files(root / str(WHERE))
    again = open_manager(root, ManualClock(LATER))
    try:
        assert (again[WHERE].log_start_offset, again[WHERE].log_end_offset) == bounds
    finally:
        again.close()


def check_log(manager: LogManager, promise: Promise) -> None:
    """Bounds, every record, and the transactions."""
    assert not manager.refused and not manager.offline, (manager.refused, manager.offline)
    log = manager[WHERE]
    start, end = log.log_start_offset, log.log_end_offset
    assert promise.start_min <= start <= promise.start_max, ("start", start, promise)
    assert end >= max(promise.end_min, start), ("end", end, promise)
    stored = driving.read_all(log)
    model = model_of(promise, start, end, stored)
    expected = model.records(start)
    bases = {segment.base_offset for segment in log.view.segments}
    for first, following in gaps(model):
        lost = first >= promise.end_min or (following <= promise.start_max and not promise.is_compacted)
        assert lost and following in bases, ("gap", first, following)
    if promise.cleaned_below:
        check_cleaned(stored, expected, promise.cleaned_below)
    else:
        assert stored == expected, ("records", _offsets(stored), _offsets(expected))
        assert log.last_stable_offset == model.stable
        committed = driving.read_all(log, isolation=READ_COMMITTED)
        assert committed == model.committed(start, model.stable), ("committed", _offsets(committed))
    check_lookups(log, stored)


def model_of(promise: Promise, start: int, end: int, stored: list[Stored]) -> Model:
    """The log as it was promised, as far as the one that was found goes.

    A crash right after a roll can take the closed segment's last batches, with the new one there already, and
    one amid retention the middle one of those that go: Kafka serves such logs, too. What is missing must be
    unsynced, or about to go where no tombstone can be in it, and end with a segment.
    """
    model, present = Model(), {record.offset for record in stored}
    presumed_below = max(start, promise.cleaned_below)
    for batch in promise.batches:
        if batch.last < end and (batch.last < presumed_below or batch.last in present):
            model.end = batch.base
            model.append(batch)
    model.start, model.end = start, end
    return model


def gaps(model: Model) -> list[tuple[int, int]]:
    """Runs of offsets that no batch has: (first, the one behind the last)."""
    following, ranges = model.start, []
    for batch in model.batches:
        if batch.base > following:
            ranges.append((following, batch.base))
        following = max(following, batch.last + 1)
    return [*ranges, (following, model.end)] if following < model.end else ranges


def _offsets(records: list[Stored]) -> list[int]:
    return [record.offset for record in records]


def check_cleaned(stored: list[Stored], expected: list[Stored], below: int) -> None:
    """The last value of each key is there, no deleted key has come back, nothing is there that was not."""
    originals = set(expected)
    assert all(record in originals for record in stored)
    assert _offsets(stored) == sorted(_offsets(stored))
    assert [record for record in stored if record.offset >= below] == [
        record for record in expected if record.offset >= below
    ]
    assert table(stored) == table(expected), ("table", table(stored), table(expected))


def table(records: list[Stored]) -> dict[bytes | None, bytes]:
    """What a reader from the start ends with."""
    last = {record.key: record.value for record in records}
    return {key: value for key, value in last.items() if value is not None}


def check_lookups(log: PartitionLog, stored: list[Stored]) -> None:
    """Some offsets and times are found where they are."""
    for record in stored[:: max(len(stored) // 4, 1)]:
        records, _ = driving.fetched(log.read(record.offset, 1))
        assert record in records
        first = next(candidate for candidate in stored if candidate.timestamp >= record.timestamp)
        place = log.offset_for_time(record.timestamp)
        assert place is not None and place.offset == first.offset, (place, first)


def check_use(manager: LogManager, promise: Promise) -> None:
    """Producers' batches are known again, and appends go on."""
    log = manager[WHERE]
    model = model_of(promise, log.log_start_offset, log.log_end_offset, driving.read_all(log))
    for producer in model.producers.values():
        if producer.sent and producer.sent[-1].base >= log.log_start_offset:
            again = log.append(message(producer.sent[-1]))
            assert again.is_duplicate, ("not known again", producer.sent[-1])
            assert again.first_offset == producer.sent[-1].base
    record = Stored(log.log_end_offset, b"new", b"value", LATER)
    appended = log.append(driving.client_batch([record]), sync=True)
    assert appended.first_offset == record.offset
    assert driving.fetched(log.read(record.offset))[0][-1] == record


def check_files(partition: Path) -> None:
    """No leftovers; every batch is sound by the twin; the indexes are those of the logs."""
    assert not [path.name for path in partition.iterdir() if path.name.endswith(LEFTOVERS)]
    following = 0
    for base, data in logs.logs_of(partition).items():
        assert base >= following, f"segment {base} overlaps the one before"
        logs.records_in(data)
        for header, _ in logs.headers_of(data):
            assert header.base_offset >= max(base, following)
            following = header.last_offset + 1
    check_indexes(partition)
