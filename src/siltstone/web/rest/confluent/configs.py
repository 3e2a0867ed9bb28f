"""Settings of topics and of the broker.

A change of the broker's goes into its ``server.properties``. What applies at once is answered with 204; what
waits for a restart with 200 and ``{"restart_pending": [names]}``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Literal

from fastapi import APIRouter, HTTPException
from starlette.responses import JSONResponse, Response

from siltstone.base.config import find_broker_key, find_topic_key
from siltstone.base.errors import UsageError
from siltstone.commands import administration
from siltstone.commands import cluster as clusters
from siltstone.commands.broker_settings import alter_static
from siltstone.commands.changes import Actor
from siltstone.web.dependencies import CurrentActor
from siltstone.web.guards import ADMIN, EDITOR, VIEWER
from siltstone.web.queries import IntText
from siltstone.web.rest.bodies import Body, Flag, JsonObject
from siltstone.web.rest.confluent.shapes import (
    CLUSTER_PATH,
    Cluster,
    IfMatch,
    NamedCluster,
    Page,
    Paging,
    Resource,
    ResourceList,
    refuse_other_broker,
)
from siltstone.web.rest.confluent.topics import TOPIC, TOPICS

router = APIRouter(tags=["Confluent v3"])
BROKER_CONFIGS = f"{CLUSTER_PATH}/brokers/{{broker_id}}/configs"
CLUSTER_CONFIGS = f"{CLUSTER_PATH}/broker-configs"


class RestartPending(Body):
    """The names of the settings that wait for a restart."""

    restart_pending: list[str]


# Of a route that changes settings of the broker: 204, or 200 if a change waits for a restart.
_WAITS: Any = {"status_code": 204, "responses": {200: {"model": RestartPending}}}


class NewValue(Body):
    """A setting's new value."""

    value: str


class Alteration(Body):
    """A setting to set, or to remove so that the default applies."""

    name: str
    value: str | None = None
    operation: Literal["SET", "DELETE"] = "SET"


class Alterations(Body):
    """Settings that change together, all or none."""

    data: list[Alteration]
    validate_only: Flag = False

    def set_and_removed(self) -> tuple[dict[str, str], list[str]]:
        """(what is set, what is removed). Raises HTTPException for a SET without a value, and, as Kafka does,
        for a setting that is there twice."""
        names, set_to, removed = set[str](), dict[str, str](), list[str]()
        for alteration in self.data:
            name = alteration.name
            if name in names:
                raise HTTPException(400, f"data: {name[:64]} is there twice")
            names.add(name)
            if alteration.operation == "DELETE":
                removed.append(name)
            elif alteration.value is None:
                raise HTTPException(400, f"data: {name[:64]} is SET without a value")
            else:
                set_to[name] = alteration.value
        return set_to, removed


def _document(
    cluster: Cluster, kind: str, parts: Sequence[object], entry: clusters.ConfigEntry
) -> JsonObject:
    setting = entry.setting
    members: dict[str, Any] = {
        "name": setting.name,
        "value": setting.value,
        "is_default": entry.is_default,
        "is_read_only": entry.is_read_only,
        "is_sensitive": False,
        "source": setting.source,
        "synonyms": [
            {"name": name, "value": value, "source": source} for source, name, value in setting.synonyms
        ],
    }
    if entry.restart_pending is not None:
        members["restart_pending"] = entry.restart_pending
    return cluster.resource(kind, *parts, setting.name, **members)


def _listing(
    cluster: Cluster,
    kind: str,
    parts: Sequence[object],
    entries: Sequence[clusters.ConfigEntry],
    make: Callable[[clusters.ConfigEntry], JsonObject],
    page: Paging,
) -> JsonObject:
    """A list of settings, by name."""
    by_name = {entry.setting.name: entry for entry in entries}
    return cluster.listing(kind, parts, sorted(by_name), lambda name: make(by_name[name]), page)


def _refuse_unknown(find: Callable[[str], object], name: str) -> None:
    """Raises HTTPException for a setting that does not exist."""
    try:
        find(name)
    except UsageError as error:
        raise HTTPException(404, str(error)) from None


# Topics.


def _topic_document(cluster: Cluster, topic: str, entry: clusters.ConfigEntry) -> JsonObject:
    document = _document(cluster, "KafkaTopicConfig", ("topics", topic, "configs"), entry)
    return {**document, "topic_name": topic}


@router.get(f"{TOPICS}/-/configs", dependencies=[VIEWER], response_model=ResourceList)
def list_all_topic_configs(cluster: NamedCluster, page: Page) -> JsonObject:
    """The settings of all topics."""
    # The keys below come topic by topic, so the settings of one topic are cached.
    entries = lru_cache(maxsize=1)(partial(clusters.topic_entries, cluster.served))

    def document(key: tuple[str, str]) -> JsonObject:
        topic, name = key
        return _topic_document(cluster, topic, entries(topic)[clusters.TOPIC_SETTINGS.index(name)])

    topics, names = sorted(clusters.all_partitions(cluster.served)), sorted(clusters.TOPIC_SETTINGS)
    keys = ((topic, name) for topic in topics for name in names)
    return cluster.listing("KafkaTopicConfigList", ["topics", "-", "configs"], keys, document, page)


