"""Metadata, the making and deleting of topics, and what is said of the cluster."""

from __future__ import annotations

from typing import Any

from tests.support.broker_twin.scenes.scene import NO_SUCH_ID, NODE, ZERO_ID
from tests.support.broker_twin.side import (
    ALTER_PARTITION_REASSIGNMENTS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CLUSTER,
    DESCRIBE_TOPIC_PARTITIONS,
    ELECT_LEADERS,
    LIST_PARTITION_REASSIGNMENTS,
    METADATA,
    Side,
)

BAD_NAMES = ("", ".", "..", "with space", "a/b", "ü", "x" * 250)


def named(*names: str | None, topic_id: bytes = ZERO_ID) -> list[dict[str, Any]]:
    """Topics of a Metadata request."""
    return [{"name": name, "topic_id": topic_id} for name in names]


def metadata(side: Side, versions: range) -> None:
    """By name, by id, all, made by asking."""
    one_id, other_id = side.create("metadata-one", 3), side.create("metadata.other")
    for version in versions:
        side.ask("by name", METADATA, version, topics=named("metadata-one", "metadata.other"))
        side.ask("twice", METADATA, version, topics=named("metadata-one", "metadata-one"))
        _all(side, version)
        if version >= 1:
            side.ask("no topics", METADATA, version, topics=[])
        created = f"metadata-made-{version}"
        side.ask("made by asking", METADATA, version, topics=named(created))
        side.settle(created, 2)
        side.ask("then", METADATA, version, topics=named(created))
        side.ask("colliding", METADATA, version, topics=named("metadata_other"))
        side.ask("bad names", METADATA, version, topics=named(*BAD_NAMES), allow_auto_topic_creation=True)
        if version >= 4:
            none = named("metadata-none")
            side.ask("unknown", METADATA, version, topics=none, allow_auto_topic_creation=False)
        if version >= 8:
            side.ask(
                "operations",
                METADATA,
                version,
                topics=named("metadata-one"),
                include_cluster_authorized_operations=True,
                include_topic_authorized_operations=True,
            )
        if version >= 12:
            ids = [{"name": None, "topic_id": topic_id} for topic_id in (one_id, other_id, NO_SUCH_ID)]
            side.ask("by id", METADATA, version, topics=ids)
            operations = {"include_topic_authorized_operations": True}
            side.ask("by id, operations", METADATA, version, topics=ids, **operations)
            side.ask("by zero id", METADATA, version, topics=named(None))
            side.ask("by name and id", METADATA, version, topics=named("metadata-one", topic_id=one_id))
            side.ask(
                "by name and other id", METADATA, version, topics=named("metadata-one", topic_id=other_id)
            )
            mixed = [*named("metadata-one"), {"name": None, "topic_id": other_id}]
            side.ask("names and ids", METADATA, version, topics=mixed)


def _all(side: Side, version: int) -> None:
    """All topics; only this scene's are compared."""
    answer = side.quietly(METADATA, version, topics=[] if version == 0 else None)
    own = [topic for topic in answer["topics"] if topic["name"].startswith(("metadata-one", "metadata.o"))]
    side.keep(f"all v{version}", {**answer, "topics": own})


def create_topics(side: Side, versions: range) -> None:
    """Plain ones, settings, assignments, and everything that is refused."""
    side.create("create.taken")
    for version in versions:
        name = f"create-{version}"
        topics = [
            _new(f"{name}-plain"),
            _new(f"{name}-several", num_partitions=3),
            _new(f"{name}-settings", configs=_settings(cleanup_policy="compact", retention_ms="1234567")),
            _new(f"{name}-assigned", num_partitions=-1, replication_factor=-1, assignments=_assigned(0, 1)),
        ]
        side.ask("made", CREATE_TOPICS, version, topics=topics, timeout=10000)
        side.ask("made again", CREATE_TOPICS, version, topics=topics[:2], timeout=10000)
        side.ask("checked", CREATE_TOPICS, version, topics=[_new(f"{name}-checked")], validate_only=True)
        side.ask("none", CREATE_TOPICS, version, topics=[])
        settings = _settings(min_cleanable_dirty_ratio="0", retention_ms=" 7000 ", preallocate="False")
        settings += _settings(cleanup_policy="compact , delete", index_interval_bytes="+4096")
        written = _new(f"{name}-written", configs=settings)
        nothing = _new(f"{name}-nothing", configs=_settings(cleanup_policy=""))
        side.ask("as written", CREATE_TOPICS, version, topics=[written, nothing], validate_only=True)
        if version >= 4:
            default = _new(f"{name}-default", num_partitions=-1, replication_factor=-1)
            side.ask("by default", CREATE_TOPICS, version, topics=[default])
        refused = [_new(f"{name}-{number}", **wrong) for number, wrong in enumerate(_wrong_topics())]
        side.ask("refused", CREATE_TOPICS, version, topics=refused)
        side.ask("bad names", CREATE_TOPICS, version, topics=[_new(bad) for bad in BAD_NAMES])
        side.ask("colliding", CREATE_TOPICS, version, topics=[_new("create_taken"), _new("create.taken")])
        side.ask("twice", CREATE_TOPICS, version, topics=[_new(f"{name}-twice")] * 2)
        side.ask("too many", CREATE_TOPICS, version, topics=[_new(f"{name}-many", num_partitions=20_000)])
        for topic in topics:
            count = max(topic["num_partitions"], len(topic["assignments"]))
            side.settle(topic["name"], count)
    side.ask("what was made", METADATA, 12, topics=named(*(f"create-{v}-several" for v in versions)))


