"""Topics, their partitions, replicas and offsets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, HTTPException
from pydantic import Field
from starlette.responses import JSONResponse, Response

from siltstone.base.errors import InvalidPartitionsError
from siltstone.commands import administration
from siltstone.commands import cluster as clusters
from siltstone.commands.catalogue import is_internal
from siltstone.web.dependencies import CurrentActor
from siltstone.web.guards import ADMIN, VIEWER
from siltstone.web.queries import IntText
from siltstone.web.rest.bodies import NUMBERS_ONLY, Body, Flag, JsonObject, WholeNumber
from siltstone.web.rest.confluent.shapes import (
    CLUSTER_PATH,
    Cluster,
    IfMatch,
    NamedCluster,
    Page,
    Resource,
    ResourceList,
)

router = APIRouter(tags=["Confluent v3"])
TOPICS = f"{CLUSTER_PATH}/topics"
TOPIC = f"{TOPICS}/{{topic_name}}"
PARTITION = f"{TOPIC}/partitions/{{partition_id}}"
_KAFKA_INT = (1 << 31) - 1


class NewConfig(Body):
    """A setting of a new topic; null is the default."""

    name: str
    value: str | None = None


class NewTopic(Body):
    """A topic to create. ``replication_factor``: 1, or -1 for the default."""

    topic_name: str
    partitions_count: Annotated[int, Field(ge=-1, le=_KAFKA_INT), NUMBERS_ONLY] | None = None
    replication_factor: WholeNumber | None = None
    configs: tuple[NewConfig, ...] = ()
    validate_only: Flag = False

    def texts(self) -> dict[str, str]:
        """The settings, name → text."""
        return {config.name: config.value for config in self.configs if config.value is not None}


class NewCount(Body):
    """A topic's new number of partitions."""

    partitions_count: Annotated[int, Field(ge=1, le=_KAFKA_INT), NUMBERS_ONLY]


def topic_document(cluster: Cluster, topic: str, count: int, replication_factor: int = 1) -> JsonObject:
    """A ``KafkaTopic``. ``count``: of its partitions."""
    return cluster.resource(
        "KafkaTopic",
        "topics",
        topic,
        topic_name=topic,
        is_internal=is_internal(topic),
        replication_factor=replication_factor,
        partitions_count=count,
        partitions=cluster.link("topics", topic, "partitions"),
        configs=cluster.link("topics", topic, "configs"),
        partition_reassignments=cluster.link("topics", topic, "partitions", "-", "reassignment"),
        authorized_operations=[],
    )


def _stored_topic(cluster: Cluster, topic: str, partitions: Sequence[int]) -> JsonObject:
    """The document of a topic with these partitions. As in Kafka, its replication factor is how many replicas
    its first partition has: in look mode perhaps on other brokers, too."""
    replicas = clusters.replicas_of(cluster.served, cluster.broker_id, topic, min(partitions, default=0))
    return topic_document(cluster, topic, len(partitions), len(replicas.replicas))


def _tagged(cluster: Cluster, topic: str, status: int = 200, **headers: str) -> Response:
    """A topic's document with its entity tag."""
    tag = administration.topic_etag(cluster.served, topic)
    document = _stored_topic(cluster, topic, clusters.partitions_of(cluster.served, topic))
    return JSONResponse(document, status, headers={"ETag": tag, **headers})


@router.get(TOPICS, dependencies=[VIEWER], response_model=ResourceList)
def list_topics(cluster: NamedCluster, page: Page) -> JsonObject:
    """All topics."""
    partitions = clusters.all_partitions(cluster.served)

    def document(name: str) -> JsonObject:
        return _stored_topic(cluster, name, partitions[name])

    return cluster.listing("KafkaTopicList", ["topics"], sorted(partitions), document, page)


