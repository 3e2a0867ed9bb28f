"""One of the two brokers of the twin: what it was asked, what it answered, and what it takes to ask.

A broker of Kafka's says that a topic is there before it can serve it, so `create` and `until` wait; waiting
leaves no answer behind. Names of topics are the same on both sides, ids are learnt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tests.support.broker_twin.schemas import Message
from tests.support.broker_twin.wire import CLOSED, Connection
from tests.support.kafka.polling import poll_until

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID = 18, 19, 20, 21, 22
OFFSET_FOR_LEADER_EPOCH, DESCRIBE_CONFIGS, ALTER_CONFIGS = 23, 32, 33
DESCRIBE_LOG_DIRS, CREATE_PARTITIONS, INCREMENTAL_ALTER_CONFIGS = 35, 37, 44
ELECT_LEADERS, ALTER_PARTITION_REASSIGNMENTS, LIST_PARTITION_REASSIGNMENTS = 43, 45, 46
ALTER_REPLICA_LOG_DIRS, DESCRIBE_QUORUM, UPDATE_FEATURES = 34, 55, 57
DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS, DESCRIBE_USER_SCRAM_CREDENTIALS = 48, 49, 50
DESCRIBE_CLUSTER = 60
LIST_CONFIG_RESOURCES, DESCRIBE_TOPIC_PARTITIONS = 74, 75
SETTLE_S: Final = 60.0
EARLIEST: Final = -2
NOT_YET: Final = (3, 6, 100)
"""Codes of a partition that Kafka has announced and does not lead yet."""


class Side:
    """One broker; ``answers`` by the request's name and version."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.answers: dict[str, Message] = {}
        self.asked: set[tuple[int, int]] = set()
        self.topic_ids: dict[str, bytes] = {}
        self._connection: Connection | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def ask(self, name: str, key: int, version: int, **message: Any) -> Message:
        """Send one request, and keep its answer under its name."""
        answer = self.quietly(key, version, **message)
        self.keep(f"{name} v{version}", answer)
        if answer is not CLOSED:
            self.asked.add((key, version))
        return answer

    def quietly(self, key: int, version: int, **message: Any) -> Message:
        """Send one request whose answer is not compared."""
        if self._connection is None:
            self._connection = Connection(self.bootstrap)
        answer = self._connection.ask(key, version, message)
        if answer is CLOSED:
            self.close()
        return answer

    def keep(self, name: str, answer: Message) -> None:
        """Keep an answer to compare."""
        assert name not in self.answers, f"two requests are called {name}"
        self.answers[name] = answer

    def until(self, ask: Callable[[], bool], what: str) -> None:
        """Ask again until ``ask`` says yes."""
        poll_until(lambda: ask() or None, what=f"{what} of {self.bootstrap}", timeout_s=SETTLE_S)

    def create(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None, **topic: Any
    ) -> bytes:
        """Create a topic, wait for it, and learn its id."""
        settings = [{"name": key, "value": value} for key, value in (configs or {}).items()]
        defaults = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": settings}
        answer = self.quietly(CREATE_TOPICS, 7, topics=[defaults | topic])
        assert answer["topics"][0]["error_code"] == 0, answer
        return self.settle(name, partitions)

    def settle(self, name: str, partitions: int = 1) -> bytes:
        """Wait until every partition of a topic is served, by name and by id; its id."""

        def served() -> bool:
            (topic,) = self.topics([name])
            if topic["error_code"] or len(topic["partitions"]) < partitions:
                return False
            self.topic_ids[name] = topic["topic_id"]
            queries = [{"partition_index": number, "timestamp": EARLIEST} for number in range(partitions)]
            request = {"name": name, "partitions": queries}
            answer = self.quietly(LIST_OFFSETS, 9, replica_id=-1, topics=[request])
            return not any(partition["error_code"] for partition in answer["topics"][0]["partitions"])

        self.until(served, f"the topic {name}")
        return self.topic_ids[name]

    def topics(self, names: Sequence[str] | None) -> list[Message]:
        """What Metadata says of topics."""
        entries = None if names is None else [{"name": name, "topic_id": bytes(16)} for name in names]
        answer = self.quietly(METADATA, 12, topics=entries, allow_auto_topic_creation=False)
        return list(answer["topics"])

    def wait_for_deletion(self, name: str) -> None:
        """Wait until a topic is deleted."""
        self.until(lambda: self.topics([name])[0]["error_code"] == 3, f"the end of {name}")

    def produce(self, topic: str, *batches: bytes, partition: int = 0) -> list[Message]:
        """Produce batches, a request each, that must be taken; their answers."""
        answers = []
        for batch in batches:
            data = [{"index": partition, "records": batch}]
            answer = self.quietly(
                PRODUCE, 9, acks=-1, timeout=5000, topic_data=[{"name": topic, "partition_data": data}]
            )
            (row,) = answer["responses"][0]["partition_responses"]
            assert row["error_code"] == 0, row
            answers.append(row)
        return answers
