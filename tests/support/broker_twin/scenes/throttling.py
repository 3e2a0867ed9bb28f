"""Who takes more than a quota: for how long both brokers throttle, and that they do not read meanwhile.

What a client that was not seen before is told depends on the bytes of its request and on its quota alone, so
times are compared as they are.
"""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

from tests.support.broker_twin.batches import batch
from tests.support.broker_twin.scenes.quotas import (
    CONNECTIONS,
    CONSUME,
    MUTATION,
    PRODUCE,
    REQUEST,
    alter_quietly,
    entity_of,
)
from tests.support.broker_twin.schemas import Message
from tests.support.broker_twin.side import (
    API_VERSIONS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    FETCH,
    METADATA,
    Side,
)
from tests.support.broker_twin.side import PRODUCE as PRODUCE_KEY
from tests.support.broker_twin.wire import CLOSED, Connection

ANONYMOUS = "ANONYMOUS"
TOPIC = "throttled"
_BASE = 3.0
_probes = itertools.count()


def throttling(side: Side, versions: range) -> None:
    """Of produce, in all ``versions``; of fetch, requests, mutations, connections, and in which order."""
    side.create(TOPIC)
    side.produce(TOPIC, batch(value=b"x" * 11_000))
    for version in versions:
        _of_produce(side, version)
    _of_fetch(side)
    _of_requests(side)
    _of_mutations(side)
    _in_order(side)
    _of_connections(side)


def _set(side: Side, *quotas: tuple[list[Message], str, float | None]) -> None:
    """Set quotas, and wait until they are enforced: those of one request come together. What is asked
    meanwhile comes by a connection that was there before."""
    name = f"probe-{next(_probes)}"
    probe = entity_of(user=ANONYMOUS, client_id=name)
    request = _produce_request(b"x" * 10_000)  # a little over the quota of ten seconds
    with Connection(side.bootstrap) as connection:
        alter_quietly(side, *quotas, (probe, PRODUCE, 1_000.0))

        def is_throttled() -> bool:
            return bool(connection.ask(PRODUCE_KEY, 9, request, client=name)["throttle_time"])

        side.until(is_throttled, "a quota")
    alter_quietly(side, (probe, PRODUCE, None))


def _produce_request(value: bytes, acks: int = -1) -> dict[str, Any]:
    data = [{"index": 0, "records": batch(value=value)}]
    return {"acks": acks, "timeout": 5000, "topic_data": [{"name": TOPIC, "partition_data": data}]}


def _produced(side: Side, client: str, value: bytes, version: int = 9) -> Message:
    with Connection(side.bootstrap) as connection:
        return connection.ask(
            PRODUCE_KEY, version, _with_id(side, _produce_request(value), version), client=client
        )


def _with_id(side: Side, request: dict[str, Any], version: int) -> dict[str, Any]:
    if version >= 13:
        request["topic_data"][0]["topic_id"] = side.topic_ids[TOPIC]
    return request


def _of_produce(side: Side, version: int) -> None:
    """Throttled, and not read for that long, also where no answer is sent."""
    client = f"produce-{version}"
    _set(side, (entity_of(client_id=client), PRODUCE, 2_000.0))
    within = _produced(side, client, b"x" * 10, version)
    side.keep(f"within v{version}", {"throttle_time": within["throttle_time"]})
    client = f"produce-over-{version}"
    _set(side, (entity_of(client_id=client), PRODUCE, 2_000.0))
    request = _with_id(side, _produce_request(b"x" * 20_500), version)
    with Connection(side.bootstrap) as connection:
        answer = connection.ask(PRODUCE_KEY, version, request, client=client)
        begun = time.monotonic()
        connection.ask(API_VERSIONS, 0, {}, client=client)
        passed_ms = 1000 * (time.monotonic() - begun)
    throttled = answer["throttle_time"]
    codes = [part["error_code"] for part in answer["responses"][0]["partition_responses"]]
    outcome = {"throttle_time": throttled, "codes": codes, "is muted": passed_ms > 0.9 * throttled - 20}
    side.keep(f"over v{version}", outcome)
    side.asked.add((PRODUCE_KEY, version))