@router.post(
    TOPICS,
    dependencies=[ADMIN],
    status_code=201,
    response_model=Resource,
    responses={200: {"model": Resource}},
)
def create_topic(cluster: NamedCluster, by: CurrentActor, new: NewTopic) -> Response:
    """Create a topic: 201 with its URL in ``Location``, 200 with ``validate_only``."""
    if new.replication_factor not in (None, -1, 1):
        raise InvalidPartitionsError(
            f"replication factor {new.replication_factor}: this server is one broker"
        )
    count = None if new.partitions_count == -1 else new.partitions_count
    made = administration.create_topic(
        cluster.served, by, new.topic_name, count, new.texts(), validate_only=new.validate_only
    )
    if new.validate_only:
        return JSONResponse(topic_document(cluster, new.topic_name, made.partitions or 0))
    return _tagged(cluster, new.topic_name, 201, Location=cluster.url("topics", new.topic_name))


@router.get(TOPIC, dependencies=[VIEWER], response_model=Resource)
def get_topic(cluster: NamedCluster, topic_name: str) -> Response:
    """One topic, with its ETag."""
    return _tagged(cluster, topic_name)


@router.patch(TOPIC, dependencies=[ADMIN], response_model=Resource)
def add_partitions(
    cluster: NamedCluster, by: CurrentActor, topic_name: str, new: NewCount, if_match: IfMatch = None
) -> Response:
    """Raise the number of partitions. The keys of a compacted topic go to other partitions afterwards."""
    administration.add_partitions(cluster.served, by, topic_name, new.partitions_count, if_match=if_match)
    return _tagged(cluster, topic_name)


@router.delete(TOPIC, dependencies=[ADMIN], status_code=204)
def delete_topic(cluster: NamedCluster, by: CurrentActor, topic_name: str, if_match: IfMatch = None) -> None:
    """Delete a topic."""
    administration.delete_topic(cluster.served, by, topic_name, if_match=if_match)


# Partitions.


def _partition_document(cluster: Cluster, topic: str, number: int) -> JsonObject:
    parts = ("topics", topic, "partitions", number)
    leader = clusters.replicas_of(cluster.served, cluster.broker_id, topic, number).leader
    return cluster.resource(
        "KafkaPartition",
        *parts,
        topic_name=topic,
        partition_id=number,
        leader=None if leader is None else cluster.link(*parts, "replicas", leader),
        replicas=cluster.link(*parts, "replicas"),
        reassignment=cluster.link(*parts, "reassignment"),
    )


def replica_document(cluster: Cluster, topic: str, number: int, broker_id: int) -> JsonObject:
    """A ``KafkaReplica``."""
    replicas = clusters.replicas_of(cluster.served, cluster.broker_id, topic, number)
    return cluster.resource(
        "KafkaReplica",
        *("topics", topic, "partitions", number, "replicas", broker_id),
        topic_name=topic,
        partition_id=number,
        broker_id=broker_id,
        is_leader=broker_id == replicas.leader,
        is_in_sync=broker_id in replicas.in_sync,
        broker=cluster.link("brokers", broker_id),
    )


@router.get(f"{TOPIC}/partitions", dependencies=[VIEWER], response_model=ResourceList)
def list_partitions(cluster: NamedCluster, topic_name: str, page: Page) -> JsonObject:
    """The partitions of a topic that this server has."""
    numbers = sorted(clusters.partitions_of(cluster.served, topic_name))
    document = partial(_partition_document, cluster, topic_name)
    return cluster.listing(
        "KafkaPartitionList", ["topics", topic_name, "partitions"], numbers, document, page
    )


@router.get(f"{TOPICS}/-/partitions/-/reassignment", dependencies=[VIEWER], response_model=ResourceList)
def list_all_reassignments(cluster: NamedCluster, page: Page) -> JsonObject:
    """The partitions of all topics whose replicas are being reassigned: none here."""
    parts = ["topics", "-", "partitions", "-", "reassignment"]
    return cluster.listing("KafkaReassignmentList", parts, [], dict, page)


