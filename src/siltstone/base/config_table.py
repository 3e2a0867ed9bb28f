"""The table of settings: name, synonyms, type, default, range and one line of documentation for each.

    a topic's names    ``aliases``, then ``name``     internal.segment.bytes, then segment.bytes
    a broker's names   ``synonyms``, with their unit  log.retention.hours=1 is retention.ms=3600000

Names are in their order of precedence. The settings of topics are those of Kafka 4's ``TopicConfig`` and
Siltstone's own. The settings of brokers are those of Kafka 4 for its logs, and others that Siltstone accepts
but does not use. Corresponds to Kafka's ``ConfigDef.ConfigKey`` and ``ServerTopicConfigSynonyms``. ``python
scripts/configuration_page.py`` makes docs/configuration.md from this table.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from siltstone.base.codec_table import CODECS, COMPRESSION_TYPES, Levels

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1

Value = bool | int | float | str | tuple[str, ...]


class Kind(Enum):
    """Kafka's types of values, by Kafka's names."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"


@dataclass(frozen=True, slots=True, kw_only=True)
class Synonym:
    """A broker's name for a setting, perhaps in a larger unit.

    ``unit``: the size of its unit, in the setting's own unit (an hour, for a setting in ms: 3,600,000).
    ``kind``: its type if that is not the setting's. ``minimum``: its smallest value, in its own unit; None: the
    setting's bounds if the unit is 1, else none. A negative value under a broker's name of retention.ms means
    no limit, whatever ``minimum`` says. ``is_dynamic``: whether it can change at run time.
    """

    name: str
    unit: int = 1
    kind: Kind | None = None
    minimum: float | None = None
    is_dynamic: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One setting.

    ``minimum`` and ``maximum`` bound numbers; ``refused`` are numbers between them that are not allowed;
    ``choices`` are the allowed words. ``negative_is_unlimited``: any negative number means −1. ``is_used``:
    False for a setting that Siltstone accepts but does not use (``siltstone serve`` refuses one of these,
    authorizer.class.name, where it is set). ``is_dynamic``: whether a broker's setting of this ``name`` can
    change at run time; False unless a row of ``BROKER_KEYS`` says so. ``origin_note``: where the setting comes
    from if not from Kafka 4, or how Kafka differs, and why. ``names``: all of them, in their order of
    precedence.
    """

    name: str
    kind: Kind
    default: Value
    doc: str
    is_topic_key: bool
    synonyms: tuple[Synonym, ...] = ()
    aliases: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    refused: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()
    negative_is_unlimited: bool = False
    is_used: bool = True
    is_dynamic: bool = True
    origin_note: str = ""
    names: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        names = dict.fromkeys((*self.topic_names, *self.broker_names))
        object.__setattr__(self, "names", tuple(names))

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The names that a topic can use, in their order of precedence."""
        return (*self.aliases, self.name) if self.is_topic_key else ()

    @property
    def broker_names(self) -> tuple[str, ...]:
        """The names that a broker can use, in their order of precedence."""
        names = tuple(synonym.name for synonym in self.synonyms)
        return names if self.is_topic_key else (self.name, *names)

    def synonym(self, name: str) -> Synonym | None:
        """The ``Synonym`` with this name, if there is one."""
        return next((synonym for synonym in self.synonyms if synonym.name == name), None)

    def changes_at_run_time(self, name: str) -> bool:
        """Whether a broker's ``name`` can change while it runs."""
        synonym = self.synonym(name)
        return self.is_dynamic if synonym is None else synonym.is_dynamic


_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000


def _topic_key(
    name: str, kind: Kind, default: Value, doc: str, *broker_names: str | Synonym, **more: Any
) -> Key:
    synonyms = tuple(Synonym(name=item) if isinstance(item, str) else item for item in broker_names)
    return Key(name=name, kind=kind, default=default, doc=doc, is_topic_key=True, synonyms=synonyms, **more)


def _broker_key(name: str, kind: Kind, default: Value, doc: str, *synonyms: Synonym, **more: Any) -> Key:
    more = {"is_dynamic": False, **more}
    return Key(name=name, kind=kind, default=default, doc=doc, is_topic_key=False, synonyms=synonyms, **more)


# Settings that Siltstone accepts but does not use: their rows have a type, a range and a default.
_accepted_topic_key = partial(_topic_key, is_used=False)
_accepted_broker_key = partial(_broker_key, is_used=False)


