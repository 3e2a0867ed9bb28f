"""The twin's script: every API that is announced, in every version."""

from __future__ import annotations

from tests.support.broker_twin import side
from tests.support.broker_twin.scenes import (
    configs,
    frames,
    produce,
    quorum,
    quotas,
    reading,
    sessions,
    throttling,
    topics,
)
from tests.support.broker_twin.scenes.scene import Scene

GARBAGE = Scene(name="garbage", key=side.API_VERSIONS, versions=range(0, 1), run=frames.garbage)
SESSIONS = Scene(name="fetch_sessions", key=side.FETCH, versions=range(7, 19), run=sessions.fetch_sessions)
THROTTLING = Scene(name="throttling", key=side.PRODUCE, versions=range(3, 14), run=throttling.throttling)
APIS = (
    Scene(name="api_versions", key=side.API_VERSIONS, versions=range(0, 5), run=frames.api_versions),
    Scene(name="metadata", key=side.METADATA, versions=range(0, 14), run=topics.metadata),
    Scene(name="create_topics", key=side.CREATE_TOPICS, versions=range(2, 8), run=topics.create_topics),
    Scene(
        name="create_partitions",
        key=side.CREATE_PARTITIONS,
        versions=range(0, 4),
        run=topics.create_partitions,
    ),
    Scene(name="delete_topics", key=side.DELETE_TOPICS, versions=range(1, 7), run=topics.delete_topics),
    Scene(
        name="describe_cluster", key=side.DESCRIBE_CLUSTER, versions=range(0, 3), run=topics.describe_cluster
    ),
    Scene(
        name="describe_topic_partitions",
        key=side.DESCRIBE_TOPIC_PARTITIONS,
        versions=range(0, 1),
        run=topics.describe_topic_partitions,
    ),
    Scene(name="elect_leaders", key=side.ELECT_LEADERS, versions=range(0, 3), run=topics.elect_leaders),
    Scene(
        name="alter_partition_reassignments",
        key=side.ALTER_PARTITION_REASSIGNMENTS,
        versions=range(0, 2),
        run=topics.alter_partition_reassignments,
    ),
    Scene(
        name="list_partition_reassignments",
        key=side.LIST_PARTITION_REASSIGNMENTS,
        versions=range(0, 1),
        run=topics.list_partition_reassignments,
    ),
    Scene(
        name="describe_configs", key=side.DESCRIBE_CONFIGS, versions=range(1, 5), run=configs.describe_configs
    ),
    Scene(
        name="incremental_alter_configs",
        key=side.INCREMENTAL_ALTER_CONFIGS,
        versions=range(0, 2),
        run=configs.incremental_alter_configs,
    ),
    Scene(
        name="list_config_resources",
        key=side.LIST_CONFIG_RESOURCES,
        versions=range(0, 2),
        run=configs.list_config_resources,
    ),
    Scene(name="alter_configs", key=side.ALTER_CONFIGS, versions=range(0, 3), run=configs.alter_configs),
    Scene(name="describe_quorum", key=side.DESCRIBE_QUORUM, versions=range(0, 3), run=quorum.describe_quorum),
    Scene(name="update_features", key=side.UPDATE_FEATURES, versions=range(0, 3), run=quorum.update_features),
    Scene(
        name="alter_replica_log_dirs",
        key=side.ALTER_REPLICA_LOG_DIRS,
        versions=range(1, 3),
        run=quorum.alter_replica_log_dirs,
    ),
    Scene(
        name="alter_client_quotas",
        key=side.ALTER_CLIENT_QUOTAS,
        versions=range(0, 2),
        run=quotas.alter_client_quotas,
    ),
    Scene(
        name="describe_client_quotas",
        key=side.DESCRIBE_CLIENT_QUOTAS,
        versions=range(0, 2),
        run=quotas.describe_client_quotas,
    ),
    Scene(
        name="describe_user_scram_credentials",
        key=side.DESCRIBE_USER_SCRAM_CREDENTIALS,
        versions=range(0, 1),
        run=quotas.describe_user_scram_credentials,
    ),
    Scene(name="produce", key=side.PRODUCE, versions=range(3, 14), run=produce.produce),
    Scene(
        name="init_producer_id", key=side.INIT_PRODUCER_ID, versions=range(0, 6), run=produce.init_producer_id
    ),
    Scene(name="fetch", key=side.FETCH, versions=range(4, 19), run=reading.fetch),
    Scene(name="list_offsets", key=side.LIST_OFFSETS, versions=range(1, 12), run=reading.list_offsets),
    Scene(
        name="offset_for_leader_epoch",
        key=side.OFFSET_FOR_LEADER_EPOCH,
        versions=range(2, 5),
        run=reading.offset_for_leader_epoch,
    ),
    Scene(name="delete_records", key=side.DELETE_RECORDS, versions=range(0, 3), run=reading.delete_records),
    Scene(
        name="describe_log_dirs",
        key=side.DESCRIBE_LOG_DIRS,
        versions=range(1, 6),
        run=reading.describe_log_dirs,
    ),
)
"""One scene for each API: what is announced is held to their keys and versions."""
