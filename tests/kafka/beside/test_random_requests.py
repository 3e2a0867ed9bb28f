"""Random requests of every API and version: our answers are Kafka's, field by field.

A fixed seed in CI; a new one for a minute in ``make test-long``, which prints it and the number of requests.
``SILTSTONE_TWIN_SECONDS`` says for how long, ``SILTSTONE_SEED`` repeats a run.

Of a time that Kafka does not find in ListOffsets, since the segment that it searches is below the log start
(``differences.toml``), our answer is compared with the records that Kafka has.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_twin.batches import batch
from tests.support.broker_twin.comparing import deliberate_differences, differences
from tests.support.broker_twin.pair import BOTH, Pair
from tests.support.broker_twin.random_requests import (
    CHANGES_TOPICS,
    STEADY,
    TOPIC,
    RandomRequest,
    random_requests,
    with_ids,
)
from tests.support.broker_twin.scenes.produce import new_id
from tests.support.broker_twin.schemas import Message
from tests.support.broker_twin.side import (
    ALTER_CONFIGS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_TOPIC_PARTITIONS,
    EARLIEST,
    FETCH,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_OFFSETS,
    Side,
)
from tests.support.kafka.polling import poll_until
from tests.support.records.twin import Record, decode_log

SECONDS = float(os.environ.get("SILTSTONE_TWIN_SECONDS", "60"))
SEED = int(os.environ.get("SILTSTONE_SEED", random.randrange(1 << 32)))
SEED_OF_CI, REQUESTS_OF_CI = 26, 120
SETTLE_S = 30.0
PLENTY = 32 << 20
DELIBERATE = deliberate_differences(Path(__file__).with_name("differences.toml"))
NAMES = ("name", "topic", "topic_name", "resource_name")

pytestmark = pytest.mark.kafka


class Twins:
    """Both brokers, with the same topics at first. Topics that others have made are left out of answers."""

    def __init__(self, pair: Pair) -> None:
        self.kafka, self.ours = self.sides = [Side(pair.bootstrap[which]) for which in BOTH]
        self._others: frozenset[str] = frozenset()
        self._others = frozenset(name for side in self.sides for name in self._topics(side))
        for side in self.sides:
            for name, partitions in STEADY.items():
                side.create(name, partitions)
                side.produce(name, batch(3), batch(2, codec=4))
            side.until(lambda side=side: new_id(side) >= 0, "producer ids")  # type: ignore[misc]
        self._known = {name: len(topic) for name, topic in self._topics(self.kafka).items()}

    def _topics(self, side: Side) -> dict[str, list[Message]]:
        topics = {topic["name"]: topic["partitions"] for topic in side.topics(None)}
        return {name: partitions for name, partitions in topics.items() if name not in self._others}

    def close(self) -> None:
        """Delete the topics, and close the connections."""
        for side in self.sides:
            side.quietly(DELETE_TOPICS, 5, topic_names=list(self._topics(side)), timeout=30_000)
            side.close()

    def _own(self, answer: Any) -> Any:
        """An answer without the topics of others."""
        if isinstance(answer, dict):
            return {name: self._own(value) for name, value in answer.items()}
        if not isinstance(answer, list):
            return answer
        return [self._own(entry) for entry in answer if not self._is_of_others(entry)]

    def _is_of_others(self, entry: Any) -> bool:
        return isinstance(entry, dict) and any(entry.get(name) in self._others for name in NAMES)

    def can_ask(self, request: RandomRequest) -> bool:
        """A page of all topics begins with those of others, if there are some."""
        is_page = request.scene.key == DESCRIBE_TOPIC_PARTITIONS and not request.message["topics"]
        return not (is_page and self._others)

    def ask(self, name: str, request: RandomRequest) -> list[str]:
        """Ask both; what differs and may not."""
        key, entries = request.scene.key, [entry for entry in DELIBERATE if entry.is_of(request.scene.name)]
        for side in self.sides:
            side.answers.clear()
            answer = side.ask(name, key, request.version, **with_ids(request.message, side.topic_ids))
            side.answers = {question: self._own(body) for question, body in side.answers.items()}
            if key == DELETE_TOPICS:  # Kafka shuffles them, also those that have one name
                for body in side.answers.values():
                    body.get("responses", []).sort(key=lambda row: row["error_code"])
            if key == FETCH and (session := answer.get("session_id", 0)) > 0:
                fields = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "topics": []}
                side.quietly(FETCH, 8, session_id=session, session_epoch=-1, **fields)
        differing = differences(self.kafka, self.ours)
        if key == LIST_OFFSETS and differing:
            by_records = self._first_by_records(
                request.message, {difference.field for difference in differing}
            )
            differing = [
                difference
                for difference in differing
                if difference.kafka != -1 or by_records.get(difference.field) != difference.ours
            ]
        if key in CHANGES_TOPICS:
            self._settle_topics()
        if key in (ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS):
            self._settle_settings()
        return [
            str(difference)
            for difference in differing
            if not any(entry.covers(difference) for entry in entries)
        ]

    def _first_by_records(self, request: Message, fields: set[str]) -> dict[str, int]:
        """What ListOffsets has to say of times by the records that Kafka has, for partitions of which
        ``fields`` has the offset."""
        by_field = dict[str, int]()
        for topic in request["topics"]:
            for partition in topic["partitions"]:
                path = f"topics[{topic['name']}].partitions[{partition['partition_index']}]"
                if partition["timestamp"] < 0 or f"{path}.offset" not in fields:
                    continue
                records = self._kafkas_records(topic["name"], partition["partition_index"])
                late = (record for record in records if record.timestamp >= partition["timestamp"])
                if first := next(late, None):
                    values = {"offset": first.offset, "timestamp": first.timestamp, "leader_epoch": 0}
                    by_field |= {f"{path}.{name}": value for name, value in values.items()}
        return by_field

    def _kafkas_records(self, topic: str, partition: int) -> Iterator[Record]:
        """Kafka's records of a partition from its log start offset on."""
        question = {"partition_index": partition, "timestamp": EARLIEST}
        answer = self.kafka.quietly(
            LIST_OFFSETS, 9, replica_id=-1, topics=[{"name": topic, "partitions": [question]}]
        )
        start = answer["topics"][0]["partitions"][0]["offset"]
        place = {"partition": partition, "fetch_offset": start, "partition_max_bytes": PLENTY}
        fields = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": PLENTY}
        answer = self.kafka.quietly(FETCH, 11, topics=[{"topic": topic, "partitions": [place]}], **fields)
        (row,) = answer["responses"][0]["partitions"]
        records = (record for entry in decode_log(row["records"]) for record in entry.records)
        return (record for record in records if record.offset >= start)

    def _settle_topics(self) -> None:
        """Wait until both have the same topics, and serve them."""

        def counts() -> dict[str, int] | None:
            theirs, ours = (
                {name: len(rows) for name, rows in self._topics(side).items()} for side in self.sides
            )
            return theirs if theirs == ours else None

        counted = poll_until(counts, what="the same topics on both", timeout_s=SETTLE_S)
        for side in self.sides:
            for deleted in set(side.topic_ids) - set(counted):
                del side.topic_ids[deleted]
            for name, partitions in counted.items():
                if self._known.get(name) != partitions or name not in side.topic_ids:
                    side.settle(name, partitions)
        self._known = counted

    def _settle_settings(self) -> None:
        """Wait until the settings of all topics that Kafka knows are the same."""
        names = list(self._known)
        resources = [
            {"resource_type": TOPIC, "resource_name": name, "configuration_keys": None} for name in names
        ]

        def settings(side: Side) -> dict[tuple[str, str], str]:
            answer = side.quietly(DESCRIBE_CONFIGS, 4, resources=resources)
            return {(row["resource_name"], setting["name"]): setting["value"]
                    for row in answer["results"] for setting in row["configs"]}  # fmt: skip

        def are_same() -> bool | None:
            theirs, ours = map(settings, self.sides)
            return theirs == {name: ours.get(name) for name in theirs} or None

        poll_until(are_same, what="the same settings on both", timeout_s=SETTLE_S)


def asked_alike(pair: Pair, seed: int, *, until: Callable[[int], bool]) -> int:
    """How many requests both have answered alike; the end is when ``until`` is true of that number."""
    twins, count = Twins(pair), 0
    try:
        for request in random_requests(random.Random(seed), lambda: twins.kafka.topic_ids):
            if not twins.can_ask(request):
                continue
            count += 1
            try:
                differing = twins.ask(f"random {count}", request)
            except AssertionError as error:
                differing = [str(error)]
            name, version = request.scene.name, request.version
            assert not differing, f"seed {seed}, {count}: {name} {version} {request.message}: {differing[:9]}"
            if until(count):
                break
    finally:
        twins.close()
    return count


def test_random_requests(pair: Pair) -> None:
    assert asked_alike(pair, SEED_OF_CI, until=lambda count: count >= REQUESTS_OF_CI) == REQUESTS_OF_CI


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 300)
def test_random_requests_for_minutes(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    count = asked_alike(pair, SEED, until=lambda _: time.monotonic() - begun > SECONDS)
    assert count > SECONDS
    with capsys.disabled():
        sys.stdout.write(f"\n{count:,} random requests in {SECONDS:.0f} s (seed {SEED}): no difference\n")
