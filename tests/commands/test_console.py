"""What the console asks of a server about one record, one partition, one change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.errors import UsageError
from siltstone.commands import console
from siltstone.commands.administration import alter_settings
from siltstone.commands.changes import Actor
from siltstone.commands.served import Served, ServeOptions
from siltstone.commands.why_retained import DUE, NEWEST, NOT_DIRTY_ENOUGH, PAUSED, UNCLEANABLE
from siltstone.log.names import TopicPartition
from tests.support.log.managed import NOW

USERS = TopicPartition("users", 0)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    properties = tmp_path / "server.properties"
    properties.write_text("log.cleaner.enable=false\n")
    options = ServeOptions(paths=(tmp_path / "logs",), properties=properties, engine="process")
    with Served(options, ManualClock(NOW)) as served:
        served.opened().topics.create("users", 1, {"cleanup.policy": "compact", "segment.ms": "1000000000"})
        for number in range(6):
            served.opened().send("users", b"x" * 100, key=b"%d" % (number % 5), partition=0)
            served.opened()[USERS].roll()
        served.opened().flush()
        served.cataloguer.refresh()
        yield served


def looked(served: Served) -> Served:
    """The same directories, in look mode."""
    options = ServeOptions(paths=tuple(served.paths), properties=served.options.properties, is_look=True)
    looking = Served(options, ManualClock(NOW))
    looking.cataloguer.refresh()
    return looking


def test_an_open_server_and_one_that_looks_say_the_same(served: Served) -> None:
    with looked(served) as looking:
        answers = [console.why_record_retained(served, "users", 0, offset) for offset in range(6)]
        assert answers == [console.why_record_retained(looking, "users", 0, offset) for offset in range(6)]
        assert [answer.code for answer in answers] == [DUE, *[NEWEST] * 5]
        assert answers[0].place == 1 and "place 1 of the queue" in answers[0].sentence
        change = {"cleanup.policy": "delete", "retention.bytes": "250"}
        previews = [console.preview_change(server, "users", change) for server in (served, looking)]
        assert previews[0] == previews[1] and previews[0].deletes_data
        rows = [console.partition_segments(server, "users", 0).segments for server in (served, looking)]
        assert [row.records for row in rows[0]] == [row.records for row in rows[1]] == [1] * 6 + [0]


def test_what_the_cleaner_knows_now_is_shown_before_the_next_catalogue(served: Served) -> None:
    cleaner, manager = served.opened_cleaner(), served.opened()
    cleaner.pause(USERS)
    assert console.why_record_retained(served, "users", 0, 0).code == PAUSED
    cleaner.resume(USERS)
    manager.mark_uncleanable(USERS, "a damaged batch", NOW)
    answer = console.why_record_retained(served, "users", 0, 0)
    assert answer.code == UNCLEANABLE and "a damaged batch" in answer.sentence
    manager.retry_cleaning(USERS)
    cleaner.clean_once()
    manager.topics.alter("users", {"min.cleanable.dirty.ratio": "0.9"})
    manager.send("users", b"x", key=b"1", partition=0)
    manager[USERS].roll()
    manager.flush()
    assert console.why_record_retained(served, "users", 0, 1).code == NOT_DIRTY_ENOUGH


@pytest.mark.parametrize("size", [1, 250, 100_000])
def test_retention_by_size_then_deletes_exactly_what_was_shown(served: Served, size: int) -> None:
    change = {"cleanup.policy": "delete", "retention.bytes": str(size)}
    (part,) = console.preview_change(served, "users", change).partitions
    alter_settings(served, Actor(), "users", change)
    taken = served.opened().upkeep.delete_old_segments().get("users-0", ())
    assert [deletion.base_offset for deletion in taken] == [segment.base_offset for segment in part.expiring]


def test_a_setting_is_removed_and_a_change_that_does_nothing_says_so(served: Served) -> None:
    alter_settings(served, Actor(), "users", {"min.cleanable.dirty.ratio": "1"})
    shown = console.preview_change(served, "users", {}, ["min.cleanable.dirty.ratio"])
    assert dict(shown.changed) == {"min.cleanable.dirty.ratio": ("1.0", "0.5")}
    assert shown.partitions[0].is_due and not shown.partitions[0].was_due
    (sentence,) = console.preview_change(served, "users", {"flush.messages": "7"}).sentences
    assert sentence.startswith("Nothing goes")


@pytest.mark.parametrize("change", [{"no.such": "1"}, {"retention.ms": "soon"}, {"cleanup.policy": "shrink"}])
def test_a_wrong_change_is_refused(served: Served, change: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        console.preview_change(served, "users", change)
