"""What a log directory is full of, as it is found on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from siltstone.base import files
from siltstone.base.errors import UsageError
from siltstone.commands.disk_contents import contents_of, last_scan
from siltstone.commands.listing import ListQuery
from siltstone.commands.served import Served, ServeOptions


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    properties = tmp_path / "server.properties"
    properties.write_text("log.cleaner.enable=false\n")
    with Served(ServeOptions(paths=(tmp_path / "logs",), properties=properties)) as served:
        manager = served.opened()
        for name, count in (("small", 1), ("large", 50)):
            manager.topics.create(name, 1, {"cleanup.policy": "compact"})
            for _ in range(count):
                manager.send(name, b"x" * 100, key=b"a", partition=0)
        manager.flush()
        served.cataloguer.refresh()
        yield served


def test_all_bytes_of_the_directory_are_counted_by_kind(served: Served) -> None:
    root = served.paths[0]
    (root / "large-0" / "00000000000000000000.log.deleted").write_bytes(b"x" * 300)
    (root / "large-0" / "00000000000000000007.index.swap").write_bytes(b"x" * 20)
    (root / "small-0" / ".siltstone" / "run").mkdir(parents=True)
    (root / "small-0" / ".siltstone" / "run" / "0.log").write_bytes(b"x" * 1000)
    (root / "small-0" / ".compacted").mkdir()
    (root / "small-0" / ".compacted" / "0.ledger").write_bytes(b"x" * 70)
    (root / f"gone-0.{'a' * 32}-delete").mkdir()
    (root / f"gone-0.{'a' * 32}-delete" / "0.log").write_bytes(b"x" * 40)
    (root / "stray-0-stray").mkdir()
    contents = contents_of(served, root)
    assert sum(contents.shares.values()) == files.tree_size(root)
    assert contents.shares["left-overs of swaps and cleanings"] == 1320
    assert contents.shares["deleted topics"] == 40
    assert contents.shares["compacted ledgers"] == 70
    assert [log.topic for log in contents.logs] == ["large", "small"]
    assert [log.left_overs for log in contents.logs] == [320, 1000]
    assert [(left_over.path, left_over.bytes) for left_over in contents.left_overs] == [
        ("small-0/.siltstone", 1000),
        ("large-0/00000000000000000000.log.deleted", 300),
        (f"gone-0.{'a' * 32}-delete", 40),
        ("large-0/00000000000000000007.index.swap", 20),
        ("stray-0-stray", 0),
    ]
    assert all(left_over.why for left_over in contents.left_overs)
    assert contents.in_use
    assert contents.total_bytes is not None and contents.used_bytes is not None
    assert 0 < contents.used_bytes <= contents.total_bytes


@pytest.mark.parametrize("is_look", [False, True])
def test_a_log_with_the_id_of_another_topic_is_named(tmp_path: Path, is_look: bool) -> None:
    options = ServeOptions(paths=(tmp_path / "logs",), engine="process", creates=True)
    with Served(options) as served:
        for topic in ("whole", "damaged", "other"):
            served.opened().topics.create(topic, 1, {})
    for topic, text in (("other", f"version: 0\ntopic_id: {'A' * 21}Q\n"), ("damaged", "version: 7\n")):
        (tmp_path / "logs" / f"{topic}-0" / "partition.metadata").write_text(text)
    with Served(replace(options, is_look=is_look)) as served:
        served.cataloguer.refresh()
        reasons = {
            left_over.path: left_over.why for left_over in contents_of(served, served.paths[0]).left_overs
        }
    assert set(reasons) == {"other-0", "damaged-0"}
    assert f"its topic id is {'A' * 21}Q, but " in reasons["other-0"]
    assert "it has no version 0 with a topic id" in reasons["damaged-0"]


def test_a_log_that_cannot_be_read_is_named_and_stops_no_other(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_all = files.list_all

    def forbidden(directory: Path, **options: Any) -> dict[str, files.FileStat]:
        if directory.name == "large-0":
            raise PermissionError(13, "Permission denied", str(directory))
        return list_all(directory, **options)

    monkeypatch.setattr(files, "list_all", forbidden)
    contents = contents_of(served, served.paths[0])
    assert [log.topic for log in contents.logs] == ["small"]
    (left_over,) = contents.left_overs
    assert (left_over.path, left_over.why) == ("large-0", "it cannot be read: Permission denied")


def test_logs_are_sorted_and_filtered(served: Served) -> None:
    rows = contents_of(served, served.paths[0]).rows
    for sort in ("topic", "bytes", "segments", "indexes", "partition", "left_overs", "ledgers"):
        up = [log.topic for log in rows.chosen(ListQuery(sort=sort))]
        expected = ["small", "large"] if sort in ("bytes", "segments", "indexes") else ["large", "small"]
        assert up == expected, sort
    assert [log.topic for log in rows.chosen(ListQuery(contains="SMA"))] == ["small"]


@pytest.mark.parametrize("number", [-1, 1])
def test_a_directory_that_there_is_not_is_refused(served: Served, number: int) -> None:
    with pytest.raises(UsageError, match="there is no directory"):
        last_scan(served, number)


def test_a_directory_that_is_gone_is_an_error_and_no_crash(tmp_path: Path, served: Served) -> None:
    served.close()
    options = ServeOptions(paths=tuple(served.paths), is_look=True)
    with Served(options) as looking:
        looking.cataloguer.refresh()
        (tmp_path / "logs").rename(tmp_path / "elsewhere")
        last_scan(looking, 0)
        looking.scans.wait(f"directory {tmp_path / 'logs'}")
        scan = last_scan(looking, 0)
        assert scan.found is None and scan.error is not None and "No such file" in scan.error
