"""Two brokers' answers field by field, after what must differ has been taken out of them.

Taken out: ids of topics (their names take their place), the cluster's id, ports, the paths and the disk's
bytes of log directories, the ids of producers and sessions, times of an append, the texts of errors (that
there is one is compared), and the order of lists whose entries have a name or a number.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.broker_twin.side import Side

ABSENT = "absent"
RECENT_MS = 1_700_000_000_000
_NAMES = (
    "name",
    "user",
    "topic",
    "topic_name",
    "api_key",
    "resource_type",
    "resource_name",
    "broker_id",
    "node_id",
)
_NUMBERS = ("index", "partition_index", "partition", "producer_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field that differs, or an answer that one side has in another form."""

    request: str
    field: str
    kafka: Any
    ours: Any

    def __str__(self) -> str:
        return f"{self.request}: {self.field}: Kafka {self.kafka!r}, ours {self.ours!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliberate:
    """An entry of the list: patterns of requests and fields, what both say there, and why.

    ``kafka`` and ``ours`` are None where it is not one thing.
    """

    scene: str
    request: str
    field: str
    reason: str
    kafka: Any = None
    ours: Any = None

    def is_of(self, scene: str) -> bool:
        """Does this entry speak of a scene?"""
        return fnmatch.fnmatchcase(scene, self.scene)

    def covers(self, difference: Difference) -> bool:
        """Does this entry explain the difference?"""
        return (
            fnmatch.fnmatchcase(difference.request, self.request)
            and fnmatch.fnmatchcase(difference.field, self.field)
            and self.kafka in (None, difference.kafka)
            and self.ours in (None, difference.ours)
        )


def deliberate_differences(path: Path) -> list[Deliberate]:
    """The checked-in list."""
    return [Deliberate(**entry) for entry in tomllib.loads(path.read_text())["difference"]]


def differences(kafka: Side, ours: Side) -> list[Difference]:
    """Every field in which the answers of two sides differ."""
    differing = []
    for request in dict.fromkeys((*kafka.answers, *ours.answers)):
        kafka_fields = fields_of(kafka, request)
        our_fields = fields_of(ours, request)
        for field in dict.fromkeys((*kafka_fields, *our_fields)):
            expected, actual = kafka_fields.get(field, ABSENT), our_fields.get(field, ABSENT)
            if expected != actual:
                differing.append(Difference(request=request, field=field, kafka=expected, ours=actual))
    return differing


def fields_of(side: Side, request: str) -> dict[str, Any]:
    """The fields of an answer, by their path: ``topics[a].partitions[0].error_code``."""
    if request not in side.answers:
        return {"": ABSENT}
    names = {number: name for name, number in side.topic_ids.items()}
    return dict(_flat("", "", side.answers[request], names))


def _flat(path: str, name: str, value: Any, ids: Mapping[bytes, str]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{path}.{key}".lstrip("."), key, inner, ids)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield f"{path}.count", len(value)
        labels: dict[str, int] = {}
        for element in value:
            label = _label(element, ids)
            labels[label] = labels.get(label, 0) + 1
            again = f" again {labels[label]}" if labels[label] > 1 else ""
            yield from _flat(f"{path}[{label}{again}]", "", element, ids)
    else:
        yield path, _normalized(name, value, ids)


def _label(entry: Mapping[str, Any], ids: Mapping[bytes, str]) -> str:
    """What tells an entry of a list from the others, whatever its place."""
    keys = [key for key in (*_NAMES, *_NUMBERS) if entry.get(key) is not None]
    parts = [_normalized(key, entry[key], ids) for key in keys or ["topic_id"] if key in entry]
    return " ".join(str(part) for part in parts)


def _normalized(name: str, value: Any, ids: Mapping[bytes, str]) -> Any:
    if name == "topic_id":
        return ids.get(value, "unknown id" if any(value) else "zero id")
    if name in ("cluster_id", "log_dir"):
        return "given" if value else value
    if name in ("error_message", "batch_index_error_message", "documentation"):
        return "a text" if value else "no text"
    if name == "producer_id":
        return "an id" if value >= 0 else value
    if name == "session_id":
        return "a session" if value > 0 else value
    if name == "port":
        return "a port" if value > 0 else value
    if name in ("total_bytes", "usable_bytes"):
        return "bytes" if value > 0 else value
    if name in ("log_append_time", "timestamp"):
        return "now" if value is not None and value > RECENT_MS else value
    if name in ("records", "bytes") and value is not None:
        return value.hex()
    return sorted(value) if isinstance(value, list) else value
