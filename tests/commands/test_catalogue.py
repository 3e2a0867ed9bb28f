"""The lists of a server: exact counts of records, savings, and pages without a walk over all partitions."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.base.errors import UnknownTopicError
from siltstone.commands import catalogue as module
from siltstone.commands.catalogue import TopicQuery, list_topics
from siltstone.commands.counting import RecordTotals, SegmentCounter
from siltstone.commands.served import SNAPSHOT_MS, Served, ServeOptions
from siltstone.log.names import TopicPartition
from tests.support.log.managed import NOW


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A compacted topic of six records in six segments, a plain one of ten, one without any."""
    properties = tmp_path / "server.properties"
    properties.write_text("log.cleaner.enable=false\n")
    options = ServeOptions(paths=(tmp_path / "logs",), properties=properties, engine="process")
    with Served(options, ManualClock(NOW)) as served:
        manager = served.opened()
        manager.topics.create("users", 1, {"cleanup.policy": "compact", "segment.ms": "1000000000"})
        manager.topics.create("plain", 2)
        manager.topics.create("empty", 1, {"cleanup.policy": "compact"})
        for number in range(6):
            manager.send("users", b"x" * 100, key=b"%d" % (number % 2), partition=0)
            manager["users", 0].roll()
        for number in range(10):
            manager.send("plain", b"x", key=b"k", partition=number % 2)
        manager.flush()
        yield served


def looked(served: Served) -> Served:
    """The same directories, in look mode."""
    options = ServeOptions(paths=tuple(served.paths), properties=served.options.properties, is_look=True)
    return Served(options, ManualClock(NOW))


def counts(served: Served) -> dict[str, int | None]:
    """Stored records by topic, after all were counted."""
    served.cataloguer.refresh()
    while not served.catalogue.figures.is_complete:
        served.cataloguer.refresh_figures()
    return {row.name: row.records for row in list_topics(served.catalogue, TopicQuery()).rows}


def test_records_are_counted_exactly_also_after_a_cleaning_and_in_look_mode(served: Served) -> None:
    assert counts(served) == {"empty": 0, "plain": 10, "users": 6}
    with looked(served) as looking:
        assert counts(looking) == counts(served)
        served.opened_cleaner().clean_once()
        served.opened().send("users", b"x", key=b"9", partition=0)
        served.opened().flush()
        assert counts(served) == {"empty": 0, "plain": 10, "users": 3}
        assert counts(looking) == counts(served)
    (row,) = [row for row in served.catalogue.partitions_of("plain") if row.topic_partition.partition == 1]
    assert row.records == 5
    by_records = TopicQuery(sort="records", descending=True)
    assert [row.name for row in list_topics(served.catalogue, by_records).rows] == ["plain", "users", "empty"]


def test_a_log_is_unknown_until_it_was_counted_and_then_counted_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siltstone.commands.served.FIGURES_SECONDS", 0.0)
    served.cataloguer.refresh()  # one segment
    record_counts = [row.records for row in list_topics(served.catalogue, TopicQuery()).rows]
    assert record_counts[0] == 0 and None in record_counts and not served.catalogue.figures.is_complete
    columns = served.catalogue.topic_columns
    while not served.catalogue.figures.is_complete:
        served.cataloguer.refresh_figures()
    assert served.catalogue.topic_columns["bytes"] is columns["bytes"], "only the facts are made again"
    before = files.bytes_read()
    served.cataloguer.refresh_figures()
    assert files.bytes_read() == before
    assert counts(served) == {"empty": 0, "plain": 10, "users": 6}


