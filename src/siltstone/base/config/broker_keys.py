"""The settings that only a broker has: Kafka 4's for its logs, and names that are accepted. One row each."""

from __future__ import annotations

import sys
from typing import Any

from siltstone.base.config.keys import LONG_MAX, Key, Kind, Level, Synonym, Value


def _key(name: str, kind: Kind, default: Value, doc: str, *others: Synonym, **more: Any) -> Key:
    more = {"dynamic": False, **more}
    return Key(name=name, kind=kind, default=default, doc=doc, level=Level.BROKER, synonyms=others, **more)


def _accepted(name: str, kind: Kind, default: Value, doc: str, **more: Any) -> Key:
    return _key(name, kind, default, doc, used=False, **more)


BROKER_KEYS = (
    _key("brokerServiceCompactionMonitorIntervalInSeconds", Kind.INT, 60, "How often logs are looked at for being over their compactionThreshold, in seconds.", least=1, kafka="Pulsar's."),
    _key("cleaner.spark.master", Kind.STRING, "local[*]", "Spark master of the embedded cleaner: local[N] for N cores of this machine, or a cluster's.",
         kafka="Siltstone's own: Kafka's cleaner runs in the broker's own threads."),
    _key("log.cleaner.backoff.ms", Kind.LONG, 15_000, "How long the cleaner sleeps when no log is to be cleaned.", least=0, dynamic=True),
    _key("log.cleaner.dedupe.buffer.size", Kind.LONG, 128 << 20, "A quarter of the memory that one cleaning task may use for keys.", least=1 << 20, dynamic=True,
         kafka="In Kafka all of the key map's memory, for all threads together, and the most keys that one pass can clean; here it bounds each task's memory, and one pass cleans everything."),
    _key("log.cleaner.enable", Kind.BOOLEAN, True, "Whether the embedded cleaner runs; siltstone clean runs in either case."),
    _key("log.cleaner.io.buffer.load.factor", Kind.DOUBLE, 0.9, "How full Kafka's key map gets: only for the number of passes that Kafka would need.", least=0, most=1, dynamic=True),
    _key("log.cleaner.io.buffer.size", Kind.INT, 4 << 20, "Size of a reading window; it grows to the largest batch.", least=1 << 12, most=1 << 30, dynamic=True,
         kafka="Kafka's default is 512 KiB (524288), for all cleaner threads together. A window here is decoded as a whole, column by column, and its fixed cost is worth it from a few MiB on."),
    _key("log.cleaner.io.max.bytes.per.second", Kind.DOUBLE, sys.float_info.max, "Most bytes that the cleaner reads and writes in a second.", least=1, dynamic=True),
    _key("log.cleaner.threads", Kind.INT, 1, "Logs that the embedded cleaner cleans at the same time.", Synonym(name="log.cleaner.thread"), least=0, dynamic=True),
    _key("log.dirs", Kind.LIST, ("/tmp/kafka-logs",), "Where the logs are: one directory a disk.", Synonym(name="log.dir", dynamic=False)),
    _key("log.flush.offset.checkpoint.interval.ms", Kind.INT, 60_000, "How often the recovery points are written down.", least=0),
    _key("log.flush.scheduler.interval.ms", Kind.LONG, LONG_MAX, "How often logs are looked at for being due for a sync; also flush.ms where nothing else sets it."),
    _key("log.flush.start.offset.checkpoint.interval.ms", Kind.INT, 60_000, "How often the log start offsets are written down.", least=0),
    _key("log.initial.task.delay.ms", Kind.LONG, 30_000, "How long after the start the periodic tasks begin.", least=0),
    _key("log.retention.check.interval.ms", Kind.LONG, 300_000, "How often logs are looked at for segments that are due to go.", Synonym(name="log.cleanup.interval.mins", unit=60_000, kind=Kind.INT, dynamic=False), least=1),
    _key("num.recovery.threads.per.data.dir", Kind.INT, 2, "Logs of one directory that are opened at the same time.", least=1, dynamic=True),
    _key("producer.id.expiration.ms", Kind.INT, 86_400_000, "How long a silent producer's last batches are remembered.", least=1, dynamic=True),
    _key("producer.id.expiration.check.interval.ms", Kind.INT, 600_000, "How often silent producers are looked for.", least=1),
    _accepted("advertised.listeners", Kind.LIST, (), "Addresses that clients are told."),
    _accepted("auto.create.topics.enable", Kind.BOOLEAN, True, "Whether a topic is made when it is first asked for."),
    _accepted("broker.id", Kind.INT, -1, "Older name of node.id.", least=-1),
    _accepted("controller.listener.names", Kind.LIST, (), "Names of the controllers' listeners."),
    _accepted("controller.quorum.bootstrap.servers", Kind.LIST, (), "Addresses of the controllers."),
    _accepted("controller.quorum.voters", Kind.LIST, (), "Ids and addresses of the controllers."),
    _accepted("group.initial.rebalance.delay.ms", Kind.INT, 3_000, "How long a new group waits for more members.", least=0),
    _accepted("inter.broker.listener.name", Kind.STRING, "", "Name of the listener between brokers."),
    _accepted("listener.security.protocol.map", Kind.LIST, ("SASL_SSL:SASL_SSL", "PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT"), "Which protocol each listener speaks."),
    _accepted("listeners", Kind.LIST, ("PLAINTEXT://:9092",), "Addresses that are listened on."),
    _accepted("metadata.log.max.record.bytes.between.snapshots", Kind.LONG, 20 << 20, "Bytes of metadata between two snapshots.", least=1),
    _accepted("node.id", Kind.INT, -1, "This broker's number.", least=-1, kafka="Kafka has no default and wants 0 or more."),
    _accepted("num.io.threads", Kind.INT, 8, "Threads that carry requests out.", least=1, dynamic=True),
    _accepted("num.network.threads", Kind.INT, 3, "Threads that read requests.", least=1, dynamic=True),
    _accepted("num.partitions", Kind.INT, 1, "Partitions of a topic that is made without saying.", least=1),
    _accepted("offsets.topic.num.partitions", Kind.INT, 50, "Partitions of the topic of committed offsets.", least=1),
    _accepted("offsets.topic.replication.factor", Kind.INT, 3, "Replicas of the topic of committed offsets.", least=1, most=32_767),
    _accepted("process.roles", Kind.LIST, (), "What the process is.", choices=("broker", "controller")),
    _accepted("share.coordinator.state.topic.num.partitions", Kind.INT, 50, "Partitions of the share groups' topic.", least=1),
    _accepted("share.coordinator.state.topic.min.isr", Kind.INT, 2, "In-sync replicas of the share groups' topic.", least=1, most=32_767),
    _accepted("share.coordinator.state.topic.replication.factor", Kind.INT, 3, "Replicas of the share groups' topic.", least=1, most=32_767),
    _accepted("socket.receive.buffer.bytes", Kind.INT, 102_400, "Receive buffer of a connection; -1: the system's.", least=-1),
    _accepted("socket.request.max.bytes", Kind.INT, 100 << 20, "Largest request.", least=1),
    _accepted("socket.send.buffer.bytes", Kind.INT, 102_400, "Send buffer of a connection; -1: the system's.", least=-1),
    _accepted("transaction.state.log.min.isr", Kind.INT, 2, "In-sync replicas of the transactions' topic.", least=1),
    _accepted("transaction.state.log.num.partitions", Kind.INT, 50, "Partitions of the transactions' topic.", least=1),
    _accepted("transaction.state.log.replication.factor", Kind.INT, 3, "Replicas of the transactions' topic.", least=1, most=32_767),
)  # fmt: skip