@router.get(f"{TOPIC}/partitions/-/reassignment", dependencies=[VIEWER], response_model=ResourceList)
def list_reassignments(cluster: NamedCluster, topic_name: str, page: Page) -> JsonObject:
    """The partitions of a topic whose replicas are being reassigned: none here."""
    clusters.partitions_of(cluster.served, topic_name)  # refuses an unknown topic
    parts = ["topics", topic_name, "partitions", "-", "reassignment"]
    return cluster.listing("KafkaReassignmentList", parts, [], dict, page)


@router.get(PARTITION, dependencies=[VIEWER], response_model=Resource)
def get_partition(cluster: NamedCluster, topic_name: str, partition_id: IntText) -> JsonObject:
    """One partition."""
    clusters.partition_named(cluster.served, topic_name, partition_id)
    return _partition_document(cluster, topic_name, partition_id)


@router.get(f"{PARTITION}/offset", dependencies=[VIEWER], response_model=Resource)
def get_offset(cluster: NamedCluster, topic_name: str, partition_id: IntText) -> JsonObject:
    """Where a partition begins and ends for a consumer. ``earliest_offset`` and ``latest_offset`` are
    Confluent's names; ``beginning_offset`` and ``end_offset`` are this server's earlier names of the same."""
    offsets = clusters.offsets_of(cluster.served, topic_name, partition_id)
    return cluster.resource(
        "KafkaPartitionWithOffsets",
        *("topics", topic_name, "partitions", partition_id, "offset"),
        topic_name=topic_name,
        partition_id=partition_id,
        earliest_offset=offsets.beginning,
        latest_offset=offsets.end,
        beginning_offset=offsets.beginning,
        end_offset=offsets.end,
        last_stable_offset=offsets.last_stable,
        log_end_offset=offsets.log_end,
    )


@router.get(f"{PARTITION}/replicas", dependencies=[VIEWER], response_model=ResourceList)
def list_replicas(cluster: NamedCluster, topic_name: str, partition_id: IntText, page: Page) -> JsonObject:
    """The brokers that have a partition."""
    clusters.partition_named(cluster.served, topic_name, partition_id)
    replicas = clusters.replicas_of(cluster.served, cluster.broker_id, topic_name, partition_id)
    parts = ["topics", topic_name, "partitions", partition_id, "replicas"]
    document = partial(replica_document, cluster, topic_name, partition_id)
    return cluster.listing("KafkaReplicaList", parts, sorted(replicas.replicas), document, page)


@router.get(f"{PARTITION}/replicas/{{broker_id}}", dependencies=[VIEWER], response_model=Resource)
def get_replica(
    cluster: NamedCluster, topic_name: str, partition_id: IntText, broker_id: IntText
) -> JsonObject:
    """One replica."""
    clusters.partition_named(cluster.served, topic_name, partition_id)
    if (
        broker_id
        not in clusters.replicas_of(cluster.served, cluster.broker_id, topic_name, partition_id).replicas
    ):
        raise HTTPException(404, f"broker {broker_id} has no replica of {topic_name}-{partition_id}")
    return replica_document(cluster, topic_name, partition_id, broker_id)


@router.get(f"{PARTITION}/reassignment", dependencies=[VIEWER], response_model=Resource)
def get_reassignment(cluster: NamedCluster, topic_name: str, partition_id: IntText) -> JsonObject:
    """The reassignment of a partition: no replica is added or removed here."""
    clusters.partition_named(cluster.served, topic_name, partition_id)
    parts = ("topics", topic_name, "partitions", partition_id)
    return cluster.resource(
        "KafkaReassignment",
        *(*parts, "reassignment"),
        topic_name=topic_name,
        partition_id=partition_id,
        adding_replicas=[],
        removing_replicas=[],
        replicas=cluster.link(*parts, "replicas"),
    )
