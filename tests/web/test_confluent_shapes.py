"""Every answer of the Confluent API has the members of Confluent's own description of it: names, types,
links, pages.

``SHAPES`` is what the public description of version 3 says of each kind, in the state of August 2026; all of
its members are here, in each answer, and none besides ``OURS``. The paths are those of ``/openapi.json``,
filled with what there is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient

from siltstone.commands.served import Served, ServeOptions
from tests.cli.test_groups import CLASSIC, batches, broker
from tests.web.conftest import BASE, client_of

Document = dict[str, Any]
LINK, TEXT, NUMBER, TRUTH, NUMBERS, TEXTS = "link", "text", "number", "truth", "numbers", "texts"
SYNONYMS = "synonyms"
_CONFIG = {
    "name": TEXT,
    "value": f"{TEXT}?",
    "is_default": TRUTH,
    "is_read_only": TRUTH,
    "is_sensitive": TRUTH,
    "source": TEXT,
    "synonyms": SYNONYMS,
}
_PARTITION = {"topic_name": TEXT, "partition_id": NUMBER}
_GROUP = {"consumer_group_id": TEXT}
SHAPES: Mapping[str, Mapping[str, str]] = {
    "KafkaCluster": {
        "controller": LINK,
        "acls": LINK,
        "brokers": LINK,
        "broker_configs": LINK,
        "consumer_groups": LINK,
        "topics": LINK,
        "partition_reassignments": LINK,
    },
    "KafkaBroker": {
        "broker_id": NUMBER,
        "host": f"{TEXT}?",
        "port": f"{NUMBER}?",
        "rack": f"{TEXT}?",
        "configs": LINK,
        "partition_replicas": LINK,
    },
    "KafkaBrokerConfig": {"broker_id": NUMBER, **_CONFIG},
    "KafkaClusterConfig": {"config_type": TEXT, **_CONFIG},
    "KafkaTopicConfig": {"topic_name": TEXT, **_CONFIG},
    "KafkaTopic": {
        "topic_name": TEXT,
        "is_internal": TRUTH,
        "replication_factor": NUMBER,
        "partitions_count": NUMBER,
        "partitions": LINK,
        "configs": LINK,
        "partition_reassignments": LINK,
        "authorized_operations": TEXTS,
    },
    "KafkaPartition": {**_PARTITION, "leader": LINK, "replicas": LINK, "reassignment": LINK},
    "KafkaPartitionWithOffsets": {**_PARTITION, "earliest_offset": NUMBER, "latest_offset": NUMBER},
    "KafkaReplica": {
        **_PARTITION,
        "broker_id": NUMBER,
        "is_leader": TRUTH,
        "is_in_sync": TRUTH,
        "broker": LINK,
    },
    "KafkaReassignment": {
        **_PARTITION,
        "adding_replicas": NUMBERS,
        "removing_replicas": NUMBERS,
        "replicas": LINK,
    },
    "KafkaConsumerGroup": {
        **_GROUP,
        "is_simple": TRUTH,
        "partition_assignor": TEXT,
        "state": TEXT,
        "type": TEXT,
        "is_mixed_consumer_group": TRUTH,
        "coordinator": LINK,
        "consumers": LINK,
        "lag_summary": LINK,
    },
    "KafkaConsumer": {
        **_GROUP,
        "consumer_id": TEXT,
        "instance_id": f"{TEXT}?",
        "client_id": TEXT,
        "assignments": LINK,
    },
    "KafkaConsumerAssignment": {
        **_GROUP,
        **_PARTITION,
        "consumer_id": TEXT,
        "partition": LINK,
        "lag": LINK,
    },
    "KafkaConsumerLag": {
        **_GROUP,
        **_PARTITION,
        "current_offset": NUMBER,
        "log_end_offset": NUMBER,
        "lag": NUMBER,
        "consumer_id": TEXT,
        "instance_id": f"{TEXT}?",
        "client_id": TEXT,
    },
    "KafkaConsumerGroupLagSummary": {
        **_GROUP,
        "max_lag_consumer_id": TEXT,
        "max_lag_instance_id": f"{TEXT}?",
        "max_lag_client_id": TEXT,
        "max_lag_topic_name": TEXT,
        "max_lag_partition_id": NUMBER,
        "max_lag": NUMBER,
        "total_lag": NUMBER,
        "max_lag_consumer": LINK,
        "max_lag_partition": LINK,
    },
}
OURS: Mapping[str, Mapping[str, str]] = {
    "KafkaBrokerConfig": {"restart_pending": TRUTH},
    "KafkaClusterConfig": {"restart_pending": TRUTH},
    "KafkaPartitionWithOffsets": dict.fromkeys(
        ("beginning_offset", "end_offset", "last_stable_offset", "log_end_offset"), NUMBER
    ),
}
"""Members that this server has besides; docs/rest.md names them."""
MAY_BE_NULL = {
    ("KafkaConsumerLag", "current_offset"),
    ("KafkaConsumerLag", "log_end_offset"),
    ("KafkaConsumerLag", "lag"),
    ("KafkaConsumerGroupLagSummary", "max_lag_consumer"),
}
"""Numbers where Confluent's has no null: a log that is not here has no end that could be known, and a
partition of a group without members no consumer."""
WORDS = {
    "state": {
        *("UNKNOWN", "PREPARING_REBALANCE", "COMPLETING_REBALANCE", "ASSIGNING", "RECONCILING", "STABLE"),
        *("DEAD", "EMPTY"),
    },
    "type": {"UNKNOWN", "CLASSIC", "CONSUMER", "SHARE"},
    "source": {
        *("DYNAMIC_TOPIC_CONFIG", "DYNAMIC_BROKER_CONFIG", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
        *("STATIC_BROKER_CONFIG", "DEFAULT_CONFIG", "UNKNOWN"),
    },
    "config_type": {"BROKER"},
}


def is_of(value: object, kind: str) -> bool:
    """Is it of that type of the table?"""
    if kind.endswith("?"):
        return value is None or is_of(value, kind[:-1])
    match kind:
        case "link":
            return isinstance(value, dict) and set(value) == {"related"} and isinstance(value["related"], str)
        case "text":
            return isinstance(value, str)
        case "number":
            return isinstance(value, int) and not isinstance(value, bool)
        case "truth":
            return isinstance(value, bool)
        case "numbers" | "texts":
            return isinstance(value, list) and all(is_of(item, kind[:-1]) for item in value)
        case _:
            assert kind == SYNONYMS
            return isinstance(value, list) and all(
                set(synonym) == {"name", "value", "source"}
                and isinstance(synonym["name"], str)
                and is_of(synonym["value"], "text?")
                and synonym["source"] in WORDS["source"]
                for synonym in value
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """A server's API: what it is asked, and below which path."""

    client: TestClient
    root: str
    cluster: str

    def get(self, path: str) -> Document:
        answer = self.client.get(path)
        assert answer.status_code == 200, (path, answer.text)
        return answer.json()  # type: ignore[no-any-return]

    def check_resource(self, document: Document) -> None:
        """It has the members of its kind, its own place, and a name that fits to it."""
        kind, ours = document["kind"], OURS.get(document["kind"], {})
        members = {**SHAPES[kind], **ours, "cluster_id": TEXT}
        optional = {"restart_pending"}  # of a setting that has none
        assert set(document) | optional == set(members) | {"kind", "metadata"} | optional, document
        for name in set(document) - {"kind", "metadata"}:
            is_null = document[name] is None and (kind, name) in MAY_BE_NULL
            assert is_null or is_of(document[name], members[name]), (kind, name, document[name])
            assert name not in WORDS or document[name] in WORDS[name], (kind, name, document[name])
        assert document["cluster_id"] == self.cluster
        assert set(document["metadata"]) == {"self", "resource_name"}
        place = document["metadata"]["self"].removeprefix(f"{BASE}{self.root}").strip("/")
        assert document["metadata"]["resource_name"] == self.name_of(place)

    def name_of(self, place: str) -> str:
        """The resource's name: collections in the singular, each with one of its names, then what is left."""
        parts = place.split("/") if place else []
        pairs = [
            f"{collection.removesuffix('s')}={name}"
            for collection, name in zip(parts[::2], parts[1::2], strict=False)
        ]
        return "/".join((f"crn:///kafka={self.cluster}", *pairs, *parts[2 * (len(parts) // 2) :]))

    def links(self, document: Any) -> Iterator[str]:
        """All links of an answer."""
        if isinstance(document, list):
            for part in document:
                yield from self.links(part)
        elif isinstance(document, dict):
            yield from (document[name] for name in ("self", "related") if name in document)
            for part in document.values():
                yield from self.links(part)


@pytest.fixture(params=["open", "with-groups"])
def api(request: pytest.FixtureRequest, served: Served, tmp_path: Path) -> Iterator[Api]:
    """Directories that are open, and those of a broker with groups, which are looked at."""
    if request.param == "open":
        yield _api(served)
        return
    directory = broker(tmp_path / "groups", batches(CLASSIC))
    with Served(ServeOptions(paths=(directory,), is_look=True)) as looking:
        looking.cataloguer.refresh()
        yield _api(looking)


def _api(served: Served) -> Api:
    client = client_of(served)
    (description,) = client.get("/v3/clusters").json()["data"]
    cluster = description["cluster_id"]
    return Api(client=client, root=f"/v3/clusters/{cluster}", cluster=cluster)


def described_paths(api: Api) -> list[str]:
    """Every path of the family that can be read, filled with what is there."""
    document = api.client.get("/openapi.json").json()
    has_groups = bool(api.get(f"{api.root}/consumer-groups")["data"])
    topic = "orders" if has_groups else "users"
    names = {
        **{"cluster_id": api.cluster, "topic_name": topic, "partition_id": "0", "broker_id": "0"},
        **{"consumer_group_id": "billing", "consumer_id": "m1"},
    }
    (number,) = [entry["broker_id"] for entry in api.get(f"{api.root}/brokers")["data"]]
    names["broker_id"] = str(number)
    paths = []
    for path, item in document["paths"].items():
        if "get" not in item or not path.startswith("/v3/") or path.endswith("/acls"):
            continue
        if "consumer_group_id" in path and not has_groups:
            continue
        names["name"] = "cleanup.policy" if "{topic_name}" in path else "log.cleaner.enable"
        paths.append(re.sub(r"\{(\w+)\}", lambda match: names[match[1]], path))
    return paths


def test_every_answer_has_the_shape_of_its_kind(api: Api) -> None:
    checked_paths, kinds, paths = set[str](), set[str](), described_paths(api)
    for path in paths:
        document = api.get(path)
        assert document["metadata"]["self"] == f"{BASE}{path}"
        if "data" not in document:
            api.check_resource(document)
            kinds.add(document["kind"])
            continue
        assert set(document) == {"kind", "metadata", "data"}
        assert set(document["metadata"]) == {"self", "next"}
        for resource in document["data"]:
            assert document["kind"] == f"{resource['kind']}List"
            api.check_resource(resource)
            kinds.add(resource["kind"])
        checked_paths.add(path)
    assert len(checked_paths) >= 10
    of_groups = {kind for kind in SHAPES if "Consumer" in kind}
    has_groups = any("consumer-groups/" in path for path in paths)
    assert kinds == set(SHAPES) - (set() if has_groups else of_groups)


def test_every_link_leads_to_an_answer(api: Api) -> None:
    """Also those of groups, whose topics and partitions may be gone: these alone are not found."""
    visited, waiting = set[str](), {f"{BASE}{path}" for path in described_paths(api)}
    while waiting:
        url = waiting.pop()
        visited.add(url)
        answer = api.client.get(url)
        if url.endswith("/acls") or "/topics/gone/" in url or "/topics/new/" in url:
            assert answer.status_code in (400, 404), url
            continue
        assert answer.status_code == 200, (url, answer.text)
        links = {link for link in api.links(answer.json()) if "/configs/" not in link}
        assert all(link.startswith(f"{BASE}/v3/clusters") for link in links)
        waiting |= {link for link in links if "broker-configs/" not in link} - visited


def test_pages_are_the_whole_list(api: Api) -> None:
    pages = 0
    for path in described_paths(api):
        whole = api.get(path)
        if "data" not in whole:
            continue
        if len(whole["data"]) > 40:
            continue  # settings: one page of each is asked for below
        rows, url = list[Document](), f"{BASE}{path}?page_size=1"
        while url:
            page = api.get(url)
            assert (page["kind"], page["metadata"]["self"]) == (whole["kind"], f"{BASE}{path}")
            assert len(page["data"]) <= 1
            rows += page["data"]
            pages += 1
            following = page["metadata"]["next"]
            if following is not None:
                assert urlsplit(following).path == path and following.startswith(BASE)
            url = following
        assert rows == whole["data"], path
    assert pages > 8
    path = f"{api.root}/topics/-/configs"
    whole, rows, url = api.get(path), list[Document](), f"{path}?page_size=30"
    while url:
        page = api.get(url)
        rows, url = rows + page["data"], page["metadata"]["next"]
    assert rows == whole["data"] and len(rows) > 30
