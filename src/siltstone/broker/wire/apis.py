"""The table of the APIs of Kafka 4.3 whose messages are in ``wire.messages``, and their API keys.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file. The arguments
of ``Api``: key, name, lowest and highest version, first flexible version (KIP-482). The broker announces the
APIs that have a handler in ``dispatch.HANDLERS``.
"""

from siltstone.broker.wire.api import Api

APIS: dict[int, Api] = {
    api.key: api
    for api in (
        Api(0, "Produce", 3, 13, 9),
        Api(1, "Fetch", 4, 18, 12),
        Api(2, "ListOffsets", 1, 11, 6),
        Api(3, "Metadata", 0, 13, 9),
        Api(18, "ApiVersions", 0, 4, 3),
        Api(19, "CreateTopics", 2, 7, 5),
        Api(20, "DeleteTopics", 1, 6, 4),
        Api(21, "DeleteRecords", 0, 2, 2),
        Api(22, "InitProducerId", 0, 5, 2),
        Api(23, "OffsetForLeaderEpoch", 2, 4, 4),
        Api(32, "DescribeConfigs", 1, 4, 4),
        Api(33, "AlterConfigs", 0, 2, 2),
        Api(34, "AlterReplicaLogDirs", 1, 2, 2),
        Api(35, "DescribeLogDirs", 1, 5, 2),
        Api(37, "CreatePartitions", 0, 3, 2),
        Api(43, "ElectLeaders", 0, 2, 2),
        Api(44, "IncrementalAlterConfigs", 0, 1, 1),
        Api(45, "AlterPartitionReassignments", 0, 1, 0),
        Api(46, "ListPartitionReassignments", 0, 0, 0),
        Api(48, "DescribeClientQuotas", 0, 1, 1),
        Api(49, "AlterClientQuotas", 0, 1, 1),
        Api(50, "DescribeUserScramCredentials", 0, 0, 0),
        Api(55, "DescribeQuorum", 0, 2, 0),
        Api(57, "UpdateFeatures", 0, 2, 0),
        Api(60, "DescribeCluster", 0, 2, 0),
        Api(74, "ListConfigResources", 0, 1, 0),
        Api(75, "DescribeTopicPartitions", 0, 0, 0),
    )
}
"""The APIs by their keys."""
PRODUCE = 0
FETCH = 1
LIST_OFFSETS = 2
METADATA = 3
API_VERSIONS = 18
CREATE_TOPICS = 19
DELETE_TOPICS = 20
DELETE_RECORDS = 21
INIT_PRODUCER_ID = 22
OFFSET_FOR_LEADER_EPOCH = 23
DESCRIBE_CONFIGS = 32
ALTER_CONFIGS = 33
ALTER_REPLICA_LOG_DIRS = 34
DESCRIBE_LOG_DIRS = 35
CREATE_PARTITIONS = 37
ELECT_LEADERS = 43
INCREMENTAL_ALTER_CONFIGS = 44
ALTER_PARTITION_REASSIGNMENTS = 45
LIST_PARTITION_REASSIGNMENTS = 46
DESCRIBE_CLIENT_QUOTAS = 48
ALTER_CLIENT_QUOTAS = 49
DESCRIBE_USER_SCRAM_CREDENTIALS = 50
DESCRIBE_QUORUM = 55
UPDATE_FEATURES = 57
DESCRIBE_CLUSTER = 60
LIST_CONFIG_RESOURCES = 74
DESCRIBE_TOPIC_PARTITIONS = 75
