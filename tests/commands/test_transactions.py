"""Open transactions: of open directories and in look mode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.records.build import NewBatchHeader
from siltstone.base.records.control import end_transaction_marker
from siltstone.commands.browsing import Budget
from siltstone.commands.served import Served, ServeOptions
from siltstone.commands.transactions import (
    NOTES_MAX,
    TRANSACTION_STATE,
    OpenTransaction,
    open_transactions,
    transactional_ids,
)
from siltstone.log.names import TopicPartition
from siltstone.log.validation import Origin
from siltstone.runtime.producing import NewRecord, append
from tests.support import coordinator_records as encoded
from tests.support.log.managed import NOW

USERS, EVENTS = TopicPartition("users", 0), TopicPartition("events", 0)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    properties = tmp_path / "server.properties"
    properties.write_text("log.cleaner.enable=false\n")
    options = ServeOptions(paths=(tmp_path / "logs",), properties=properties, engine="process")
    with Served(options, ManualClock(NOW)) as served:
        served.opened().topics.create("users", 2, {"cleanup.policy": "compact"})
        served.opened().topics.create("events", 1, {"cleanup.policy": "delete"})
        yield served


def begin(served: Served, where: TopicPartition, producer: int, at_ms: int = NOW) -> None:
    """One batch of a transaction."""
    shape = NewBatchHeader(producer_id=producer, producer_epoch=3, base_sequence=0, transactional=True)
    append(served.opened()[where], [NewRecord(key=b"k", value=b"v", timestamp=at_ms)], shape=shape)


def end(served: Served, where: TopicPartition, producer: int) -> None:
    marker = end_transaction_marker(
        is_commit=True, producer_id=producer, producer_epoch=3, coordinator_epoch=1, timestamp_ms=NOW
    )
    served.opened()[where].append(marker, origin=Origin.COORDINATOR)


def looked(served: Served) -> Served:
    """The same directories, in look mode."""
    served.opened().flush()
    options = ServeOptions(paths=tuple(served.paths), properties=served.options.properties, is_look=True)
    return Served(options, ManualClock(NOW))


def test_open_transactions_are_listed_with_the_bytes_that_they_hold(served: Served) -> None:
    served.opened().send("users", b"1", key=b"a", partition=0)
    begin(served, USERS, 7, NOW - 60_000)
    began_at = served.opened()[USERS].view.active_size
    begin(served, USERS, 8)
    begin(served, EVENTS, 7)
    first, second, third = open_transactions(served).transactions
    assert (first.topic, first.blocks_cleaning) == ("events", False)
    size = served.opened()[USERS].view.active_size
    assert second == OpenTransaction(
        topic="users",
        partition=0,
        producer_id=7,
        producer_epoch=3,
        first_offset=1,
        began_ms=NOW - 60_000,
        held_bytes=second.held_bytes,
        blocks_cleaning=True,
    )
    assert (third.producer_id, third.first_offset, third.held_bytes) == (8, 2, size - began_at)
    assert size > second.held_bytes > third.held_bytes
    with looked(served) as looking:
        assert open_transactions(looking) == open_transactions(served)


def test_a_producer_has_the_transactional_id_that_its_coordinator_wrote(served: Served) -> None:
    begin(served, USERS, 7)
    begin(served, EVENTS, 8)
    assert {transaction.transactional_id for transaction in open_transactions(served).transactions} == {None}
    manager, state = served.opened(), TRANSACTION_STATE
    manager.topics.create(state, 2, {"cleanup.policy": "compact"})
    written = {"old": (6, 7), "orders-app": (7,), "gone": (None,), "other": (9,)}
    for number, (name, producers) in enumerate(written.items()):
        for producer in producers:
            value = None if producer is None else encoded.transaction(producer)
            append(manager[state, number % 2], [NewRecord(key=encoded.key(0, name), value=value)])
    append(manager[state, 0], [NewRecord(key=b"?", value=b"?")])
    append(manager[state, 0], [NewRecord(key=encoded.key(0, "old"), value=None)])
    page = open_transactions(served)
    assert [transaction.transactional_id for transaction in page.transactions] == [None, "orders-app"]
    with looked(served) as looking:
        assert open_transactions(looking) == page
    ids, (note,) = transactional_ids(served, Budget(1))
    assert ids == {} and "too long" in note


def test_a_transaction_that_has_ended_is_not_open(served: Served) -> None:
    begin(served, USERS, 7)
    end(served, USERS, 7)
    assert not open_transactions(served).transactions
    with looked(served) as looking:
        assert not open_transactions(looking).transactions


def test_held_bytes_reach_over_all_later_segments(served: Served) -> None:
    begin(served, USERS, 7)
    log = served.opened()[USERS]
    log.roll()
    served.opened().send("users", b"1" * 1000, key=b"a", partition=0)
    (transaction,) = open_transactions(served).transactions
    assert transaction.held_bytes == sum(map(log.view.size_of, range(len(log.view.segments)))) > 1000


def test_a_first_batch_that_was_deleted_is_shown_as_far_as_it_is_known(served: Served) -> None:
    begin(served, EVENTS, 7)
    served.opened().send("events", b"1", partition=0)
    served.opened().delete_records(EVENTS, 1)
    (transaction,) = open_transactions(served).transactions
    assert (transaction.first_offset, transaction.began_ms, transaction.producer_epoch) == (0, None, None)
    assert transaction.held_bytes > 0


def test_a_look_says_how_far_it_is_and_passes_over_a_log_that_was_deleted(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(served, TopicPartition("users", 1), 7)
    begin(served, EVENTS, 7)
    progress = list[tuple[int, int]]()
    page = open_transactions(served, lambda done, total: progress.append((done, total)))
    assert [transaction.topic for transaction in page.transactions] == ["events", "users"]
    assert progress == [(0, 3), (1, 3), (2, 3)]

    def is_gone(done: int, total: int) -> None:
        if not done:
            served.opened().topics.delete("events")

    assert [transaction.topic for transaction in open_transactions(served, is_gone).transactions] == ["users"]


def test_a_log_that_cannot_be_read_hides_no_other_one(served: Served) -> None:
    begin(served, USERS, 7)
    served.opened().topics.create("broken", NOTES_MAX + 2, {})
    with looked(served) as looking:
        for number in range(NOTES_MAX + 2):
            partition = served.paths[0] / f"broken-{number}"
            (partition / "00000000000000000009.log.swap").write_bytes(b"")
        page = open_transactions(looking)
    assert [transaction.topic for transaction in page.transactions] == ["users"]
    assert page.notes[0].startswith("broken-0: ") and page.notes[-1] == "2 more logs cannot be read"
    assert len(page.notes) == NOTES_MAX + 1
