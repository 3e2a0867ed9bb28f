"""A preview of changed settings: its segments are those that retention takes, its logs become due."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.errors import UsageError
from siltstone.commands.administration import alter_settings
from siltstone.commands.changes import Actor
from siltstone.commands.previewing import preview
from siltstone.commands.served import Served, ServeOptions
from siltstone.commands.watch import DUE
from tests.support.log.managed import NOW


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    properties = tmp_path / "server.properties"
    properties.write_text("log.cleaner.enable=false\n")
    options = ServeOptions(paths=(tmp_path / "logs",), properties=properties, engine="process")
    with Served(options, ManualClock(NOW)) as served:
        served.opened().topics.create("users", 1, {"cleanup.policy": "compact", "segment.ms": "1000000000"})
        log = served.opened()["users", 0]
        for number in range(5):
            served.opened().send("users", b"x" * 100, key=b"%d" % number, partition=0)
            log.roll()
        served.opened().flush()
        yield served


def bases(served: Served) -> list[int]:
    return [segment.base_offset for segment in served.opened()["users", 0].view.segments]


@pytest.mark.parametrize("size", [1, 250, 100_000])
def test_retention_by_size_then_deletes_exactly_what_was_shown(served: Served, size: int) -> None:
    change = {"cleanup.policy": "delete", "retention.bytes": str(size)}
    before = bases(served)
    shown = preview(served, "users", change)
    (row,) = shown.partitions
    assert bases(served) == before and row.deleted_now == () and shown.deletes == bool(row.deleted_then)
    alter_settings(served, Actor(), "users", change)
    served.opened().upkeep.delete_old_segments()
    assert [base for base in before if base not in bases(served)] == list(row.deleted_then)
    if row.deleted_then:
        assert f"{len(row.deleted_then)} segments with {row.deleted_bytes_then:,} bytes" in shown.sentences[0]
    assert any("No log would be compacted" in sentence for sentence in shown.sentences)


def test_a_lower_ratio_makes_a_log_due_and_the_default_undoes_it(served: Served) -> None:
    alter_settings(served, Actor(), "users", {"min.cleanable.dirty.ratio": "1"})
    shown = preview(served, "users", {"min.cleanable.dirty.ratio": "0.1"})
    assert shown.partitions[0].becomes_due and "1 logs would become due for cleaning." in shown.sentences
    assert shown.differences == {"min.cleanable.dirty.ratio": ("1.0", "0.1")}
    by_default = preview(served, "users", {}, ["min.cleanable.dirty.ratio"])
    assert by_default.differences == {"min.cleanable.dirty.ratio": ("1.0", "0.5")}
    assert by_default.partitions[0].state_then == DUE


def test_a_change_that_does_nothing_says_so(served: Served) -> None:
    assert preview(served, "users", {"segment.bytes": "1000000"}).sentences == [
        "Nothing would be deleted or cleaned because of this change alone."
    ]


@pytest.mark.parametrize("change", [{"no.such": "1"}, {"retention.ms": "soon"}, {"cleanup.policy": "shrink"}])
def test_a_wrong_change_is_refused(served: Served, change: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        preview(served, "users", change)