def test_the_thread_goes_on_whatever_the_counting_meets(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that makes a column while the thread copies the others, or any other error."""
    served.cataloguer.refresh()
    catalogue = served.catalogue

    class Racing(frozenset[str]):
        def __contains__(self, name: object) -> bool:
            _ = catalogue.damaged_rows, catalogue.policies  # as another thread does, between two entries
            return super().__contains__(name)

    monkeypatch.setattr(module, "_DERIVED_FROM_LOGS", Racing(module._DERIVED_FROM_LOGS))
    assert served.cataloguer.refresh_figures().error is None

    def failing(logs: object) -> None:
        raise ZeroDivisionError("of the counting")

    monkeypatch.setattr(served.cataloguer, "_figures", failing)
    assert served.cataloguer.refresh_figures().error == "of the counting"


def test_a_torn_end_of_a_log_in_look_mode_does_not_count(served: Served) -> None:
    assert counts(served)["plain"] == 10
    log = served.opened()["plain", 0]
    path = log.directory / "00000000000000000000.log"
    served.opened().flush()
    whole = path.read_bytes()
    with looked(served) as looking:
        path.write_bytes(whole + whole[: len(whole) // 5 - 1])
        assert counts(looking)["plain"] == 10
        path.write_bytes(whole[:-1])
        assert counts(looking)["plain"] == 9
        path.write_bytes(whole)
        assert counts(looking)["plain"] == 10


def test_damage_before_the_end_is_unknown_and_does_not_stop_the_others(served: Served) -> None:
    path = served.opened()["users", 0].directory / "00000000000000000000.log"
    whole = path.read_bytes()
    with looked(served) as looking:
        path.write_bytes(b"\xff" * len(whole))
        assert counts(looking) == {"empty": 0, "plain": 10, "users": None}
        path.write_bytes(whole)


def test_a_log_whose_row_is_the_same_is_not_read_again(served: Served) -> None:
    served.cataloguer.refresh()
    requested: list[TopicPartition] = []

    def log_of(topic_partition: TopicPartition) -> None:
        requested.append(topic_partition)

    totals, logs = RecordTotals(SegmentCounter(), log_of), served.catalogue.watched
    records, is_complete = totals.count(logs, lambda size: True)
    assert is_complete and records.tolist() == [0, 5, 5, 6] and len(requested) == 3
    records, _ = totals.count(list(logs), lambda size: False)
    assert records.tolist() == [0, 5, 5, 6] and len(requested) == 3
    records, is_complete = totals.count([*logs[1:], *logs[:1]], lambda size: False)
    assert records.tolist() == [5, 5, 6, 0] and is_complete


def test_savings_are_in_the_lists(served: Served) -> None:
    assert counts(served)["users"] == 6
    rows = {row.name: row for row in list_topics(served.catalogue, TopicQuery()).rows}
    assert {row.saved_bytes_7d for row in rows.values()} == {0}
    (result,) = [result for result in served.opened_cleaner().clean_once() if result.topic == "users"]
    served.cataloguer.refresh()
    row = served.catalogue.topic("users")
    assert row.saved_bytes_7d == result.bytes_before - result.bytes_after > 0
    assert served.catalogue.topic("plain").saved_bytes_7d == 0
    unknown = served.catalogue.with_changes(figures=module.SlowFigures())
    assert unknown.topic("users").saved_bytes_7d is None and unknown.topic("users").records is None


def test_no_request_lists_the_directories(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(*arguments: object) -> None:
        raise AssertionError("a log directory is listed")

    with looked(served) as looking:
        looking.cataloguer.refresh()
        monkeypatch.setattr("siltstone.log.directory._find_partitions", listed)
        assert looking.describe("users").partitions == (0,)
        assert looking.settings_of("users")["cleanup.policy"] == ("compact",)
        log = looking.log("users", 0)
        assert log.log_end_offset == 6 and looking.log("users", 0) is log
        served.opened().send("users", b"x", key=b"9", partition=0)
        served.opened().flush()
        assert looking.log("users", 0) is log, "a log is as it was some seconds ago at most"
        assert isinstance(looking.clock, ManualClock)
        looking.clock.advance(SNAPSHOT_MS)
        assert looking.log("users", 0).log_end_offset == 7
        looking.clock.advance(SNAPSHOT_MS)
        newest = looking.log("users", 0)
        looking.clock.advance(SNAPSHOT_MS)
        assert looking.log("users", 0) is newest, "no file has changed"
        with pytest.raises(UnknownTopicError):
            looking.log("users", 1)


def test_a_look_notices_every_change_of_the_registry(served: Served) -> None:
    """Also two within a tick of the clock, after which inode, size and time may be those of before."""
    options = ServeOptions(paths=tuple(served.paths), properties=served.options.properties, is_look=True)
    with Served(options) as looking:
        for number in range(100, 110):
            for value in (number + 500, number):
                served.opened().topics.alter("plain", {"retention.ms": str(value)})
            looking.cataloguer.refresh()
            assert looking.catalogue.topic("plain").retention_ms == number


def test_the_thread_reads_names_then_rows_and_leaves_the_collector_as_it_was(served: Served) -> None:
    with looked(served) as looking:
        states: list[tuple[bool, bool]] = []
        outline, refresh = looking.cataloguer.outline, looking.cataloguer.refresh

        def outlined() -> module.Catalogue:
            states.append((gc.isenabled(), looking.catalogue.is_complete))
            return outline()

        def refreshed() -> module.Catalogue:
            states.append((gc.isenabled(), looking.catalogue.is_complete))
            return refresh()

        looking.cataloguer.outline, looking.cataloguer.refresh = outlined, refreshed  # type: ignore[method-assign]
        looking.cataloguer._read_first()
        assert states == [(False, False), (False, False)] and gc.isenabled()
        assert looking.catalogue.is_complete
    gc.unfreeze()


def test_bytes_of_compacted_logs_are_clean_dirty_or_not_to_be_cleaned_yet(served: Served) -> None:
    catalogue = served.cataloguer.refresh()
    dirty = catalogue.totals.dirty_bytes
    assert dirty > 0 and catalogue.not_cleanable_yet_bytes == 0  # the active segment is empty
    served.opened().send("users", b"new", key=b"1", partition=0)
    served.opened().flush()
    catalogue = served.cataloguer.refresh()
    (users,) = catalogue.partitions_of("users")
    assert catalogue.not_cleanable_yet_bytes == users.bytes - dirty > 0
    assert catalogue.totals.dirty_bytes == dirty
