"""Random requests for the twin: every API and version, every field with values that a client may send.

::

    choose an API and a version ─► fill the fields of its schema, each by its name ─► ask both sides, compare
                                   after a change of topics: wait until both have the same ones, learn ids

What differs on purpose and is asked for by name in a scene is left out here: transactional ids, acks 0 (no
answer), records that are null (Kafka never answers), isolation levels that do not exist, followers, a
partition twice in a produce request, changes of brokers and of quotas. So is what would differ by chance:
codecs that a broker compresses with, retention by time. Otherwise the same list of deliberate differences
holds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tests.support.broker_twin import schemas
from tests.support.broker_twin.batches import TIME_MS, batch, numbered
from tests.support.broker_twin.scenes import APIS
from tests.support.broker_twin.scenes.scene import NO_SUCH_ID, NODE, ZERO_ID, Scene
from tests.support.broker_twin.schemas import Field, Message, Schema
from tests.support.broker_twin.side import (
    ALTER_CLIENT_QUOTAS,
    API_VERSIONS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_TOPIC_PARTITIONS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
)
from tests.support.log.crafted import CONTROL

STEADY: Final = {f"steady-{number}": number + 1 for number in range(3)}
"""Topics that stay, with their partitions."""
PASSING: Final = tuple(f"passing.{number}" for number in range(6))
"""Topics that requests create and delete."""
OTHERS: Final = ("none", "", "a/b", "x" * 249, "x" * 250, "steady_0", ".", "å")
CHANGES_TOPICS: Final = frozenset((CREATE_TOPICS, CREATE_PARTITIONS, DELETE_TOPICS, METADATA))
PARTITIONS: Final = (0, 0, 0, 1, 1, 2, 3, 9, -1, 2**31 - 1)
SETTINGS: Final[Mapping[str, Sequence[str | None]]] = {
    "retention.ms": ("-1", "-2", "x", "", None, " 9223372036854775807 "),
    "cleanup.policy": ("compact", "delete", "compact,delete", "none", "", None, "Compact"),
    "flush.messages": ("1", "0", "9223372036854775807", "9223372036854775808"),
    "max.message.bytes": ("1048588", "0", "-1", "2147483648"),
    "min.cleanable.dirty.ratio": ("0.5", "0", "1", "1.1", "nan", "1e-1"),
    "compression.type": ("producer", "uncompressed", "none", "lzo"),
    "message.timestamp.type": ("CreateTime", "createtime", "x"),
    "preallocate": ("false", "true", "False", "yes"),
    "no.such.setting": ("1", None),
    "": ("1",),
}
JOINS_TOPICS: Final = frozenset((PRODUCE, FETCH, LIST_OFFSETS))
"""APIs that take a topic twice, and join its partitions in the answer."""
TOPIC, BROKER, APPEND = 2, 4, 2
"""Types of resources that have settings."""
_OFFSETS = (-2, -1, 0, 1, 2, 5, 9, 30, 10_000, 2**63 - 1, -(2**63))
_SMALL = (-(2**31), -1, 0, 1, 2, 100, 1 << 20, 2**31 - 1)
_OLD_PRODUCERS = 8_000_000


class RandomRequest(NamedTuple):
    """A request: of the scene's API, in a version."""

    scene: Scene
    version: int
    message: Message


def random_requests(
    rng: random.Random, topic_ids: Callable[[], Mapping[str, bytes]]
) -> Iterator[RandomRequest]:
    """Endless requests; ``topic_ids``: the names of topics as they are now, which stand for their ids."""
    scenes = [scene for scene in APIS if scene.key not in (API_VERSIONS, ALTER_CLIENT_QUOTAS)]
    # Half of all are about records.
    weights = [6 if scene.name in ("produce", "fetch", "list_offsets") else 1 for scene in scenes]
    while True:
        (scene,) = rng.choices(scenes, weights)
        version = rng.choice(scene.versions)
        maker = _Maker(rng, scene, version, list(topic_ids()))
        yield RandomRequest(scene, version, maker.message())