def _new(name: str, **fields: Any) -> dict[str, Any]:
    defaults = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    return {**defaults, **fields}


def _settings(**settings: str | None) -> list[dict[str, Any]]:
    return [{"name": name.replace("_", "."), "value": value} for name, value in settings.items()]


def _assigned(*partitions: int, broker: int = NODE) -> list[dict[str, Any]]:
    return [{"partition_index": number, "broker_ids": [broker]} for number in partitions]


def _wrong_topics() -> list[dict[str, Any]]:
    by_hand: dict[str, Any] = {"num_partitions": -1, "replication_factor": -1}
    return [
        {"num_partitions": 0},
        {"num_partitions": -2},
        {"replication_factor": 2},
        {"replication_factor": 0},
        {"replication_factor": -2},
        *({"num_partitions": -2, "replication_factor": factor} for factor in (-2, 0, 2)),
        {"num_partitions": 0, "replication_factor": 2},
        {"configs": _settings(no_such_setting="1")},
        {"configs": _settings(retention_ms="soon")},
        {"configs": _settings(retention_ms="-2")},
        {"configs": _settings(retention_ms=None)},
        {"configs": _settings(cleanup_policy="shred")},
        {"configs": _settings(cleanup_policy="delete,")},
        {"configs": _settings(compression_type="rar")},
        {"configs": [*_settings(retention_ms="1"), *_settings(retention_ms="2")]},
        {"assignments": _assigned(0)},
        {**by_hand, "assignments": _assigned(0, broker=7)},
        {**by_hand, "assignments": _assigned(0, 2)},
        {**by_hand, "assignments": _assigned(1)},
        {**by_hand, "assignments": _assigned(0, 0)},
        {**by_hand, "assignments": [{"partition_index": 0, "broker_ids": []}]},
        {**by_hand, "assignments": [{"partition_index": 0, "broker_ids": [NODE, NODE]}]},
    ]


def create_partitions(side: Side, versions: range) -> None:
    """More, as many, fewer."""
    for version in versions:
        name = f"partitions-{version}"
        side.create(name, 2)
        cases = {
            "fewer": {"name": name, "count": 1},
            "as many": {"name": name, "count": 2},
            "none": {"name": name, "count": 0},
            "negative": {"name": name, "count": -1},
            "unknown": {"name": "partitions-none", "count": 3},
            "bad name": {"name": "a/b", "count": 3},
            "assigned elsewhere": {"name": name, "count": 3, "assignments": [{"broker_ids": [7]}]},
            "assigned to none": {"name": name, "count": 3, "assignments": [{"broker_ids": []}]},
            "assigned too few": {"name": name, "count": 4, "assignments": [{"broker_ids": [NODE]}]},
            "assigned twice": {"name": name, "count": 3, "assignments": [{"broker_ids": [NODE, NODE]}]},
        }
        for what, topic in cases.items():
            side.ask(what, CREATE_PARTITIONS, version, topics=[{"assignments": None, **topic}], timeout=10000)
        same = {"name": name, "count": 3, "assignments": None}
        side.ask("twice", CREATE_PARTITIONS, version, topics=[same, same], timeout=10000)
        side.ask("checked", CREATE_PARTITIONS, version, topics=[same], timeout=10000, validate_only=True)
        side.ask("no topics", CREATE_PARTITIONS, version, topics=[], timeout=10000)
        side.ask("more", CREATE_PARTITIONS, version, topics=[same], timeout=10000)
        assigned = {"name": name, "count": 5, "assignments": [{"broker_ids": [NODE]}] * 2}
        side.ask("assigned", CREATE_PARTITIONS, version, topics=[assigned], timeout=10000)
        side.settle(name, 5)
        side.ask(f"after {version}", METADATA, 12, topics=named(name))


