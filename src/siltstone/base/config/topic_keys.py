"""The settings that a topic can have: Kafka 4's ``TopicConfig``, and Siltstone's own. One row each.

A row: name, type, default, what it does, the broker's names (best first), range.
"""

from __future__ import annotations

from typing import Any

from siltstone.base.codec_table import CODECS, COMPRESSION_TYPES, Levels
from siltstone.base.config.keys import LONG_MAX, Key, Kind, Level, Synonym, Value

_HOUR = 3_600_000
_MINUTE = 60_000


def _key(name: str, kind: Kind, default: Value, doc: str, *broker_names: str | Synonym, **more: Any) -> Key:
    synonyms = tuple(Synonym(name=each) if isinstance(each, str) else each for each in broker_names)
    level = Level.BOTH if synonyms else Level.TOPIC
    return Key(name=name, kind=kind, default=default, doc=doc, level=level, synonyms=synonyms, **more)


def _accepted(
    name: str, kind: Kind, default: Value, doc: str, *broker_names: str | Synonym, **more: Any
) -> Key:
    return _key(name, kind, default, doc, *broker_names, used=False, **more)


def _hours(name: str, least: int | None = None) -> Synonym:
    return Synonym(name=name, unit=_HOUR, kind=Kind.INT, least=least, dynamic=False)


def _level(codec: str, levels: Levels) -> Key:
    name, bounds = f"compression.{codec}.level", {"least": levels.least, "most": levels.most}
    return _key(name, Kind.INT, levels.default, levels.doc, name, refused=levels.refused, **bounds)


_TIMES = ("CreateTime", "LogAppendTime")
_TIERED = "For tiered storage; logs that have it are left alone."
_REPLICAS = "For several brokers."

