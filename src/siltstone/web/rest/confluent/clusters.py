"""Clusters and brokers; requests for ACLs are refused, since this server has none."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from siltstone.commands.cluster import all_partitions
from siltstone.web.guards import ADMIN, VIEWER
from siltstone.web.queries import IntText
from siltstone.web.rest.bodies import JsonObject
from siltstone.web.rest.confluent.shapes import (
    CLUSTER_PATH,
    Cluster,
    NamedCluster,
    OnlyCluster,
    Page,
    Resource,
    ResourceList,
    listing,
    refuse_other_broker,
)
from siltstone.web.rest.confluent.topics import replica_document

router = APIRouter(tags=["Confluent v3"])


@router.get("/clusters", dependencies=[VIEWER], response_model=ResourceList)
def list_clusters(cluster: OnlyCluster, page: Page) -> JsonObject:
    """The cluster of this server."""
    url = f"{cluster.root}/clusters"
    return listing("KafkaClusterList", url, [cluster.id], lambda _: cluster_document(cluster), page)


@router.get(CLUSTER_PATH, dependencies=[VIEWER], response_model=Resource)
def get_cluster(cluster: NamedCluster) -> JsonObject:
    """The cluster."""
    return cluster_document(cluster)


def cluster_document(cluster: Cluster) -> JsonObject:
    """A ``KafkaCluster``."""
    names = ("acls", "brokers", "consumer-groups", "topics")
    links = {name.replace("-", "_"): cluster.link(name) for name in names}
    return cluster.resource(
        "KafkaCluster",
        controller=cluster.link("brokers", cluster.broker_id),
        broker_configs=cluster.link("broker-configs"),
        partition_reassignments=cluster.link("topics", "-", "partitions", "-", "reassignment"),
        **links,
    )


def _broker_document(cluster: Cluster) -> JsonObject:
    number = cluster.broker_id
    return cluster.resource(
        "KafkaBroker",
        "brokers",
        number,
        broker_id=number,
        host=None,
        port=None,
        rack=None,
        configs=cluster.link("brokers", number, "configs"),
        partition_replicas=cluster.link("brokers", number, "partition-replicas"),
    )


@router.get(f"{CLUSTER_PATH}/brokers", dependencies=[VIEWER], response_model=ResourceList)
def list_brokers(cluster: NamedCluster, page: Page) -> JsonObject:
    """This broker. The others of a cluster are not known here."""
    keys = [cluster.broker_id]
    return cluster.listing("KafkaBrokerList", ["brokers"], keys, lambda _: _broker_document(cluster), page)


@router.get(f"{CLUSTER_PATH}/brokers/{{broker_id}}", dependencies=[VIEWER], response_model=Resource)
def get_broker(cluster: NamedCluster, broker_id: IntText) -> JsonObject:
    """This broker."""
    refuse_other_broker(cluster, broker_id)
    return _broker_document(cluster)


@router.get(
    f"{CLUSTER_PATH}/brokers/{{broker_id}}/partition-replicas",
    dependencies=[VIEWER],
    response_model=ResourceList,
)
def list_partition_replicas(cluster: NamedCluster, broker_id: IntText, page: Page) -> JsonObject:
    """The partitions that this broker has."""
    refuse_other_broker(cluster, broker_id)
    partitions = all_partitions(cluster.served)
    keys = ((topic, number) for topic in sorted(partitions) for number in sorted(partitions[topic]))
    parts = ["brokers", broker_id, "partition-replicas"]

    def document(key: tuple[str, int]) -> JsonObject:
        topic, number = key
        return replica_document(cluster, topic, number, broker_id)

    return cluster.listing("KafkaReplicaList", parts, keys, document, page)


_NO_SECURITY = {
    "error_code": 40002,
    "message": "security is off: this server has no authorizer, and so no ACLs",
}


@router.get(f"{CLUSTER_PATH}/acls", dependencies=[VIEWER])
def list_acls(cluster: NamedCluster) -> Response:
    """400: there are no ACLs here."""
    return JSONResponse(_NO_SECURITY, 400)


@router.post(f"{CLUSTER_PATH}/acls", dependencies=[ADMIN])
def create_acl(cluster: NamedCluster) -> Response:
    """400: there are no ACLs here."""
    return JSONResponse(_NO_SECURITY, 400)


@router.delete(f"{CLUSTER_PATH}/acls", dependencies=[ADMIN])
def delete_acls(cluster: NamedCluster) -> Response:
    """400: there are no ACLs here."""
    return JSONResponse(_NO_SECURITY, 400)
