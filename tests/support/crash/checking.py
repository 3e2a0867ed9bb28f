"""What a start finds after a crash, held to what was promised before it."""

from __future__ import annotations

from pathlib import Path

from siltstone.base.clock import ManualClock
from siltstone.log.fetch import READ_COMMITTED
from siltstone.log.partition import PartitionLog
from siltstone.runtime.manager import LogManager
from tests.support.cleaning import logs
from tests.support.cleaning.logs import NOW, WHERE
from tests.support.crash.session import Said, message, open_manager
from tests.support.log import driving
from tests.support.log.index_checks import check_indexes
from tests.support.log.model import Model, Stored

LATER = NOW + 10_000_000
LEFTOVERS = (".cleaned", ".swap", ".deleted", ".tmp")


def start_and_check(root: Path, said: Said) -> None:
    """Start on what is there; the log must be one that was promised, work, and stop cleanly."""
    manager = open_manager(root, ManualClock(LATER))
    try:
        check_log(manager, said)
        check_use(manager, said)
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


def check_log(manager: LogManager, said: Said) -> None:
    """Bounds, every record, and the transactions."""
    assert not manager.refused and not manager.offline, (manager.refused, manager.offline)
    log = manager[WHERE]
    start, end = log.log_start_offset, log.log_end_offset
    assert said.start_min <= start <= said.start_max, ("start", start, said)
    assert end >= max(said.end_min, start), ("end", end, said)
    found = driving.read_all(log)
    model = model_of(said, start, end, found)
    expected = model.records(start)
    bases = {segment.base_offset for segment in log.view.segments}
    for first, following in gaps(model):
        lost = first >= said.end_min or (following <= said.start_max and not said.is_compacted)
        assert lost and following in bases, ("gap", first, following)
    if said.cleaned_below:
        check_cleaned(found, expected, said.cleaned_below)
    else:
        assert found == expected, ("records", _offsets(found), _offsets(expected))
        assert log.last_stable_offset == model.stable
        committed = driving.read_all(log, isolation=READ_COMMITTED)
        assert committed == model.committed(start, model.stable), ("committed", _offsets(committed))
    check_lookups(log, found)


def model_of(said: Said, start: int, end: int, found: list[Stored]) -> Model:
    """The log as it was promised, as far as the one that was found goes.

    A crash right after a roll can take the closed segment's last batches, with the new one there already, and
    one amid retention the middle one of those that go: Kafka serves such logs, too. What is missing must be
    unsynced, or about to go where no tombstone can be in it, and end with a segment.
    """
    model, there = Model(), {record.offset for record in found}
    taken_for_there = max(start, said.cleaned_below)
    for batch in said.batches:
        if batch.last < end and (batch.last < taken_for_there or batch.last in there):
            model.end = batch.base
            model.append(batch)
    model.start, model.end = start, end
    return model


def gaps(model: Model) -> list[tuple[int, int]]:
    """Runs of offsets that no batch has: (first, the one behind the last)."""
    following, found = model.start, []
    for batch in model.batches:
        if batch.base > following:
            found.append((following, batch.base))
        following = max(following, batch.last + 1)
    return [*found, (following, model.end)] if following < model.end else found


def _offsets(records: list[Stored]) -> list[int]:
    return [record.offset for record in records]


def check_cleaned(found: list[Stored], expected: list[Stored], below: int) -> None:
    """The last value of each key is there, no deleted key has come back, nothing is there that was not."""
    whole = set(expected)
    assert all(record in whole for record in found)
    assert _offsets(found) == sorted(_offsets(found))
    assert [each for each in found if each.offset >= below] == [
        each for each in expected if each.offset >= below
    ]
    assert table(found) == table(expected), ("table", table(found), table(expected))


def table(records: list[Stored]) -> dict[bytes | None, bytes]:
    """What a reader from the start ends with."""
    last = {record.key: record.value for record in records}
    return {key: value for key, value in last.items() if value is not None}


def check_lookups(log: PartitionLog, found: list[Stored]) -> None:
    """Some offsets and times are found where they are."""
    for record in found[:: max(len(found) // 4, 1)]:
        records, _ = driving.fetched(log.read(record.offset, 1))
        assert record in records
        first = next(each for each in found if each.timestamp >= record.timestamp)
        place = log.offset_for_time(record.timestamp)
        assert place is not None and place.offset == first.offset, (place, first)


def check_use(manager: LogManager, said: Said) -> None:
    """Producers' batches are known again, and appends go on."""
    log = manager[WHERE]
    model = model_of(said, log.log_start_offset, log.log_end_offset, driving.read_all(log))
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