class _Maker:
    """Makes a request; a topic's id is its name until it is sent (``with_ids``)."""

    def __init__(self, rng: random.Random, scene: Scene, version: int, topics: list[str]) -> None:
        self._rng, self._scene, self._version, self._topics = rng, scene, version, topics

    def message(self) -> Message:
        """The request."""
        message = self._struct(schemas.schema(self._scene.key, self._version, "request"))
        if self._scene.key == PRODUCE:
            for topic in message["topic_data"]:
                rows = {row["index"]: row for row in topic["partition_data"]}
                topic["partition_data"] = list(rows.values())
            topics = {self._produced(topic): topic for topic in message["topic_data"]}
            message["topic_data"] = list(topics.values())
        if self._scene.key == FETCH and self._version >= 13:
            _drop_zero_ids(message)
        if self._scene.key == DESCRIBE_TOPIC_PARTITIONS:
            # Kafka fails to describe a topic without a name, and adds the cursor to a limit, which overflows.
            message["topics"] = [topic for topic in message["topics"] if topic["name"]]
            if message["cursor"]:
                message["cursor"]["partition_index"] = self._rng.choice((-1, 0, 1, 2, 9))
        return message

    def _produced(self, topic: Message) -> str:
        """What a topic of a produce request stands for: by id, all topics that do not exist are one."""
        if self._version < 13:
            return str(topic["name"])
        return str(topic["topic_id"]) if topic["topic_id"] in self._topics else ""

    def _struct(self, layout: Schema) -> Message:
        values = {field.name: self._value(layout, field) for field in layout.fields}
        if {"name", "topic_id"} <= set(values):  # by name, by id, seldom by both or neither
            draw = self._rng.random()
            is_nullable = any(field.name == "name" and field.nullable for field in layout.fields)
            if draw < 0.45 and is_nullable:
                values["name"] = None
            elif draw < 0.9:
                values["topic_id"] = ""
        if "value" in values:
            values["name"] = self._rng.choice(list(SETTINGS))
            values["value"] = self._rng.choice(SETTINGS[values["name"]])
            if values.get("config_operation") == APPEND and not values["value"]:
                values["config_operation"] = 0
        # The two are not told the same of the whole broker.
        if values.get("resource_type") == BROKER and not values.get("configuration_keys"):
            values["resource_type"] = TOPIC
        return values

    def _value(self, layout: Schema, field: Field) -> Any:
        rng = self._rng
        if field.tag is not None:
            return field.initial()
        if field.nullable and field.name not in ("name", "records") and rng.random() < 0.15:
            return None
        if field.array:
            elements = [self._element(field) for _ in range(rng.choice((0, 1, 1, 1, 2, 3)))]
            if self._scene.key in JOINS_TOPICS:
                return elements
            # Kafka drops all entries of one thing but the last one, or refuses all of them.
            return list({_identity(element): element for element in elements}.values())
        return self._element(field)

    def _element(self, field: Field) -> Any:
        if field.inner is not None:
            return self._struct(field.inner)
        rng, make = self._rng, getattr(self, f"_of_{field.name}", None)
        if make is not None:
            return make()
        if field.name in _CHOICES:
            return rng.choice(_CHOICES[field.name])
        if field.kind == "bool":
            return rng.random() < 0.5
        if field.kind == "uuid":
            return self._topic()
        assert field.kind != "string", field.name
        return rng.choice((-1, 0, 1, 2))

    def _topic(self) -> str:
        rng = self._rng
        draw = rng.random()
        if draw < 0.65:
            return rng.choice(list(STEADY))
        return rng.choice(self._topics or OTHERS) if draw < 0.8 else rng.choice((*PASSING, *OTHERS))

    def _of_name(self) -> str:
        rng, is_creation = self._rng, self._scene.key == CREATE_TOPICS
        if is_creation or self._scene.key == DELETE_TOPICS:
            others = (*OTHERS, "passing_0", *(STEADY if is_creation else ()))
            return rng.choice(PASSING if rng.random() < 0.8 else others)
        return self._topic()

    def _of_topic_id(self) -> str:
        return self._of_name() if self._scene.key == DELETE_TOPICS else self._topic()

    _of_topic = _of_topic_name = _topic
    _of_topic_names = _of_name

    def _of_partitions(self) -> int:
        return self._rng.choice(PARTITIONS)

    def _of_timeout(self) -> int:
        return self._rng.choice((30_000, 60_000))

    def _of_records(self) -> bytes:
        rng = self._rng
        count = rng.choice((1, 1, 2, 5))
        good = batch(count, codec=rng.randrange(5), value=b"v" * rng.choice((0, 1, 100)))
        kind = rng.randrange(12)
        if kind < 5:
            return good
        who, epoch = _OLD_PRODUCERS + rng.randrange(6), rng.choice((0, 0, 0, 1))
        if kind < 8:
            return numbered(rng.choice((0, 0, 1, 2, 5)), count, producer_id=who, epoch=epoch)
        return rng.choice(
            (
                b"",
                good[: rng.randrange(len(good))],
                good + good,
                batch(count, checksum=5),
                batch(count, magic=rng.choice((0, 1, 3, 9))),
                batch(count, attributes=rng.choice((4, 5, 7, CONTROL))),
                batch(count, last_delta=rng.choice((-1, 0, 1, 7))),
                batch(count, key=None),
                batch(count, base_offset=rng.choice(_OFFSETS[1:-1])),
                batch(count, time_ms=rng.choice((0, 1, TIME_MS)), step_ms=rng.choice((-1, 0, 5))),
                batch(0),
            )
        )

    def _of_resource_type(self) -> int:
        is_look = self._scene.key == DESCRIBE_CONFIGS
        return self._rng.choice((TOPIC, TOPIC, TOPIC, BROKER if is_look else TOPIC))

    def _of_resource_name(self) -> str:
        rng = self._rng
        return self._topic() if rng.random() < 0.8 else rng.choice(("", str(NODE), "7", "x"))


