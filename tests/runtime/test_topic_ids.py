"""Topics by their ids, as the protocol has them: 16 bytes."""

from __future__ import annotations

import base64
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from siltstone.log.names import TopicPartition
from siltstone.runtime.topics import Topics
from tests.support.log.managed import append, opened


def as_bytes(text: str | None) -> bytes:
    return base64.urlsafe_b64decode((text or "") + "==")


def test_ids_lead_both_ways(tmp_path: Path) -> None:
    with opened(tmp_path) as logs:
        created = {name: as_bytes(logs.topics.create(name, 2).topic_id) for name in ("a", "b")}
        assert logs.topics.ids == created
        assert logs.topics.names_by_id == {topic_id: name for name, topic_id in created.items()}
        assert {len(topic_id) for topic_id in created.values()} == {16}
        assert logs.topics.ids is logs.topics.ids  # not made anew for each request


def test_a_deleted_topics_id_leads_nowhere(tmp_path: Path) -> None:
    with opened(tmp_path) as logs:
        old = as_bytes(logs.topics.create("a").topic_id)
        assert logs.topics.names_by_id[old] == "a"
        logs.topics.delete("a")
        assert old not in logs.topics.names_by_id
        new = as_bytes(logs.topics.create("a").topic_id)
        assert new != old
        assert (logs.topics.ids, logs.topics.names_by_id) == ({"a": new}, {new: "a"})


def test_topics_that_no_registry_lists_have_the_ids_of_their_files(tmp_path: Path) -> None:
    """As in a directory that a broker has used: no registry."""
    with opened(tmp_path) as logs:
        known = as_bytes(logs.topics.create("known").topic_id)
        logs.topics.create("nameless")
        append(logs["known", 0])
    (tmp_path / "siltstone-topics.json").unlink()
    (tmp_path / "nameless-0" / "partition.metadata").unlink()
    shutil.copytree(tmp_path / "nameless-0", tmp_path / "damaged-0")
    (tmp_path / "damaged-0" / "partition.metadata").write_text(
        "version: 0\ntopic_id: ======================\n"
    )
    with opened(tmp_path) as logs:
        assert logs.topics.ids == {"known": known}
        assert logs.topics.names_by_id == {known: "known"}
        created = logs.topics.create("new")
        assert logs.topics.ids == {"known": known, "new": as_bytes(created.topic_id)}
        logs.topics.delete("known")
        again = as_bytes(logs.topics.create("known").topic_id)
        assert logs.topics.ids["known"] == again != known


def test_a_new_partition_changes_no_id(tmp_path: Path) -> None:
    with opened(tmp_path) as logs:
        logs.get_or_create(TopicPartition("a", 0))
        before = dict(logs.topics.ids)
        logs.get_or_create(TopicPartition("a", 7))
        assert logs.topics.ids == before


def test_readers_do_not_wait_for_a_change_of_topics(tmp_path: Path) -> None:
    """A broker answers everybody from one thread, and a topic of many partitions takes seconds."""
    with opened(tmp_path) as logs:
        logs.topics.create("a", 2)
        logs.topics.forget_partitions()
        with logs.creation_or_deletion_lock, ThreadPoolExecutor(1) as others:
            assert others.submit(lambda: logs.topics.partitions_of("a")).result(20) == (0, 1)
            assert others.submit(lambda: logs.topics.partition_count("a")).result(20) == 2
            ids, names = others.submit(lambda: (logs.topics.ids, logs.topics.names_by_id)).result(20)
        assert names[ids["a"]] == "a"


def test_what_is_found_during_a_change_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as logs:
        logs.topics.create("a")
        topics, look = logs.topics, type(logs.topics)._entry

        def change_meanwhile(self: Topics, name: str) -> object:
            entry = look(self, name)
            monkeypatch.undo()
            topics.add_partitions("a", 3)
            return entry

        topics.forget_partitions()
        monkeypatch.setattr(type(topics), "_entry", change_meanwhile)
        assert topics.partitions_of("a") == (0,)
        assert topics.partitions_of("a") == (0, 1, 2)