def _of_fetch(side: Side) -> None:
    """An answer that is over the quota has no records; one within it has no more than the quota allows."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "log_start_offset": -1}
    request = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "session_id": 0,
        "session_epoch": 0,
        "topics": [{"topic": TOPIC, "partitions": [partition]}],
    }
    client = "fetch-over"
    _set(side, (entity_of(client_id=client), CONSUME, 1_000.0))
    with Connection(side.bootstrap) as connection:
        answer = connection.ask(FETCH, 12, request, client=client)
        side.keep("fetch over", answer)
        begun = time.monotonic()
        again = connection.ask(FETCH, 12, request, client=client)
        passed_ms = 1000 * (time.monotonic() - begun)
    is_muted = passed_ms > 0.9 * answer["throttle_time"] - 20
    side.keep("fetch again", {"responses": again["responses"], "is muted": is_muted})
    client = "fetch-within"
    _set(side, (entity_of(client_id=client), CONSUME, 100_000.0))
    with Connection(side.bootstrap) as connection:
        answer = connection.ask(FETCH, 12, request, client=client)
    side.keep("fetch within", {"throttle_time": answer["throttle_time"], "topics": len(answer["responses"])})


def _of_requests(side: Side) -> None:
    """A quota that any request exceeds: throttled for a window, which is the most."""
    client = "requests"
    _set(side, (entity_of(client_id=client), REQUEST, 0.00001))
    with Connection(side.bootstrap) as connection:
        answer = connection.ask(METADATA, 9, {"topics": None}, client=client)
    side.keep("requests", {"throttle_time": answer["throttle_time"]})
    with Connection(side.bootstrap) as connection:
        connection.send(PRODUCE_KEY, 9, _produce_request(b"x", acks=0), client=f"{client}-other")
        begun = time.monotonic()
        connection.ask(API_VERSIONS, 0, {}, client=f"{client}-other")
        side.keep("no answer", {"is muted": time.monotonic() - begun > 0.5})


def _of_mutations(side: Side) -> None:
    """Eleven partitions are saved up: clients that know the error get it, others are only throttled."""

    def create(
        connection: Connection, what: str, version: int, name: str, count: int, client: str, **more: Any
    ) -> None:
        topic = {"name": name, "num_partitions": count, "replication_factor": 1}
        answer = connection.ask(CREATE_TOPICS, version, {"topics": [topic], **more}, client=client)
        codes = [row["error_code"] for row in answer["topics"]]
        side.keep(what, {"codes": codes, "is throttled": answer["throttle_time"] > 0})

    strict, older, checked = "mutations-strict", "mutations-older", "mutations-checked"
    rate = [(entity_of(client_id=name), MUTATION, 1.0) for name in (strict, older, checked)]
    _set(side, *rate)
    with Connection(side.bootstrap) as connection:
        create(connection, "first topic", 7, "throttled-a", 14, strict)
        create(connection, "second topic", 7, "throttled-b", 1, strict)
        side.settle("throttled-a", 14)
    with Connection(side.bootstrap) as connection:
        added = {"topics": [{"name": "throttled-a", "count": 15, "assignments": None}], "timeout": 5000}
        answer = connection.ask(CREATE_PARTITIONS, 3, added, client=strict)
        codes = [row["error_code"] for row in answer["results"]]
        side.keep("more partitions", {"codes": codes, "is throttled": answer["throttle_time"] > 0})
    with Connection(side.bootstrap) as connection:
        deletion = {"topics": [{"name": "throttled-a", "topic_id": bytes(16)}], "timeout": 5000}
        answer = connection.ask(DELETE_TOPICS, 6, deletion, client=strict)
        codes = [row["error_code"] for row in answer["responses"]]
        side.keep("deleted", {"codes": codes, "is throttled": answer["throttle_time"] > 0})
    with Connection(side.bootstrap) as connection:
        create(connection, "first topic of an older client", 5, "throttled-c", 14, older)
    with Connection(side.bootstrap) as connection:
        create(connection, "second topic of an older client", 5, "throttled-d", 1, older)
    with Connection(side.bootstrap) as connection:
        create(connection, "checked topic", 7, "throttled-e", 14, checked, validate_only=True)
        create(connection, "topic that was checked", 7, "throttled-e", 1, checked)


def _in_order(side: Side) -> None:
    """Eight quotas hold for one client, each another one: which counts, as they are taken away one by one."""
    clients = [f"ordered-{number}" for number in range(9)]
    levels = [
        [entity_of(user=ANONYMOUS, client_id=client) for client in clients],
        [entity_of(user=ANONYMOUS, client_id=None)],
        [entity_of(user=ANONYMOUS)],
        [entity_of(user=None, client_id=client) for client in clients],
        [entity_of(user=None, client_id=None)],
        [entity_of(user=None)],
        [entity_of(client_id=client) for client in clients],
        [entity_of(client_id=None)],
    ]
    bounds = [(entity, _BASE ** (number + 1)) for number, level in enumerate(levels) for entity in level]
    _set(side, *((entity, PRODUCE, bound) for entity, bound in bounds))
    for number, level in enumerate(levels):
        side.keep(f"level {number}", {"quota": _bound_of(side, clients[number])})
        _set(side, *((entity, PRODUCE, None) for entity in level))
    side.keep("no level", {"quota": _bound_of(side, clients[-1])})


def _bound_of(side: Side, client: str) -> int:
    """About which bound a request exceeds, as a power of ``_BASE``; 0: none."""
    value = b"x" * 800_000
    throttled = _produced(side, client, value)["throttle_time"]
    return round(math.log(len(value) / 10 / (1 + throttled / 10_000), _BASE)) if throttled else 0


def _of_connections(side: Side) -> None:
    """The eleventh connection of ten seconds is closed, after a while."""
    _set(side, (entity_of(ip="127.0.0.1"), CONNECTIONS, 1.0))
    answered = []
    connections = []
    for _ in range(13):
        connections.append(Connection(side.bootstrap))
        answered.append(connections[-1].ask(API_VERSIONS, 0, {}) is not CLOSED)
    alter_quietly(side, (entity_of(ip="127.0.0.1"), CONNECTIONS, None))
    for connection in connections:
        connection.close()
    side.until(lambda: _is_served(side), "connections")
    side.keep("connections", {"answered": answered.count(True), "first": answered[:10]})


def _is_served(side: Side) -> bool:
    with Connection(side.bootstrap) as connection:
        return connection.ask(API_VERSIONS, 0, {}) is not CLOSED
