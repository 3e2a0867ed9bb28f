"""A real broker before and after ours: the same directories, both ways, without a word of complaint."""

from __future__ import annotations

from pathlib import Path

import pytest

import siltstone as st
from siltstone.log.names import TopicPartition
from siltstone.log.reading import LogReader
from siltstone.runtime.topics import TOPICS_FILE
from tests.support.kafka.broker import HostedBroker
from tests.support.kafka.logdir import CLEAN_MARKER, checkpoint
from tests.support.kafka.records import Sent

pytestmark = pytest.mark.kafka


def test_a_broker_continues_where_a_manager_stopped(tmp_path: Path) -> None:
    """The broker also accepts our ``meta.properties`` of a second directory, and our file in the root."""
    first, second = tmp_path / "data", tmp_path / "more"
    broker = HostedBroker(first)
    with broker:
        for topic in ("events", "gone"):
            broker.create_topic(topic, configs={"segment.bytes": "1048576"})
        broker.produce("events", [Sent(key=b"%d" % number, value=b"kafka") for number in range(50)])
    with st.open([first, second], "a") as logs:
        log = logs["events", 0]
        assert [record.value for record in LogReader(log).records()] == [b"kafka"] * 50
        logs.topics.alter("events", {"retention.ms": "-1"})
        many = [st.NewRecord(key=b"%d" % number, value=b"ours") for number in range(50, 80)]
        assert st.append(log, many).first_offset == 50
        log.roll()
        st.append(log, [st.NewRecord(key=b"80", value=b"ours")])
        assert logs.delete_records(TopicPartition("events", 0), 20) == 20
    assert (first / TOPICS_FILE).exists() and (second / CLEAN_MARKER).exists()
    assert checkpoint(first, "replication-offset-checkpoint")["events", 0] == 81
    both = HostedBroker([first, second])
    with both:
        records = both.consume_all("events")
        assert [record.key for record in records] == [b"%d" % number for number in range(20, 81)]
        assert both.end_offset("events") == 81
        assert both.produce("events", [Sent(key=b"81", value=b"kafka")]) == [81]
    log_of_it = both.log_file.read_text(errors="replace")
    assert "recovered for events-0" not in log_of_it and "stray" not in log_of_it.lower()
    with st.open([first, second], "a") as logs:
        assert [record.offset for record in LogReader(logs["events", 0]).records()] == list(range(20, 82))