def _hours_synonym(name: str, minimum: int | None = None) -> Synonym:
    return Synonym(name=name, unit=_HOUR_MS, kind=Kind.INT, minimum=minimum, is_dynamic=False)


def _compression_level_key(codec: str, levels: Levels) -> Key:
    name, bounds = f"compression.{codec}.level", {"minimum": levels.minimum, "maximum": levels.maximum}
    return _topic_key(name, Kind.INT, levels.default, levels.doc, name, refused=levels.refused, **bounds)


_TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
_TIERED = "For tiered storage; Siltstone does not change logs that have it."
_REPLICAS = "For several brokers."
_SERVE = "Siltstone's own: for siltstone serve (docs/serve.md)."

# One row a setting: name, type, default, what it does, the broker's names (in their order of precedence),
# range.
_ROWS = (
    _topic_key("cleanup.policy", Kind.LIST, ("delete",), "What is discarded from the log: old segments (delete), all but the last record of each key (compact), both, or nothing (empty).", "log.cleanup.policy", choices=("delete", "compact")),
    _topic_key("compactionThreshold", Kind.LONG, 0, "A side-by-side compaction starts when the log has more bytes than this above the offset up to which its ledger reaches; 0: never.", "brokerServiceCompactionThresholdInBytes", minimum=0,
         origin_note="Pulsar's. A namespace's policy of this name is used where neither the topic nor the broker sets it."),
    *(_compression_level_key(codec.name, codec.levels) for codec in CODECS if codec.levels is not None),
    _topic_key("compression.type", Kind.STRING, "producer", "Codec that batches are stored with; producer: that of the producer.", "compression.type", choices=COMPRESSION_TYPES),
    _topic_key("delete.retention.ms", Kind.LONG, 86_400_000, "How long a tombstone is retained after the first cleaning that has seen it.", "log.cleaner.delete.retention.ms", minimum=0),
    _accepted_topic_key("errors.deadletterqueue.group.enable", Kind.BOOLEAN, False, "For share groups."),
    _topic_key("file.delete.delay.ms", Kind.LONG, 60_000, "How long the files of a deleted segment stay on disk, named .deleted.", "log.segment.delete.delay.ms", minimum=0),
    _topic_key("flush.messages", Kind.LONG, LONG_MAX, "Records after which the log is synced to disk.", "log.flush.interval.messages", minimum=1),
    _topic_key("flush.ms", Kind.LONG, LONG_MAX, "Time after which appended records are synced to disk.", "log.flush.interval.ms", Synonym(name="log.flush.scheduler.interval.ms", is_dynamic=False), minimum=0),
    _accepted_topic_key("follower.replication.throttled.replicas", Kind.LIST, (), _REPLICAS),
    _topic_key("index.interval.bytes", Kind.INT, 4096, "Bytes of log between two entries of the offset index.", "log.index.interval.bytes", minimum=0),
    _accepted_topic_key("leader.replication.throttled.replicas", Kind.LIST, (), _REPLICAS),
    _accepted_topic_key("local.retention.bytes", Kind.LONG, -2, _TIERED, "log.local.retention.bytes", minimum=-2),
    _accepted_topic_key("local.retention.ms", Kind.LONG, -2, _TIERED, "log.local.retention.ms", minimum=-2),
    _topic_key("max.compaction.lag.ms", Kind.LONG, LONG_MAX, "A record stays uncleaned at most this long, whatever the dirty ratio.", "log.cleaner.max.compaction.lag.ms", minimum=1),
    _topic_key("max.decompressed.message.bytes", Kind.INT, 256 << 20, "Most bytes that one batch may decompress to; a log with a larger one is uncleanable (docs/operating.md).", "max.decompressed.message.bytes", minimum=1, origin_note="Siltstone's own: a small batch must not be able to fill the memory; the memory of several batches together is bounded without it."),
    _topic_key("max.message.bytes", Kind.INT, 1_048_588, "Largest batch that may be appended, as stored.", "message.max.bytes", minimum=0),
    _accepted_topic_key("message.downconversion.enable", Kind.BOOLEAN, True, "For readers of old formats.", "log.message.downconversion.enable", origin_note="Removed in Kafka 4."),
    _accepted_topic_key("message.format.version", Kind.STRING, "3.0-IV1", "Format that records are written in.", "log.message.format.version", origin_note="Removed in Kafka 4."),
    _topic_key("message.timestamp.after.max.ms", Kind.LONG, _HOUR_MS, "How far ahead of the clock a producer's timestamp may be.", "log.message.timestamp.after.max.ms", minimum=0),
    _topic_key("message.timestamp.before.max.ms", Kind.LONG, LONG_MAX, "How far behind the clock a producer's timestamp may be.", "log.message.timestamp.before.max.ms", minimum=0),
    _accepted_topic_key("message.timestamp.difference.max.ms", Kind.LONG, LONG_MAX, "Former name of message.timestamp.before.max.ms and message.timestamp.after.max.ms together.", "log.message.timestamp.difference.max.ms", minimum=0, origin_note="Removed in Kafka 4."),
    _topic_key("message.timestamp.type", Kind.STRING, "CreateTime", "Whose timestamp a record has: its producer's, or that of the append.", "log.message.timestamp.type", choices=_TIMESTAMP_TYPES),
    _topic_key("min.cleanable.dirty.ratio", Kind.DOUBLE, 0.5, "A log is eligible for cleaning when more than this share of its bytes is dirty.", "log.cleaner.min.cleanable.ratio", minimum=0, maximum=1),
    _topic_key("min.compaction.lag.ms", Kind.LONG, 0, "A record stays uncleaned at least this long.", "log.cleaner.min.compaction.lag.ms", minimum=0),
    _accepted_topic_key("min.insync.replicas", Kind.INT, 1, _REPLICAS, "min.insync.replicas", minimum=1),
    _accepted_topic_key("preallocate", Kind.BOOLEAN, False, "Whether a new segment's file gets its full size at once; files always grow as they are written.", "log.preallocate"),
    _accepted_topic_key("remote.copy.lag.bytes", Kind.LONG, 0, _TIERED, minimum=-1),
    _accepted_topic_key("remote.copy.lag.ms", Kind.LONG, 0, _TIERED, minimum=-1),
    _accepted_topic_key("remote.log.copy.disable", Kind.BOOLEAN, False, _TIERED),
    _accepted_topic_key("remote.log.delete.on.disable", Kind.BOOLEAN, False, _TIERED),
    _topic_key("remote.storage.enable", Kind.BOOLEAN, False, "Marks a log with tiered storage: Siltstone does not change it."),
    _topic_key("retention.bytes", Kind.LONG, -1, "Size of the log above which its oldest segments are deleted (policy delete); -1: no limit.", "log.retention.bytes", negative_is_unlimited=True),
    _topic_key("retention.ms", Kind.LONG, 7 * 24 * _HOUR_MS, "Age above which segments are deleted (policy delete); -1: no limit.",
         Synonym(name="log.retention.ms", minimum=1),
         Synonym(name="log.retention.minutes", unit=_MINUTE_MS, kind=Kind.INT, minimum=1, is_dynamic=False),
         _hours_synonym("log.retention.hours", 1),
         minimum=-1),
    _topic_key("segment.bytes", Kind.INT, 1 << 30, "Size at which a segment is full, and largest size of a segment group that is cleaned into one.", "log.segment.bytes", aliases=("internal.segment.bytes",), minimum=1,
         origin_note="Kafka refuses less than 1 MiB here and takes small sizes only as internal.segment.bytes. Tests and small machines want small segments, so both names take them; where both are set, internal.segment.bytes takes precedence, as in Kafka."),
    _topic_key("segment.index.bytes", Kind.INT, 10 << 20, "Largest size of an index; a full one rolls the segment.", "log.index.size.max.bytes", minimum=4),
    _topic_key("segment.jitter.ms", Kind.LONG, 0, "Largest random time that is subtracted from segment.ms, so that logs do not all roll at once.", "log.roll.jitter.ms", _hours_synonym("log.roll.jitter.hours", 0), minimum=0),
    _topic_key("segment.ms", Kind.LONG, 7 * 24 * _HOUR_MS, "Age at which a segment is rolled although it is not full.", "log.roll.ms", _hours_synonym("log.roll.hours", 1), minimum=1),
    _topic_key("siltstone.compaction.order", Kind.STRING, "offset", "Whether the ledger of a side-by-side compaction keeps a key's last record by offset, or the one with the latest timestamp.", choices=("offset", "time"), origin_note="Siltstone's own. The log cleaner always goes by offset. By time: of equal timestamps the last offset; an older record that comes late replaces no newer one, and brings no deleted key back."),
    _topic_key("siltstone.retention.policy", Kind.STRING, "kafka", "Name of the function that chooses the segments to delete (policy delete); kafka: by retention.bytes and retention.ms.", origin_note="Siltstone's own: deletion policies are plain functions, registered under a name by siltstone.register_policy."),
    _topic_key("topicCompactionRetainNullKey", Kind.BOOLEAN, False, "Whether the ledger of a side-by-side compaction keeps records without a key.", "topicCompactionRetainNullKey", origin_note="Pulsar's."),
    _accepted_topic_key("unclean.leader.election.enable", Kind.BOOLEAN, False, _REPLICAS, "unclean.leader.election.enable"),
)  # fmt: skip