def delete_topics(side: Side, versions: range) -> None:
    """By name, by id, both, neither."""
    for version in versions:
        name = f"delete-{version}"
        ids = {letter: side.create(f"{name}-{letter}") for letter in ("a", "b", "c")}

        def ask(what: str, *topics: dict[str, Any], version: int = version) -> None:
            if version < 6:
                names = [topic["name"] for topic in topics]
                side.ask(what, DELETE_TOPICS, version, topic_names=names, timeout=10000)
            else:
                side.ask(what, DELETE_TOPICS, version, topics=list(topics), timeout=10000)

        ask("no topics")
        ask("twice", *named(f"{name}-a", f"{name}-a"))
        ask("bad names", *named(*BAD_NAMES))
        ask("one and an unknown", *named(f"{name}-a", "delete-none"))
        if version >= 6:
            ask("by name and id", *named(f"{name}-b", topic_id=ids["b"]))
            ask("by name and id twice", *named(f"{name}-b", f"{name}-b", topic_id=ids["b"]))
            ask("by neither", *named(None))
            ask("by neither twice", *named(None, None))
            ask("by unknown id", *named(None, topic_id=NO_SUCH_ID))
            ask("by id twice", *named(None, None, topic_id=ids["b"]))
            ask("by id and name", *named(None, topic_id=ids["b"]), *named(f"{name}-b"))
            ask("by id", *named(None, topic_id=ids["b"]))
            side.wait_for_deletion(f"{name}-b")
            ask("by id again", *named(None, topic_id=ids["b"]))
        side.wait_for_deletion(f"{name}-a")
        ask("again", *named(f"{name}-a"))
        new_id = side.create(f"{name}-a", 2)
        side.keep(f"made again {version}", {"another id": new_id != ids["a"]})
    side.ask("what is left", METADATA, 12, topics=named("delete-1-a", "delete-1-c", "delete-6-b"))


def describe_cluster(side: Side, versions: range) -> None:
    """The broker; the controller is no endpoint here."""
    for version in versions:
        side.ask("plain", DESCRIBE_CLUSTER, version)
        side.ask("operations", DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=True)
        if version >= 1:
            side.ask("of controllers", DESCRIBE_CLUSTER, version, endpoint_type=2)
            side.ask("of nothing", DESCRIBE_CLUSTER, version, endpoint_type=3)
        if version >= 2:
            side.ask("fenced, too", DESCRIBE_CLUSTER, version, include_fenced_brokers=True)


def describe_topic_partitions(side: Side, versions: range) -> None:
    """Pages of partitions."""
    side.create("described-a", 5)
    side.create("described-b", 2)
    both = [{"name": "described-b"}, {"name": "described-a"}]
    (version,) = versions

    def ask(what: str, *, names: list[dict[str, str]] = both, limit: int = 2000, cursor: Any = None) -> None:
        side.ask(
            what,
            DESCRIBE_TOPIC_PARTITIONS,
            version,
            topics=names,
            response_partition_limit=limit,
            cursor=cursor,
        )

    ask("both")
    ask("unknown", names=[{"name": "described-none"}, {"name": "a/b"}])
    ask("no name", names=[both[0], {"name": ""}])
    ask("twice", names=[both[0], both[0]])
    for limit in (-1, 0, 1, 3, 5, 6, 7):
        ask(f"at most {limit}", limit=limit)
    ask("from the middle", cursor={"topic_name": "described-a", "partition_index": 3})
    ask("from the second", cursor={"topic_name": "described-b", "partition_index": 0})
    ask("from the middle, two", limit=2, cursor={"topic_name": "described-a", "partition_index": 3})
    ask("from beyond", cursor={"topic_name": "described-a", "partition_index": 9})
    # Kafka adds the limit to the partition's number, which overflows.
    ask(
        "from the largest number", limit=1, cursor={"topic_name": "described-a", "partition_index": 2**31 - 1}
    )
    asked_of_all = {"topic_name": "described-a", "partition_index": -1}
    ask("from a negative one, of all", names=[], cursor=asked_of_all)
    ask("from a negative one, twice", names=[both[1], both[1]], cursor=asked_of_all)
    ask("from a negative one", cursor={"topic_name": "described-a", "partition_index": -1})
    ask("from a topic between", cursor={"topic_name": "described-aa", "partition_index": 0})
    ask("from a topic behind", cursor={"topic_name": "described-z", "partition_index": 0})