def _drop_zero_ids(request: Message) -> None:
    """Leave the zero id out of a fetch of several partitions: Kafka fails to group what follows it."""
    if sum(len(topic["partitions"]) for topic in request["topics"]) > 1:
        request["topics"] = [topic for topic in request["topics"] if topic["topic_id"]]


def _identity(entry: Any) -> object:
    """What tells an entry of a list from others."""
    if not isinstance(entry, dict):
        return entry
    names = ("name", "topic", "topic_id", "resource_name", "partition", "partition_index", "index")
    return tuple(entry.get(name) for name in names) if set(names) & set(entry) else id(entry)


_CHOICES: Final[Mapping[str, Sequence[Any]]] = {
    "client_software_name": ("a",),
    "client_software_version": ("1",),
    "num_partitions": (-2, -1, 0, 1, 1, 2, 3),
    "replication_factor": (-2, -1, -1, 0, 1, 1, 1, 2),
    "partition_index": PARTITIONS,
    "partition_indexes": PARTITIONS,
    "partition": PARTITIONS,
    "index": PARTITIONS,
    "broker_ids": (NODE, NODE, NODE, 0, 7, -1),
    "replicas": (NODE, NODE, NODE, 0, 7, -1),
    "count": (-1, 0, 1, 2, 3, 4),
    "endpoint_type": (1, 1, 1, 0, 2, 3, -1),
    "response_partition_limit": (-1, 0, 1, 2, 2000, 2**31 - 1),
    "election_type": (0, 1, 2, -1),
    "resource_types": (TOPIC, BROKER),
    "config_operation": (0, 0, 1, 2, 3),
    "acks": (-1, -1, 1, 2),
    "transactional_id": (None,),
    "transaction_timeout": (-1, 0, 1, 60_000, 2**31 - 1),
    "producer_id": (-2, -1, -1, 0, 7),
    "producer_epoch": (-2, -1, -1, 0, 7),
    "max_wait": (-1, 0, 0, 0, 3),
    "min_bytes": (-1, 0, 1, 500, 2**31 - 1),
    "max_bytes": (*_SMALL, 1 << 20, 1 << 20),
    "partition_max_bytes": (*_SMALL, 1 << 20, 1 << 20),
    "isolation_level": (0, 1),
    "session_id": (0, 0, 0, 5, 1 << 30, -1),
    "session_epoch": (-1, -1, -1, -1, 0, 1, 7, -2),
    "current_leader_epoch": (-1, -1, -1, -2, 0, 1, 2**31 - 1),
    "last_fetched_epoch": (-1, -1, -1, -2, 0, 1),
    "leader_epoch": (-2, -1, 0, 1, 7, 2**31 - 1),
    "fetch_offset": _OFFSETS,
    "offset": (-2, -1, 0, 1, 2, 5, 30, 10_000, 2**63 - 1),
    "log_start_offset": (-1, 0, 9),
    "timestamp": (-7, -6, -5, -4, -3, -2, -1, 0, TIME_MS - 1, TIME_MS, TIME_MS + 2, 2**63 - 1, -(2**63)),
    "replica_id": (-1,),
    "value": (None,),
    "rack_id": ("", "r"),
    "entity_type": ("user", "client-id", "ip", "x", ""),
    "path": ("/no/such", "logs", ""),
    "feature": ("no.such", "no.such.either", ""),
    "match_type": (0, 1, 2, 3, -1),
    "match": ("a", "", "192.0.2.1"),
    "configuration_keys": (*SETTINGS, "segment.bytes", "log.retention.ms"),
}
"""What a field may be, by its name."""


def with_ids(message: Any, topic_ids: Mapping[str, bytes]) -> Any:
    """A request in which names stand for ids, with one side's ids."""
    if isinstance(message, dict):
        return {name: _id(value, topic_ids) if name == "topic_id" else with_ids(value, topic_ids)
                for name, value in message.items()}  # fmt: skip
    return [with_ids(element, topic_ids) for element in message] if isinstance(message, list) else message


def _id(name: str, topic_ids: Mapping[str, bytes]) -> bytes:
    return topic_ids.get(name, ZERO_ID if not name else NO_SUCH_ID)