TOPIC_KEYS = tuple(sorted(_ROWS, key=lambda key: key.name))
"""Topics' settings, sorted by name."""

BROKER_KEYS = (
    _broker_key("brokerServiceCompactionMonitorIntervalInSeconds", Kind.INT, 60, "How often logs are checked against their compactionThreshold, in seconds.", minimum=1, origin_note="Pulsar's."),
    _broker_key("cleaner.spark.master", Kind.STRING, "local[*]", "Spark master of the embedded cleaner: local[N] for N cores of this machine, or a cluster's.",
         origin_note="Siltstone's own: Kafka's cleaner runs in the broker's own threads."),
    _broker_key("log.cleaner.backoff.ms", Kind.LONG, 15_000, "How long the cleaner sleeps when there is no log to clean.", minimum=0, is_dynamic=True),
    _broker_key("log.cleaner.dedupe.buffer.size", Kind.LONG, 128 << 20, "Memory for keys: one cleaning task may use four times this.", minimum=1 << 20, is_dynamic=True,
         origin_note="In Kafka the memory of the offset map, for all threads together, and the most keys that one pass can clean; here it bounds each task's memory, and one pass cleans everything."),
    _broker_key("log.cleaner.enable", Kind.BOOLEAN, True, "Whether the embedded cleaner runs; siltstone clean runs in either case."),
    _broker_key("log.cleaner.io.buffer.load.factor", Kind.DOUBLE, 0.9, "How full Kafka's offset map gets: used only to say how many passes Kafka would need.", minimum=0, maximum=1, is_dynamic=True),
    _broker_key("log.cleaner.io.buffer.size", Kind.INT, 4 << 20, "Bytes of a log that are read and decoded at a time; more for a larger batch.", minimum=1 << 12, maximum=1 << 30, is_dynamic=True,
         origin_note="Kafka's default is 512 KiB (524288), for all cleaner threads together. A window here is decoded as a whole, column by column, and its fixed cost is worth it from a few MiB on."),
    _broker_key("log.cleaner.io.max.bytes.per.second", Kind.DOUBLE, sys.float_info.max, "Most bytes that the cleaner reads and writes per second.", minimum=1, is_dynamic=True),
    _broker_key("log.cleaner.threads", Kind.INT, 1, "Logs that the embedded cleaner cleans at the same time.", Synonym(name="log.cleaner.thread"), minimum=0, is_dynamic=True),
    _broker_key("log.dirs", Kind.LIST, ("/tmp/kafka-logs",), "The log directories: one for each disk.", Synonym(name="log.dir", is_dynamic=False)),
    _broker_key("log.flush.offset.checkpoint.interval.ms", Kind.INT, 60_000, "How often the recovery points are checkpointed.", minimum=0),
    _broker_key("log.flush.scheduler.interval.ms", Kind.LONG, LONG_MAX, "How often logs are checked for a sync that is due; also flush.ms where no other name sets it."),
    _broker_key("log.flush.start.offset.checkpoint.interval.ms", Kind.INT, 60_000, "How often the log start offsets are checkpointed.", minimum=0),
    _broker_key("log.initial.task.delay.ms", Kind.LONG, 30_000, "How long after the start the periodic tasks begin.", minimum=0),
    _broker_key("log.retention.check.interval.ms", Kind.LONG, 300_000, "How often logs are checked for segments to delete.", Synonym(name="log.cleanup.interval.mins", unit=60_000, kind=Kind.INT, minimum=1, is_dynamic=False), minimum=1),
    _broker_key("num.recovery.threads.per.data.dir", Kind.INT, 2, "Logs of one directory that are opened at the same time.", minimum=1, is_dynamic=True),
    _broker_key("producer.id.expiration.ms", Kind.INT, 86_400_000, "How long the state of an inactive producer is kept.", minimum=1, is_dynamic=True),
    _broker_key("producer.id.expiration.check.interval.ms", Kind.INT, 600_000, "How often expired producers are removed.", minimum=1),
    _broker_key("siltstone.http.auth", Kind.STRING, "none", "Who may use the server: all on this machine (none), users of siltstone.http.users (basic), whom a trusted proxy names (proxy).", choices=("none", "basic", "proxy"), origin_note=_SERVE),
    _broker_key("siltstone.http.connections.max", Kind.INT, 256, "Connections to the console and the REST API at the same time.", minimum=1, origin_note=_SERVE),
    _broker_key("siltstone.http.hosts", Kind.LIST, (), "Further names in the Host header that are answered; others get 421.", origin_note=_SERVE),
    _broker_key("siltstone.http.insecure", Kind.BOOLEAN, False, "Whether an address other than loopback may be used without authentication or without TLS.", origin_note=_SERVE),
    _broker_key("siltstone.http.listeners", Kind.LIST, ("http://127.0.0.1:8082",), "Where siltstone serve listens.", origin_note=_SERVE),
    _broker_key("siltstone.http.mask", Kind.LIST, (), "What of records is never shown: REGEX:key, REGEX:value or REGEX:/json/pointer, where REGEX is for topics' names.", origin_note=_SERVE),
    _broker_key("siltstone.http.proxy.roles", Kind.LIST, (), "GROUP:ROLE for the groups that a proxy names; ROLE is viewer, reader, editor or admin.", origin_note=_SERVE),
    _broker_key("siltstone.http.proxy.trusted", Kind.LIST, (), "Addresses of proxies whose X-Forwarded-User and X-Forwarded-Groups are believed.", origin_note=_SERVE),
    _broker_key("siltstone.http.read.only", Kind.BOOLEAN, False, "Whether the console and the REST API change nothing.", origin_note=_SERVE),
    _broker_key("siltstone.http.tls.certificate", Kind.STRING, "", "File of the certificate chain (PEM) of an https listener.", origin_note=_SERVE),
    _broker_key("siltstone.http.tls.key", Kind.STRING, "", "File of the private key (PEM) of siltstone.http.tls.certificate.", origin_note=_SERVE),
    _broker_key("siltstone.http.users", Kind.STRING, "", "File of users for siltstone.http.auth=basic (docs/serve.md).", origin_note=_SERVE),
    _broker_key("advertised.listeners", Kind.LIST, (), "Addresses that are published to clients."),
    _broker_key("auto.create.topics.enable", Kind.BOOLEAN, True, "Whether a topic is created when it is first used."),
    _broker_key("controller.listener.names", Kind.LIST, (), "Names of the controllers' listeners."),
    _broker_key("broker.id", Kind.INT, -1, "Former name of node.id, which takes precedence where both are set.", minimum=-1),
    _accepted_broker_key("authorizer.class.name", Kind.STRING, "", "Class that authorizes by Kafka's ACLs, which Siltstone does not have: siltstone serve refuses to start with it."),
    _broker_key("connections.max.idle.ms", Kind.LONG, 600_000, "A connection of a Kafka client that has been silent for so long is closed.", minimum=0),
    _broker_key("fetch.max.bytes", Kind.INT, 57_671_680, "Most bytes of records in the answer to one fetch, whatever the client asks for.", minimum=1024),
    _broker_key("max.connections", Kind.INT, INT_MAX, "Connections of Kafka clients at the same time; also at most half of the files that the process may open. More wait until one is closed.", minimum=0),
    _broker_key("max.connections.per.ip", Kind.INT, INT_MAX, "Connections of Kafka clients from one address at the same time; more are closed immediately.", minimum=0),
    _broker_key("max.connections.per.ip.overrides", Kind.STRING, "", "ADDRESS:COUNT for IP addresses, or hosts, that have another limit than max.connections.per.ip."),
    _broker_key("max.incremental.fetch.session.cache.slots", Kind.INT, 1_000, "Fetch sessions at the same time; a client without one names all its partitions in each request.", minimum=0),
    _broker_key("queued.max.request.bytes", Kind.LONG, 256 << 20, "Memory that requests and unsent responses may take together; -1: no limit. Then no connection is read until some of it is free.", minimum=-1, origin_note="Kafka's default is -1, and it counts requests only."),
    _broker_key("quota.window.num", Kind.INT, 11, "Windows over which the rates of quotas are measured.", minimum=1),
    _broker_key("quota.window.size.seconds", Kind.INT, 1, "The length of each window of quota.window.num, in seconds.", minimum=1),
    _broker_key("controller.quota.window.num", Kind.INT, 11, "Windows over which the quota of created and deleted partitions is measured: what may be saved up for a burst.", minimum=1),
    _broker_key("controller.quota.window.size.seconds", Kind.INT, 1, "The length of each window of controller.quota.window.num, in seconds.", minimum=1),
    _broker_key("socket.listen.backlog.size", Kind.INT, 1024, "Connections that wait until they are accepted.", minimum=1, origin_note="Kafka's default is 50, with a thread that only accepts. Here many connections may come while the one thread answers, and each that finds no place waits for a second."),
    _accepted_broker_key("controller.quorum.bootstrap.servers", Kind.LIST, (), "Addresses of the controllers."),
    _accepted_broker_key("controller.quorum.voters", Kind.LIST, (), "Ids and addresses of the controllers."),
    _accepted_broker_key("group.initial.rebalance.delay.ms", Kind.INT, 3_000, "How long a new group waits for more members.", minimum=0),
    _accepted_broker_key("inter.broker.listener.name", Kind.STRING, "", "Name of the listener between brokers."),
    _broker_key("listener.security.protocol.map", Kind.LIST, ("SASL_SSL:SASL_SSL", "PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT"), "Which protocol each listener speaks."),
    _broker_key("listeners", Kind.LIST, ("PLAINTEXT://127.0.0.1:9092",), "Where Kafka clients connect: NAME://HOST:PORT; no host: every address of the machine. Empty: nowhere.", origin_note="Kafka's default is every address: PLAINTEXT://:9092."),
    _accepted_broker_key("metadata.log.max.record.bytes.between.snapshots", Kind.LONG, 20 << 20, "Bytes of metadata between two snapshots.", minimum=1),
    _broker_key("node.id", Kind.INT, -1, "This broker's number; -1: that of its log directories, 0 for new ones.", minimum=-1, origin_note="Kafka has no default and wants 0 or more."),
    _accepted_broker_key("num.io.threads", Kind.INT, 8, "Threads that process requests.", minimum=1, is_dynamic=True),
    _accepted_broker_key("num.network.threads", Kind.INT, 3, "Threads that read requests.", minimum=1, is_dynamic=True),
    _broker_key("num.partitions", Kind.INT, 1, "Partitions of a new topic that names no number of its own.", minimum=1),
    _accepted_broker_key("offsets.topic.num.partitions", Kind.INT, 50, "Partitions of the topic of committed offsets.", minimum=1),
    _accepted_broker_key("offsets.topic.replication.factor", Kind.INT, 3, "Replicas of the topic of committed offsets.", minimum=1, maximum=32_767),
    _accepted_broker_key("process.roles", Kind.LIST, (), "Roles of the process.", choices=("broker", "controller")),
    _accepted_broker_key("share.coordinator.state.topic.num.partitions", Kind.INT, 50, "Partitions of the share groups' topic.", minimum=1),
    _accepted_broker_key("share.coordinator.state.topic.min.isr", Kind.INT, 2, "In-sync replicas of the share groups' topic.", minimum=1, maximum=32_767),
    _accepted_broker_key("share.coordinator.state.topic.replication.factor", Kind.INT, 3, "Replicas of the share groups' topic.", minimum=1, maximum=32_767),
    _broker_key("socket.receive.buffer.bytes", Kind.INT, -1, "Receive buffer of a connection; -1: the system's, which grows as needed.", minimum=-1, origin_note="Kafka's default is 102400."),
    _broker_key("socket.request.max.bytes", Kind.INT, 100 << 20, "Largest request.", minimum=1),
    _broker_key("socket.send.buffer.bytes", Kind.INT, -1, "Send buffer of a connection; -1: the system's, which grows as needed.", minimum=-1, origin_note="Kafka's default is 102400."),
    _accepted_broker_key("transaction.state.log.min.isr", Kind.INT, 2, "In-sync replicas of the transactions' topic.", minimum=1),
    _accepted_broker_key("transaction.state.log.num.partitions", Kind.INT, 50, "Partitions of the transactions' topic.", minimum=1),
    _accepted_broker_key("transaction.state.log.replication.factor", Kind.INT, 3, "Replicas of the transactions' topic.", minimum=1, maximum=32_767),
)  # fmt: skip