def elect_leaders(side: Side, versions: range) -> None:
    """Of the preferred replica, of any, of all partitions; of none that exists."""
    side.create("elected", 2)
    for version in versions:
        for kind in (0, 1, 2, -1) if version else (0,):
            for what, topic, partitions in (
                ("known", "elected", [0, 1]),
                ("twice", "elected", [1, 1]),
                ("unknown partition", "elected", [5, -1]),
                ("no partitions", "elected", []),
                ("unknown topic", "elected-none", [0]),
                ("bad name", "a/b", [0]),
                ("no name", "", [0]),
            ):
                entries = [{"topic": topic, "partitions": partitions}]
                _elect(side, f"{what}, {kind}", version, topic_partitions=entries, election_type=kind)
            _elect(side, f"no topics, {kind}", version, topic_partitions=[], election_type=kind)
            request = {"timeout": 5000, "topic_partitions": None, "election_type": kind}
            answer = side.quietly(ELECT_LEADERS, version, **request)
            own = [result for result in answer["replica_election_results"] if result["topic"] == "elected"]
            side.keep(f"all, {kind} v{version}", {**answer, "replica_election_results": own})


def _elect(side: Side, what: str, version: int, **fields: Any) -> None:
    side.ask(what, ELECT_LEADERS, version, timeout=5000, **fields)


def alter_partition_reassignments(side: Side, versions: range) -> None:
    """To this broker, to others, back."""
    side.create("moved", 2)
    for version in versions:
        for what, topic, number, replicas in (
            ("here", "moved", 0, [NODE]),
            ("back", "moved", 0, None),
            ("to none", "moved", 0, []),
            ("twice here", "moved", 0, [NODE, NODE]),
            ("to another", "moved", 0, [NODE + 8]),
            ("to both", "moved", 0, [NODE, NODE + 8]),
            ("to a negative one", "moved", 0, [-1]),
            ("unknown partition", "moved", 5, [NODE]),
            ("unknown partition, back", "moved", 5, None),
            ("negative partition", "moved", -1, [NODE]),
            ("unknown topic", "moved-none", 0, [NODE]),
            ("bad name", "a/b", 0, [NODE]),
            ("no name", "", 0, [NODE]),
        ):
            moves = [{"name": topic, "partitions": [{"partition_index": number, "replicas": replicas}]}]
            _move(side, what, version, topics=moves)
            if version:
                _move(side, f"{what}, factor", version, topics=moves, allow_replication_factor_change=False)
        several = [
            {"partition_index": number, "replicas": replicas}
            for number, replicas in ((0, [NODE]), (1, None), (0, [7]))
        ]
        _move(side, "several", version, topics=[{"name": "moved", "partitions": several}])
        _move(side, "no partitions", version, topics=[{"name": "moved", "partitions": []}])
        _move(side, "no topics", version, topics=[])
        if version:
            _move(side, "no topics, factor", version, topics=[], allow_replication_factor_change=False)


def _move(side: Side, what: str, version: int, **fields: Any) -> None:
    side.ask(what, ALTER_PARTITION_REASSIGNMENTS, version, timeout=5000, **fields)


def list_partition_reassignments(side: Side, versions: range) -> None:
    """Nothing is ever moved."""
    side.create("moving")
    (version,) = versions
    side.ask("all", LIST_PARTITION_REASSIGNMENTS, version, topics=None)
    for what, name, partitions in (
        ("known", "moving", [0]),
        ("unknown partition", "moving", [5]),
        ("no partitions", "moving", []),
        ("unknown topic", "moving-none", [0]),
    ):
        entries = [{"name": name, "partition_indexes": partitions}]
        side.ask(what, LIST_PARTITION_REASSIGNMENTS, version, topics=entries)
    side.ask("no topics", LIST_PARTITION_REASSIGNMENTS, version, topics=[])
