"""Topics by their ids, as the protocol has them: 16 bytes."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path

from siltstone.log.names import TopicPartition
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


def test_topics_that_only_their_files_know(tmp_path: Path) -> None:
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
