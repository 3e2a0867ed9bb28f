"""The table of settings: complete, without doubles, with Kafka's defaults."""

from __future__ import annotations

import pytest

from siltstone.base.config import Config, find_broker_key, find_key, find_topic_key, format_value
from siltstone.base.config_table import ALL_KEYS, Kind
from siltstone.base.errors import UsageError
from tests.support.errors import raises_error

INT_MAX, LONG_MAX = 2_147_483_647, 9_223_372_036_854_775_807

# What Kafka 4.3 says of itself when asked, but for the names of Siltstone and Pulsar at the end.
TOPIC_DEFAULTS = {
    "cleanup.policy": ("delete",),
    "compression.gzip.level": -1,
    "compression.lz4.level": 9,
    "compression.type": "producer",
    "compression.zstd.level": 3,
    "delete.retention.ms": 86_400_000,
    "errors.deadletterqueue.group.enable": False,
    "file.delete.delay.ms": 60_000,
    "flush.messages": LONG_MAX,
    "flush.ms": LONG_MAX,
    "follower.replication.throttled.replicas": (),
    "index.interval.bytes": 4096,
    "leader.replication.throttled.replicas": (),
    "local.retention.bytes": -2,
    "local.retention.ms": -2,
    "max.compaction.lag.ms": LONG_MAX,
    "max.message.bytes": 1_048_588,
    "message.timestamp.after.max.ms": 3_600_000,
    "message.timestamp.before.max.ms": LONG_MAX,
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": 0.5,
    "min.compaction.lag.ms": 0,
    "min.insync.replicas": 1,
    "preallocate": False,
    "remote.copy.lag.bytes": 0,
    "remote.copy.lag.ms": 0,
    "remote.log.copy.disable": False,
    "remote.log.delete.on.disable": False,
    "remote.storage.enable": False,
    "retention.bytes": -1,
    "retention.ms": 168 * 3_600_000,
    "segment.bytes": 1_073_741_824,
    "segment.index.bytes": 10_485_760,
    "segment.jitter.ms": 0,
    "segment.ms": 604_800_000,
    "unclean.leader.election.enable": False,
    # of Kafka before 4
    "message.downconversion.enable": True,
    "message.format.version": "3.0-IV1",
    "message.timestamp.difference.max.ms": LONG_MAX,
    # not Kafka's
    "compactionThreshold": 0,
    "max.decompressed.message.bytes": 268_435_456,
    "siltstone.compaction.order": "offset",
    "siltstone.retention.policy": "kafka",
    "topicCompactionRetainNullKey": False,
}

BROKER_DEFAULTS = {
    "siltstone.http.auth": "none",
    "siltstone.http.connections.max": 256,
    "siltstone.http.hosts": (),
    "siltstone.http.insecure": False,
    "siltstone.http.listeners": ("http://127.0.0.1:8082",),
    "siltstone.http.mask": (),
    "siltstone.http.proxy.roles": (),
    "siltstone.http.proxy.trusted": (),
    "siltstone.http.read.only": False,
    "siltstone.http.tls.certificate": "",
    "siltstone.http.tls.key": "",
    "siltstone.http.users": "",
    "advertised.listeners": (),
    "authorizer.class.name": "",
    "auto.create.topics.enable": True,
    "broker.id": -1,
    "brokerServiceCompactionMonitorIntervalInSeconds": 60,
    "cleaner.spark.master": "local[*]",
    "connections.max.idle.ms": 600_000,
    "controller.listener.names": (),
    "controller.quorum.bootstrap.servers": (),
    "controller.quorum.voters": (),
    "controller.quota.window.num": 11,
    "controller.quota.window.size.seconds": 1,
    "fetch.max.bytes": 57_671_680,
    "group.initial.rebalance.delay.ms": 3000,
    "inter.broker.listener.name": "",
    "listener.security.protocol.map": (
        "SASL_SSL:SASL_SSL",
        "PLAINTEXT:PLAINTEXT",
        "SSL:SSL",
        "SASL_PLAINTEXT:SASL_PLAINTEXT",
    ),
    "listeners": ("PLAINTEXT://:9092",),
    "log.cleaner.backoff.ms": 15_000,
    "log.cleaner.dedupe.buffer.size": 134_217_728,
    "log.cleaner.enable": True,
    "log.cleaner.io.buffer.load.factor": 0.9,
    "log.cleaner.io.buffer.size": 524_288,
    "log.cleaner.io.max.bytes.per.second": 1.7976931348623157e308,
    "log.cleaner.threads": 1,
    "log.dirs": ("/tmp/kafka-logs",),
    "log.flush.offset.checkpoint.interval.ms": 60_000,
    "log.flush.scheduler.interval.ms": LONG_MAX,
    "log.flush.start.offset.checkpoint.interval.ms": 60_000,
    "log.initial.task.delay.ms": 30_000,
    "log.retention.check.interval.ms": 300_000,
    "max.connections": INT_MAX,
    "max.connections.per.ip": INT_MAX,
    "max.connections.per.ip.overrides": "",
    "max.incremental.fetch.session.cache.slots": 1000,
    "metadata.log.max.record.bytes.between.snapshots": 20_971_520,
    "node.id": -1,
    "num.io.threads": 8,
    "num.network.threads": 3,
    "num.partitions": 1,
    "num.recovery.threads.per.data.dir": 2,
    "offsets.topic.num.partitions": 50,
    "offsets.topic.replication.factor": 3,
    "process.roles": (),
    "producer.id.expiration.check.interval.ms": 600_000,
    "producer.id.expiration.ms": 86_400_000,
    "queued.max.request.bytes": -1,
    "quota.window.num": 11,
    "quota.window.size.seconds": 1,
    "share.coordinator.state.topic.min.isr": 2,
    "share.coordinator.state.topic.num.partitions": 50,
    "share.coordinator.state.topic.replication.factor": 3,
    "socket.listen.backlog.size": 50,
    "socket.receive.buffer.bytes": 102_400,
    "socket.request.max.bytes": 104_857_600,
    "socket.send.buffer.bytes": 102_400,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 50,
    "transaction.state.log.replication.factor": 3,
}