_ROWS = (
    _key("cleanup.policy", Kind.LIST, ("delete",), "What goes from the log: old segments (delete), all but the last record of a key (compact), both, or nothing (empty).", "log.cleanup.policy", choices=("delete", "compact")),
    _key("compactionThreshold", Kind.LONG, 0, "More bytes than this above what was compacted start a compaction beside the originals; 0: never.", "brokerServiceCompactionThresholdInBytes", least=0,
         kafka="Pulsar's. A namespace's policy of this name counts where neither the topic nor the broker says anything."),
    *(_level(codec.name, codec.levels) for codec in CODECS if codec.levels is not None),
    _key("compression.type", Kind.STRING, "producer", "Codec that batches are stored with; producer: as they came.", "compression.type", choices=COMPRESSION_TYPES),
    _key("delete.retention.ms", Kind.LONG, 86_400_000, "How long a tombstone stays once a cleaning has met it.", "log.cleaner.delete.retention.ms", least=0),
    _accepted("errors.deadletterqueue.group.enable", Kind.BOOLEAN, False, "For share groups."),
    _key("file.delete.delay.ms", Kind.LONG, 60_000, "How long the files of a removed segment stay, as .deleted.", "log.segment.delete.delay.ms", least=0),
    _key("flush.messages", Kind.LONG, LONG_MAX, "Records after which the log is synced to disk.", "log.flush.interval.messages", least=1),
    _key("flush.ms", Kind.LONG, LONG_MAX, "Time after which what was appended is synced to disk.", "log.flush.interval.ms", Synonym(name="log.flush.scheduler.interval.ms", dynamic=False), least=0),
    _accepted("follower.replication.throttled.replicas", Kind.LIST, (), _REPLICAS),
    _key("index.interval.bytes", Kind.INT, 4096, "Bytes of log between two entries of the offset index.", "log.index.interval.bytes", least=0),
    _accepted("leader.replication.throttled.replicas", Kind.LIST, (), _REPLICAS),
    _accepted("local.retention.bytes", Kind.LONG, -2, _TIERED, "log.local.retention.bytes", least=-2),
    _accepted("local.retention.ms", Kind.LONG, -2, _TIERED, "log.local.retention.ms", least=-2),
    _key("max.compaction.lag.ms", Kind.LONG, LONG_MAX, "A record stays uncleaned at most this long, whatever the dirty ratio.", "log.cleaner.max.compaction.lag.ms", least=1),
    _key("max.decompressed.message.bytes", Kind.INT, 256 << 20, "Most bytes that one batch may decompress to; a log with a larger one is uncleanable (docs/operating.md).", "max.decompressed.message.bytes", least=1, kafka="Siltstone's own: a small batch must not be able to fill the memory; what several batches take together is bounded without it."),
    _key("max.message.bytes", Kind.INT, 1_048_588, "Largest batch that may be appended, as stored.", "message.max.bytes", least=0),
    _accepted("message.downconversion.enable", Kind.BOOLEAN, True, "For readers of old formats.", "log.message.downconversion.enable", kafka="Gone in Kafka 4."),
    _accepted("message.format.version", Kind.STRING, "3.0-IV1", "Format that records are written in.", "log.message.format.version", kafka="Gone in Kafka 4."),
    _key("message.timestamp.after.max.ms", Kind.LONG, _HOUR, "How far ahead of the clock a producer's timestamp may be.", "log.message.timestamp.after.max.ms", least=0),
    _key("message.timestamp.before.max.ms", Kind.LONG, LONG_MAX, "How far behind the clock a producer's timestamp may be.", "log.message.timestamp.before.max.ms", least=0),
    _accepted("message.timestamp.difference.max.ms", Kind.LONG, LONG_MAX, "Once the name of both limits.", "log.message.timestamp.difference.max.ms", least=0, kafka="Gone in Kafka 4."),
    _key("message.timestamp.type", Kind.STRING, "CreateTime", "Whose time a record carries: its producer's or that of the append.", "log.message.timestamp.type", choices=_TIMES),
    _key("min.cleanable.dirty.ratio", Kind.DOUBLE, 0.5, "A log is cleaned once more than this share of its bytes is dirty.", "log.cleaner.min.cleanable.ratio", least=0, most=1),
    _key("min.compaction.lag.ms", Kind.LONG, 0, "A record stays uncleaned at least this long.", "log.cleaner.min.compaction.lag.ms", least=0),
    _accepted("min.insync.replicas", Kind.INT, 1, _REPLICAS, "min.insync.replicas", least=1),
    _key("preallocate", Kind.BOOLEAN, False, "Whether a new segment's file gets its full size at once.", "log.preallocate"),
    _accepted("remote.copy.lag.bytes", Kind.LONG, 0, _TIERED, least=-1),
    _accepted("remote.copy.lag.ms", Kind.LONG, 0, _TIERED, least=-1),
    _accepted("remote.log.copy.disable", Kind.BOOLEAN, False, _TIERED),
    _accepted("remote.log.delete.on.disable", Kind.BOOLEAN, False, _TIERED),
    _key("remote.storage.enable", Kind.BOOLEAN, False, "Marks a log with tiered storage: it is left alone."),
    _key("retention.bytes", Kind.LONG, -1, "Size of the log over which its oldest segments go (policy delete); -1: no limit.", "log.retention.bytes", negative_is_unlimited=True),
    _key("retention.ms", Kind.LONG, 7 * 24 * _HOUR, "Age over which segments go (policy delete); -1: no limit.",
         Synonym(name="log.retention.ms", least=1),
         Synonym(name="log.retention.minutes", unit=_MINUTE, kind=Kind.INT, least=1, dynamic=False),
         _hours("log.retention.hours", 1),
         least=-1),
    _key("segment.bytes", Kind.INT, 1 << 30, "Size at which a segment is full, and of a group that is cleaned into one.", "log.segment.bytes", aliases=("internal.segment.bytes",), least=1,
         kafka="Kafka refuses less than 1 MiB here and takes small sizes only as internal.segment.bytes. Tests and small machines want small segments, so both names take them; where both are given, internal.segment.bytes wins, as in Kafka."),
    _key("segment.index.bytes", Kind.INT, 10 << 20, "Largest size of an index; a full one rolls the segment.", "log.index.size.max.bytes", least=4),
    _key("segment.jitter.ms", Kind.LONG, 0, "Most that is taken off segment.ms by chance, so that logs do not all roll at once.", "log.roll.jitter.ms", _hours("log.roll.jitter.hours", 0), least=0),
    _key("segment.ms", Kind.LONG, 7 * 24 * _HOUR, "Age at which a segment is rolled although it is not full.", "log.roll.ms", _hours("log.roll.hours", 1), least=1),
    _key("siltstone.compaction.order", Kind.STRING, "offset", "Whether the compacted view keeps the last record of a key by its offset, or the one with the latest timestamp.", choices=("offset", "time"), kafka="Siltstone's own. By time: of equal timestamps the last offset; an older record that comes late replaces no newer one, and brings no deleted key back."),
    _key("siltstone.retention.policy", Kind.STRING, "kafka", "Name of the function that says which old segments go (policy delete); kafka: by retention.bytes and retention.ms.", kafka="Siltstone's own: deletion policies are plain functions, registered under a name by siltstone.register_policy."),
    _key("topicCompactionRetainNullKey", Kind.BOOLEAN, False, "Whether the compacted view keeps records without a key.", "topicCompactionRetainNullKey", kafka="Pulsar's."),
    _accepted("unclean.leader.election.enable", Kind.BOOLEAN, False, _REPLICAS, "unclean.leader.election.enable"),
)  # fmt: skip

TOPIC_KEYS = tuple(sorted(_ROWS, key=lambda key: key.name))
"""By name."""