@router.get(f"{TOPIC}/configs", dependencies=[VIEWER], response_model=ResourceList)
def list_topic_configs(cluster: NamedCluster, topic_name: str, page: Page) -> Response:
    """A topic's effective settings, with its ETag."""
    entries = clusters.topic_entries(cluster.served, topic_name)
    document = _listing(
        *(cluster, "KafkaTopicConfigList", ["topics", topic_name, "configs"]),
        *(entries, partial(_topic_document, cluster, topic_name), page),
    )
    return JSONResponse(document, headers={"ETag": administration.topic_etag(cluster.served, topic_name)})


@router.post(f"{TOPIC}/configs:alter", dependencies=[EDITOR], status_code=204)
def alter_topic_configs(
    cluster: NamedCluster, by: CurrentActor, topic_name: str, new: Alterations, if_match: IfMatch = None
) -> None:
    """Set and remove settings of a topic, all or none."""
    set_to, to_remove = new.set_and_removed()
    _alter_topic(
        cluster, by, topic_name, set_to, to_remove, if_match=if_match, validate_only=new.validate_only
    )


def _alter_topic(
    cluster: Cluster, by: Actor, topic: str, set_to: dict[str, str], to_remove: Sequence[str], **options: Any
) -> None:
    # As in Kafka, removing a setting that the topic does not have itself is no error.
    remove = clusters.own_names(cluster.served, topic, to_remove)
    administration.alter_settings(cluster.served, by, topic, set_to, remove, **options)


@router.get(f"{TOPIC}/configs/{{name}}", dependencies=[VIEWER], response_model=Resource)
def get_topic_config(cluster: NamedCluster, topic_name: str, name: str) -> Response:
    """One setting of a topic, with the topic's ETag."""
    _refuse_unknown(find_topic_key, name)
    document = _topic_document(cluster, topic_name, clusters.topic_entry(cluster.served, topic_name, name))
    return JSONResponse(document, headers={"ETag": administration.topic_etag(cluster.served, topic_name)})


@router.put(f"{TOPIC}/configs/{{name}}", dependencies=[EDITOR], status_code=204)
def set_topic_config(
    cluster: NamedCluster,
    by: CurrentActor,
    topic_name: str,
    name: str,
    new: NewValue,
    if_match: IfMatch = None,
) -> None:
    """Set one setting of a topic."""
    _refuse_unknown(find_topic_key, name)
    _alter_topic(cluster, by, topic_name, {name: new.value}, [], if_match=if_match)


@router.delete(f"{TOPIC}/configs/{{name}}", dependencies=[EDITOR], status_code=204)
def reset_topic_config(
    cluster: NamedCluster, by: CurrentActor, topic_name: str, name: str, if_match: IfMatch = None
) -> None:
    """Remove a topic's own setting: the broker's applies, or the default."""
    _refuse_unknown(find_topic_key, name)
    _alter_topic(cluster, by, topic_name, {}, [name], if_match=if_match)


# The broker, and the cluster of this one broker.


def _broker_document(cluster: Cluster, entry: clusters.ConfigEntry) -> JsonObject:
    parts = ("brokers", cluster.broker_id, "configs")
    document = _document(cluster, "KafkaBrokerConfig", parts, entry)
    return {**document, "broker_id": cluster.broker_id}


def _cluster_document(cluster: Cluster, entry: clusters.ConfigEntry) -> JsonObject:
    document = _document(cluster, "KafkaClusterConfig", ("broker-configs",), entry)
    return {**document, "config_type": "BROKER"}


def _tagged(cluster: Cluster, document: JsonObject) -> Response:
    """The document with the ETag of the broker's file, if it has one."""
    tag = clusters.broker_tag(cluster.served)
    return JSONResponse(document, headers={} if tag is None else {"ETag": tag})


def _alter_broker(
    cluster: Cluster, by: Actor, set_to: dict[str, str], to_remove: Sequence[str], **options: Any
) -> Response:
    _, waiting = alter_static(cluster.served, by, set_to, to_remove, **options)
    # ``waiting`` has all settings that wait for a restart: the response names those of this change.
    changed = {find_broker_key(name).name for name in (*set_to, *to_remove)}
    pending = [name for name in waiting if find_broker_key(name).name in changed]
    return JSONResponse({"restart_pending": pending}) if pending else Response(status_code=204)