# Where Siltstone's default is another one: the value here; the page says why.
OTHER_DEFAULTS = {
    "listeners": ("PLAINTEXT://127.0.0.1:9092",),
    "log.cleaner.io.buffer.size": 4_194_304,
    "queued.max.request.bytes": 268_435_456,
    "socket.listen.backlog.size": 1024,
    "socket.receive.buffer.bytes": -1,
    "socket.send.buffer.bytes": -1,
}

# Topic's name ← broker's names, best first, with what one of each is in the topic's unit.
SYNONYMS = {
    "cleanup.policy": {"log.cleanup.policy": 1},
    "compactionThreshold": {"brokerServiceCompactionThresholdInBytes": 1},
    "compression.gzip.level": {"compression.gzip.level": 1},
    "compression.lz4.level": {"compression.lz4.level": 1},
    "compression.type": {"compression.type": 1},
    "compression.zstd.level": {"compression.zstd.level": 1},
    "delete.retention.ms": {"log.cleaner.delete.retention.ms": 1},
    "file.delete.delay.ms": {"log.segment.delete.delay.ms": 1},
    "flush.messages": {"log.flush.interval.messages": 1},
    "flush.ms": {"log.flush.interval.ms": 1, "log.flush.scheduler.interval.ms": 1},
    "index.interval.bytes": {"log.index.interval.bytes": 1},
    "local.retention.bytes": {"log.local.retention.bytes": 1},
    "local.retention.ms": {"log.local.retention.ms": 1},
    "max.compaction.lag.ms": {"log.cleaner.max.compaction.lag.ms": 1},
    "max.decompressed.message.bytes": {"max.decompressed.message.bytes": 1},
    "max.message.bytes": {"message.max.bytes": 1},
    "message.downconversion.enable": {"log.message.downconversion.enable": 1},
    "message.format.version": {"log.message.format.version": 1},
    "message.timestamp.after.max.ms": {"log.message.timestamp.after.max.ms": 1},
    "message.timestamp.before.max.ms": {"log.message.timestamp.before.max.ms": 1},
    "message.timestamp.difference.max.ms": {"log.message.timestamp.difference.max.ms": 1},
    "message.timestamp.type": {"log.message.timestamp.type": 1},
    "min.cleanable.dirty.ratio": {"log.cleaner.min.cleanable.ratio": 1},
    "min.compaction.lag.ms": {"log.cleaner.min.compaction.lag.ms": 1},
    "min.insync.replicas": {"min.insync.replicas": 1},
    "preallocate": {"log.preallocate": 1},
    "retention.bytes": {"log.retention.bytes": 1},
    "retention.ms": {
        "log.retention.ms": 1,
        "log.retention.minutes": 60_000,
        "log.retention.hours": 3_600_000,
    },
    "segment.bytes": {"log.segment.bytes": 1},
    "segment.index.bytes": {"log.index.size.max.bytes": 1},
    "segment.jitter.ms": {"log.roll.jitter.ms": 1, "log.roll.jitter.hours": 3_600_000},
    "segment.ms": {"log.roll.ms": 1, "log.roll.hours": 3_600_000},
    "topicCompactionRetainNullKey": {"topicCompactionRetainNullKey": 1},
    "unclean.leader.election.enable": {"unclean.leader.election.enable": 1},
    # a broker's other names for what only a broker has
    "log.cleaner.threads": {"log.cleaner.thread": 1},
    "log.dirs": {"log.dir": 1},
    "log.retention.check.interval.ms": {"log.cleanup.interval.mins": 60_000},
}