OTHER_BROKER_NAMES = frozenset(
    """
add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms
alter.config.policy.class.name alter.log.dirs.replication.quota.window.num
alter.log.dirs.replication.quota.window.size.seconds auto.leader.rebalance.enable background.threads
broker.heartbeat.interval.ms broker.rack broker.session.timeout.ms client.quota.callback.class
config.providers connection.failed.authentication.delay.ms connections.max.reauth.ms
controlled.shutdown.enable controller.performance.always.log.threshold.ms
controller.performance.sample.period.ms controller.quorum.append.linger.ms
controller.quorum.auto.join.enable controller.quorum.election.backoff.max.ms
controller.quorum.election.timeout.ms controller.quorum.fetch.max.bytes
controller.quorum.fetch.snapshot.max.bytes controller.quorum.fetch.timeout.ms
controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms
controller.socket.timeout.ms cordoned.log.dirs
create.topic.policy.class.name default.replication.factor delegation.token.expiry.check.interval.ms
delegation.token.expiry.time.ms delegation.token.max.lifetime.ms delegation.token.secret.key
delete.records.purgatory.purge.interval.requests delete.topic.enable early.start.listeners
fetch.purgatory.purge.interval.requests follower.fetch.last.tiered.offset.enable
group.consumer.assignment.interval.ms group.consumer.assignors group.consumer.heartbeat.interval.ms
group.consumer.max.assignment.interval.ms group.consumer.max.heartbeat.interval.ms
group.consumer.max.session.timeout.ms group.consumer.max.size group.consumer.migration.policy
group.consumer.min.assignment.interval.ms group.consumer.min.heartbeat.interval.ms
group.consumer.min.session.timeout.ms group.consumer.regex.refresh.interval.ms
group.consumer.session.timeout.ms group.coordinator.append.linger.ms group.coordinator.background.threads
group.coordinator.cached.buffer.max.bytes group.coordinator.rebalance.protocols group.coordinator.threads
group.max.session.timeout.ms group.max.size group.min.session.timeout.ms group.share.assignment.interval.ms
group.share.assignors group.share.delivery.count.limit group.share.heartbeat.interval.ms
group.share.initialize.retry.interval.ms group.share.max.assignment.interval.ms
group.share.max.delivery.count.limit group.share.max.heartbeat.interval.ms
group.share.max.partition.max.record.locks group.share.max.record.lock.duration.ms
group.share.max.session.timeout.ms group.share.max.share.sessions group.share.max.size
group.share.min.assignment.interval.ms group.share.min.delivery.count.limit
group.share.min.heartbeat.interval.ms group.share.min.partition.max.record.locks
group.share.min.record.lock.duration.ms group.share.min.session.timeout.ms
group.share.partition.max.record.locks group.share.persister.class.name group.share.record.lock.duration.ms
group.share.session.timeout.ms group.streams.assignment.interval.ms group.streams.heartbeat.interval.ms
group.streams.initial.rebalance.delay.ms group.streams.max.assignment.interval.ms
group.streams.max.heartbeat.interval.ms group.streams.max.session.timeout.ms group.streams.max.size
group.streams.max.standby.replicas group.streams.min.assignment.interval.ms
group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms
group.streams.num.standby.replicas group.streams.session.timeout.ms initial.broker.registration.timeout.ms
internal.metadata.delete.delay.millis internal.metadata.log.segment.bytes
internal.metadata.max.batch.size.in.bytes kafka.metrics.polling.interval.secs kafka.metrics.reporters
leader.imbalance.check.interval.seconds log.dir.failure.timeout.ms max.connection.creation.rate
max.request.partition.size.limit metadata.log.dir
metadata.log.max.snapshot.interval.ms metadata.log.segment.bytes metadata.log.segment.ms
metadata.max.idle.interval.ms metadata.max.retention.bytes metadata.max.retention.ms metric.reporters
metrics.num.samples metrics.recording.level metrics.sample.window.ms num.replica.alter.log.dirs.threads
num.replica.fetchers offset.metadata.max.bytes offsets.commit.timeout.ms offsets.load.buffer.size
offsets.retention.check.interval.ms offsets.retention.minutes offsets.topic.compression.codec
offsets.topic.segment.bytes principal.builder.class producer.purgatory.purge.interval.requests
queued.max.requests remote.fetch.max.wait.ms
remote.list.offsets.request.timeout.ms remote.log.index.file.cache.total.size.bytes
remote.log.index.file.cache.ttl.ms remote.log.manager.copier.thread.pool.size
remote.log.manager.copy.max.bytes.per.second remote.log.manager.copy.quota.window.num
remote.log.manager.copy.quota.window.size.seconds remote.log.manager.expiration.thread.pool.size
remote.log.manager.fetch.max.bytes.per.second remote.log.manager.fetch.quota.window.num
remote.log.manager.fetch.quota.window.size.seconds remote.log.manager.follower.thread.pool.size
remote.log.manager.task.interval.ms remote.log.manager.task.retry.backoff.max.ms
remote.log.manager.task.retry.backoff.ms remote.log.manager.task.retry.jitter
remote.log.manager.thread.pool.size remote.log.metadata.custom.metadata.max.bytes
remote.log.metadata.manager.class.name remote.log.metadata.manager.class.path
remote.log.metadata.manager.impl.prefix remote.log.metadata.manager.listener.name
remote.log.reader.max.pending.tasks remote.log.reader.threads remote.log.storage.manager.class.name
remote.log.storage.manager.class.path remote.log.storage.manager.impl.prefix
remote.log.storage.system.enable replica.fetch.backoff.ms replica.fetch.max.bytes replica.fetch.min.bytes
replica.fetch.response.max.bytes replica.fetch.wait.max.ms replica.high.watermark.checkpoint.interval.ms
replica.lag.time.max.ms replica.selector.class replica.socket.receive.buffer.bytes replica.socket.timeout.ms
replication.quota.window.num replication.quota.window.size.seconds request.timeout.ms
sasl.client.callback.handler.class sasl.enabled.mechanisms sasl.jaas.config sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.principal.to.local.rules sasl.kerberos.service.name
sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class
sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism.controller.protocol
sasl.mechanism.inter.broker.protocol sasl.oauthbearer.assertion.algorithm
sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope
sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url
sasl.server.callback.handler.class sasl.server.max.receive.size security.inter.broker.protocol
security.providers server.max.startup.time.ms share.coordinator.append.linger.ms
share.coordinator.cached.buffer.max.bytes share.coordinator.cold.partition.snapshot.interval.ms
share.coordinator.load.buffer.size share.coordinator.snapshot.update.records.per.snapshot
share.coordinator.state.topic.compression.codec share.coordinator.state.topic.prune.interval.ms
share.coordinator.state.topic.segment.bytes share.coordinator.threads share.coordinator.write.timeout.ms
share.fetch.purgatory.purge.interval.requests socket.connection.setup.timeout.max.ms
socket.connection.setup.timeout.ms ssl.allow.dn.changes ssl.allow.san.changes ssl.cipher.suites
ssl.client.auth ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.engine.factory.class
ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key
ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.principal.mapping.rules ssl.protocol
ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates
ssl.truststore.location ssl.truststore.password ssl.truststore.type telemetry.max.bytes
transaction.abort.timed.out.transaction.cleanup.interval.ms transaction.max.timeout.ms
transaction.partition.verification.enable transaction.remove.expired.transaction.cleanup.interval.ms
transaction.state.log.load.buffer.size transaction.state.log.segment.bytes
transaction.two.phase.commit.enable transactional.id.expiration.ms unclean.leader.election.interval.ms
unstable.api.versions.enable unstable.feature.versions.enable
""".split()
)
"""Kafka 4.3's other settings of brokers, which have no effect here: only their names are known, so any value is
accepted. (An accepted row of ``BROKER_KEYS`` has a type, a range and a default, too.) An unknown name that is
none of these may be a typing error."""

ALL_KEYS: tuple[Key, ...] = (*TOPIC_KEYS, *BROKER_KEYS)
