"""What a single node says of its quorum, of features, and of moves between log directories."""

from __future__ import annotations

from typing import Any

from tests.support.broker_twin.side import (
    ALTER_REPLICA_LOG_DIRS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_QUORUM,
    UPDATE_FEATURES,
    Side,
)

METADATA_TOPIC = "__cluster_metadata"


def describe_quorum(side: Side, versions: range) -> None:
    """Of the metadata, of what has no quorum, and of several."""
    cases: dict[str, list[tuple[str, list[int]]]] = {
        "metadata": [(METADATA_TOPIC, [0])],
        "another partition": [(METADATA_TOPIC, [1])],
        "another topic": [("quorum-none", [0])],
        "partition twice": [(METADATA_TOPIC, [0, 0])],
        "no partitions": [(METADATA_TOPIC, [])],
        "nothing": [],
    }
    for version in versions:
        for what, topics in cases.items():
            entries = [
                {"topic_name": name, "partitions": [{"partition_index": number} for number in numbers]}
                for name, numbers in topics
            ]
            side.ask(what, DESCRIBE_QUORUM, version, topics=entries)


def update_features(side: Side, versions: range) -> None:
    """None, one that nobody has, and others beside it."""
    for version in versions:
        for what, names in (
            ("none", []),
            ("unknown", ["no.such"]),
            ("empty", [""]),
            ("two", ["no.such", "no.such.either"]),
        ):
            how = {"allow_downgrade": False} if version == 0 else {"upgrade_type": 1}
            updates = [{"feature": name, "max_version_level": 1, **how} for name in names]
            checked = {"validate_only": True} if version else {}
            message: dict[str, Any] = {"timeout": 5000, "feature_updates": updates, **checked}
            side.ask(what, UPDATE_FEATURES, version, **message)


def alter_replica_log_dirs(side: Side, versions: range) -> None:
    """To where they are, and to where nothing is."""
    side.create("log-dirs", 2)
    here = side.quietly(DESCRIBE_LOG_DIRS, 1, topics=[])["results"][0]["log_dir"]
    cases: dict[str, list[tuple[str, str, list[int]]]] = {
        "nothing": [],
        "where they are": [(here, "log-dirs", [0, 1])],
        "partition twice": [(here, "log-dirs", [0, 0])],
        "unknown directory": [("/no/such", "log-dirs", [0])],
        "relative": [("logs", "log-dirs", [0])],
        "empty": [("", "log-dirs", [0])],
        "unknown partition": [(here, "log-dirs", [7])],
        "unknown topic": [(here, "log-dirs-none", [0])],
        "both unknown": [("/no/such", "log-dirs-none", [0])],
        "bad name": [(here, "a/b", [0])],
        "long name": [(here, "x" * 212, [0, 10]), ("/no/such", "x" * 213, [0, 1])],
        "longer name": [(here, "x" * 213, [10]), ("/no/such", "x" * 214, [0])],
        "metadata": [(here, METADATA_TOPIC, [0])],
        "two directories": [(here, "log-dirs", [0]), ("/no/such", "log-dirs", [0])],
    }
    for version in versions:
        for what, moves in cases.items():
            dirs = [
                {"path": path, "topics": [{"name": topic, "partitions": numbers}]}
                for path, topic, numbers in moves
            ]
            side.ask(what, ALTER_REPLICA_LOG_DIRS, version, dirs=dirs)