# Every key that the documents behind the project and the rules drawn from them name.
NAMED = """
brokerServiceCompactionMonitorIntervalInSeconds brokerServiceCompactionThresholdInBytes cleanup.policy
compactionThreshold delete.retention.ms
file.delete.delay.ms flush.messages flush.ms index.interval.bytes internal.segment.bytes
log.cleaner.backoff.ms log.cleaner.dedupe.buffer.size log.cleaner.delete.retention.ms log.cleaner.enable
log.cleaner.io.buffer.load.factor log.cleaner.io.max.bytes.per.second log.cleaner.max.compaction.lag.ms
log.cleaner.min.cleanable.ratio log.cleaner.min.compaction.lag.ms log.cleaner.thread log.cleaner.threads
log.cleanup.interval.mins log.cleanup.policy log.dir log.dirs log.index.size.max.bytes log.retention.bytes
log.retention.check.interval.ms log.retention.hours log.retention.minutes log.retention.ms
log.segment.bytes max.compaction.lag.ms max.decompressed.message.bytes max.message.bytes
message.timestamp.after.max.ms message.timestamp.before.max.ms min.cleanable.dirty.ratio
min.compaction.lag.ms num.io.threads num.network.threads producer.id.expiration.ms remote.storage.enable
retention.bytes retention.ms segment.bytes segment.index.bytes segment.ms socket.request.max.bytes
topicCompactionRetainNullKey
""".split()


@pytest.mark.parametrize("name", NAMED)
def test_every_name_of_the_documents_is_in_the_table(name: str) -> None:
    assert name in find_key(name).names


def test_the_table_has_the_listed_settings_and_no_others() -> None:
    here = {key.name for key in ALL_KEYS}
    assert here == TOPIC_DEFAULTS.keys() | BROKER_DEFAULTS.keys()
    assert len(ALL_KEYS) == len(here)
    of_topics = {key.name for key in ALL_KEYS if key.is_topic_key}
    assert of_topics == TOPIC_DEFAULTS.keys()


@pytest.mark.parametrize("name", [*TOPIC_DEFAULTS, *BROKER_DEFAULTS])
def test_defaults_are_kafkas_unless_listed_as_others(name: str) -> None:
    kafkas = {**TOPIC_DEFAULTS, **BROKER_DEFAULTS}[name]
    default = find_key(name).default
    assert default == OTHER_DEFAULTS.get(name, kafkas)
    assert type(default) is type(kafkas)
    assert Config()[name] == default


def test_other_defaults_are_explained() -> None:
    for name in OTHER_DEFAULTS:
        assert "Kafka's default is " in find_key(name).origin_note
        assert format_value(BROKER_DEFAULTS[name]) in find_key(name).origin_note


def test_synonyms_and_their_units() -> None:
    here = {
        key.name: {synonym.name: synonym.unit for synonym in key.synonyms} for key in ALL_KEYS if key.synonyms
    }
    assert here == SYNONYMS
    assert all(list(here[name]) == list(SYNONYMS[name]) for name in SYNONYMS)  # the order too


def test_no_name_stands_for_two_settings() -> None:
    names = [name for key in ALL_KEYS for name in key.names]
    twice = {name for name in names if names.count(name) > 1}
    assert twice == {"log.flush.scheduler.interval.ms"}  # a setting of its own that flush.ms falls back on
    assert find_key("log.flush.scheduler.interval.ms").name == "log.flush.scheduler.interval.ms"


@pytest.mark.parametrize("key", ALL_KEYS, ids=lambda key: key.name)
def test_every_row_of_the_table_is_complete(key) -> None:
    assert key.doc.endswith(".") and "\n" not in key.doc and "|" not in key.doc
    assert len(key.doc) < 140
    assert key.kind is not Kind.DOUBLE or key.minimum is not None  # so that NaN is out of range
    for name in key.topic_names:
        assert find_topic_key(name) is key
    for name in key.broker_names:
        assert name in find_broker_key(name).broker_names


def test_unknown_names_are_refused_with_the_nearest() -> None:
    for find, nearest in (
        (find_key, "retention.ms"),
        (find_topic_key, "retention.ms"),
        (find_broker_key, "log.retention.ms"),
    ):
        with raises_error(UsageError, about="'retension.ms'", advice=f"did you mean '{nearest}'"):
            find("retension.ms")
        with raises_error(UsageError, about="'qqq'", advice="docs/configuration.md"):
            find("qqq")