@router.get(f"{CLUSTER_PATH}/brokers/-/configs", dependencies=[VIEWER], response_model=ResourceList)
def list_all_broker_configs(cluster: NamedCluster, page: Page) -> Response:
    """All settings of all brokers; this server knows only its own."""
    entries, parts = clusters.broker_entries(cluster.served), ["brokers", "-", "configs"]
    make = partial(_broker_document, cluster)
    return _tagged(cluster, _listing(cluster, "KafkaBrokerConfigList", parts, entries, make, page))


@router.get(BROKER_CONFIGS, dependencies=[VIEWER], response_model=ResourceList)
def list_broker_configs(cluster: NamedCluster, broker_id: IntText, page: Page) -> Response:
    """All settings of the broker."""
    refuse_other_broker(cluster, broker_id)
    entries, parts = clusters.broker_entries(cluster.served), ["brokers", broker_id, "configs"]
    make = partial(_broker_document, cluster)
    return _tagged(cluster, _listing(cluster, "KafkaBrokerConfigList", parts, entries, make, page))


@router.post(f"{BROKER_CONFIGS}:alter", dependencies=[ADMIN], **_WAITS)
def alter_broker_configs(
    cluster: NamedCluster, by: CurrentActor, broker_id: IntText, new: Alterations, if_match: IfMatch = None
) -> Response:
    """Set and remove settings of the broker, all or none."""
    refuse_other_broker(cluster, broker_id)
    return _alter_broker(
        cluster, by, *new.set_and_removed(), if_match=if_match, validate_only=new.validate_only
    )


@router.get(f"{BROKER_CONFIGS}/{{name}}", dependencies=[VIEWER], response_model=Resource)
def get_broker_config(cluster: NamedCluster, broker_id: IntText, name: str) -> Response:
    """One setting of the broker."""
    refuse_other_broker(cluster, broker_id)
    _refuse_unknown(find_broker_key, name)
    return _tagged(cluster, _broker_document(cluster, clusters.broker_entry(cluster.served, name)))


@router.put(f"{BROKER_CONFIGS}/{{name}}", dependencies=[ADMIN], **_WAITS)
def set_broker_config(
    cluster: NamedCluster,
    by: CurrentActor,
    broker_id: IntText,
    name: str,
    new: NewValue,
    if_match: IfMatch = None,
) -> Response:
    """Set one setting of the broker."""
    refuse_other_broker(cluster, broker_id)
    return set_cluster_config(cluster, by, name, new, if_match)


@router.delete(f"{BROKER_CONFIGS}/{{name}}", dependencies=[ADMIN], **_WAITS)
def reset_broker_config(
    cluster: NamedCluster, by: CurrentActor, broker_id: IntText, name: str, if_match: IfMatch = None
) -> Response:
    """Remove a setting from the broker's file."""
    refuse_other_broker(cluster, broker_id)
    return reset_cluster_config(cluster, by, name, if_match)


@router.get(CLUSTER_CONFIGS, dependencies=[VIEWER], response_model=ResourceList)
def list_cluster_configs(cluster: NamedCluster, page: Page) -> Response:
    """The settings that were set for the broker."""
    entries = clusters.broker_entries(cluster.served, everything=False)
    make = partial(_cluster_document, cluster)
    return _tagged(
        cluster, _listing(cluster, "KafkaClusterConfigList", ["broker-configs"], entries, make, page)
    )


@router.post(f"{CLUSTER_CONFIGS}:alter", dependencies=[ADMIN], **_WAITS)
def alter_cluster_configs(
    cluster: NamedCluster, by: CurrentActor, new: Alterations, if_match: IfMatch = None
) -> Response:
    """Set and remove settings of the broker, all or none."""
    return _alter_broker(
        cluster, by, *new.set_and_removed(), if_match=if_match, validate_only=new.validate_only
    )


@router.get(f"{CLUSTER_CONFIGS}/{{name}}", dependencies=[VIEWER], response_model=Resource)
def get_cluster_config(cluster: NamedCluster, name: str) -> Response:
    """One setting of the broker."""
    _refuse_unknown(find_broker_key, name)
    return _tagged(cluster, _cluster_document(cluster, clusters.broker_entry(cluster.served, name)))


@router.put(f"{CLUSTER_CONFIGS}/{{name}}", dependencies=[ADMIN], **_WAITS)
def set_cluster_config(
    cluster: NamedCluster, by: CurrentActor, name: str, new: NewValue, if_match: IfMatch = None
) -> Response:
    """Set one setting of the broker."""
    _refuse_unknown(find_broker_key, name)
    return _alter_broker(cluster, by, {name: new.value}, [], if_match=if_match)


@router.delete(f"{CLUSTER_CONFIGS}/{{name}}", dependencies=[ADMIN], **_WAITS)
def reset_cluster_config(
    cluster: NamedCluster, by: CurrentActor, name: str, if_match: IfMatch = None
) -> Response:
    """Remove a setting from the broker's file."""
    _refuse_unknown(find_broker_key, name)
    return _alter_broker(cluster, by, {}, [name], if_match=if_match)
