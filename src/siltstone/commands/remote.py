"""Reads and changes topics, settings and offsets of a running broker with Kafka's protocol
(``--bootstrap-server``). The results have the types of those that the commands get from log directories.
Records are read and appended in ``remote_records``.

::

    siltstone topics --bootstrap-server HOST:PORT --describe ─► RemoteBroker ─ confluent-kafka ─► the broker

The broker may be Siltstone's or Kafka's. Its responses have no sizes and no directories of partitions. Of
several synonyms of a setting with one name, librdkafka keeps the last one only.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from siltstone.base import errors
from siltstone.base.config import ConfigSource as Source
from siltstone.base.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    LogError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    SiltstoneError,
    TopicExistsError,
    UnknownTopicError,
    UsageError,
)
from siltstone.commands.directories import LIST_TOPICS
from siltstone.commands.offsets import PartitionOffset
from siltstone.commands.topics import (
    EffectiveSetting,
    PartitionDescription,
    SettingsChange,
    TopicChange,
    matching_topics,
    parse_assignments,
    refuse_missing_removals,
)
from siltstone.log.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP
from siltstone.log.names import TopicPartition
from siltstone.runtime.topics import TopicDescription, refuse_fewer_partitions

ANSWER_SECONDS = 30.0
"""How long a response may take."""
CHANGED_SECONDS = 10.0
"""How long a broker may take to show a change after it has answered."""
_CHECK_SECONDS = 0.05
"""The pause before the broker is asked again whether it shows the change."""
_SET_SOURCES = tuple(
    source.value
    for source in (
        ConfigSource.DYNAMIC_TOPIC_CONFIG,
        ConfigSource.DYNAMIC_BROKER_CONFIG,
        ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
        ConfigSource.STATIC_BROKER_CONFIG,
    )
)
"""The sources of a value that was set; a default is none of them."""
_UNCERTAIN = (KafkaError.REQUEST_TIMED_OUT, KafkaError.NETWORK_EXCEPTION)
"""Errors of a broker after which it may still make the change."""
_Answer = TypeVar("_Answer")
_OWN = Source.DYNAMIC_TOPIC_CONFIG.value
"""The source of a topic's own settings."""
_OFFSET_SPECS: dict[int, Callable[[], OffsetSpec]] = {
    LATEST_TIMESTAMP: OffsetSpec.latest,
    EARLIEST_TIMESTAMP: OffsetSpec.earliest,
    MAX_TIMESTAMP: OffsetSpec.max_timestamp,
}
_BY_CODE: dict[int, type[LogError]] = {
    kind.error_code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, LogError) and kind.error_code > 0
}
"""The error that a log raises for each of Kafka's codes."""


@contextlib.contextmanager
def translated_errors(path: str | None = None) -> Iterator[None]:
    """A client's error as the error that a directory would raise; ``path``: the topic, partition or broker of
    the request, for the error. A request that the client refuses to send is a UsageError."""
    try:
        yield
    except KafkaException as error:
        raise error_of(error.args[0], path) from error
    except TimeoutError as error:
        raise BrokerUnreachableError("the broker does not answer") from error
    except (ValueError, OverflowError) as error:
        # Before it sends a request, the client checks names and numbers: for a count of partitions of 2^31.
        advice = "nothing was sent; correct the names and numbers on the command line"
        path = path if path is None or path.isprintable() else repr(path)
        raise UsageError(f"the client refuses the request: {error}", path=path, advice=advice) from error


def error_of(error: KafkaError, path: str | None = None) -> SiltstoneError:
    """The error that a directory would raise."""
    code, reason = error.code(), error.str().rstrip(".")
    if code == UnknownTopicError.error_code:
        return UnknownTopicError("there is no such topic or partition", path=path, advice=LIST_TOPICS)
    if code in _BY_CODE:
        # "Broker: …" is librdkafka's general text for a code, sent by no broker, and names no topic. The
        # broker's own error message does.
        is_general = reason.startswith("Broker: ")
        text, named = (reason.removeprefix("Broker: "), path) if is_general else (reason, None)
        return _BY_CODE[code](text, path=named, advice="")
    if code in (KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE):
        return BrokerRefusedError("the broker has no such API", path=path, advice="ask another broker")
    if is_uncertain(code):
        return BrokerUnreachableError(reason)
    return BrokerRefusedError(f"{reason} ({error.name()})", path=path)


def is_uncertain(code: int) -> bool:
    """Is it unknown whether the broker has carried out the request? So it is after an error of the client,
    which has a negative code, and after ``_UNCERTAIN``."""
    return code < 0 or code in _UNCERTAIN


def answer(future: Future[_Answer]) -> _Answer:
    """The result of a client's request. Raises KafkaException; TimeoutError if none comes in time: the
    client itself gives up after ``ANSWER_SECONDS``, so this only ends a wait for a client that hangs."""
    return future.result(ANSWER_SECONDS + 5)


class RemoteBroker:
    """A running broker. ``config``: the client's settings, as librdkafka names them; ``client``: asks it."""

    def __init__(self, bootstrap_server: str, config: Mapping[str, str]) -> None:
        self.config = {"log_level": "0", **config, "bootstrap.servers": bootstrap_server}
        with translated_errors():
            self.client = AdminClient(dict(self.config))

    # Topics

    def names(self) -> list[str]:
        """All topics, in order of name. Raises BrokerUnreachableError."""
        with translated_errors():
            return sorted(self.client.list_topics(timeout=ANSWER_SECONDS).topics)

    def topic(self, name: str) -> TopicDescription:
        """A topic with its own settings. Raises UnknownTopicError, BrokerUnreachableError."""
        described = self._described([name])[name]
        return TopicDescription(
            name=name,
            topic_id=_id_of(described),
            partitions=tuple(sorted(partition.id for partition in described.partitions)),
            config=self.own_settings([name])[name],
            offline=(),
            is_registered=False,
        )

    def _described(self, names: Sequence[str]) -> dict[str, Any]:
        described = {}
        for name in names:
            # No broker has such a topic, and the client ends the process for a name that UTF-8 cannot encode.
            if not name or not name.isprintable():
                raise UnknownTopicError("there is no such topic", path=repr(name), advice=LIST_TOPICS)
            with translated_errors(name):
                topics = TopicCollection([name])
                futures = self.client.describe_topics(topics, request_timeout=ANSWER_SECONDS)
                described[name] = answer(futures[name])
        return described

    def _described_or_none(self, name: str) -> Any:
        """A topic's description, None if the broker does not know it."""
        try:
            return self._described([name])[name]
        except UnknownTopicError:
            return None

    def describe(self, name: str) -> tuple[TopicDescription, list[PartitionDescription]]:
        """A topic and its partitions. Raises UnknownTopicError, BrokerUnreachableError."""
        topic, described = self.topic(name), self._described([name])[name]
        wanted = [TopicPartition(name, number) for number in topic.partitions]
        starts, ends = self.offsets(wanted, EARLIEST_TIMESTAMP), self.offsets(wanted, LATEST_TIMESTAMP)
        partitions = []
        for partition in sorted(described.partitions, key=lambda partition: int(partition.id)):
            topic_partition = TopicPartition(name, partition.id)
            partitions.append(
                PartitionDescription(
                    partition=partition.id,
                    directory=None,
                    leader=-1 if partition.leader is None else partition.leader.id,
                    replicas=[node.id for node in partition.replicas],
                    isr=[node.id for node in partition.isr],
                    log_start_offset=starts[topic_partition].offset,
                    log_end_offset=ends[topic_partition].offset,
                    high_watermark=ends[topic_partition].offset,
                    failure=starts[topic_partition].failure or ends[topic_partition].failure,
                )
            )
        return topic, partitions

    def create_topic(
        self,
        name: str,
        partitions: int | None,
        config: Mapping[str, str],
        *,
        if_not_exists: bool = False,
        dry_run: bool = False,
    ) -> TopicChange:
        """Create a topic. Raises LogError with Kafka's code, BrokerUnreachableError."""
        if if_not_exists and name in self.names():
            return TopicChange(topic=name, status="exists")
        with translated_errors(name):
            topic = NewTopic(
                name,
                num_partitions=-1 if partitions is None else partitions,
                replication_factor=-1,
                config=dict(config),
            )
            options = {"request_timeout": ANSWER_SECONDS, "validate_only": dry_run}
            try:
                answer(self.client.create_topics([topic], **options)[name])
            except KafkaException as error:
                # Another program has created it since ``names`` was asked.
                if not if_not_exists or error.args[0].code() != TopicExistsError.error_code:
                    raise
                return TopicChange(topic=name, status="exists")
        if dry_run:
            count = partitions or int(self._broker_setting("num.partitions"))
            return TopicChange(topic=name, status="created", partitions=count, config=config)
        described = _wait_until(lambda shown: shown is not None, lambda: self._described_or_none(name))
        if described is None:
            raise UnknownTopicError(
                "the topic is created, but the broker does not show it yet",
                path=name,
                advice="siltstone topics --describe shows when it does",
            )
        return TopicChange(
            topic=name,
            status="created",
            topic_id=_id_of(described),
            partitions=len(described.partitions),
            config=config,
        )

    def _broker_setting(self, name: str) -> str:
        """A setting of the broker."""
        settings = {setting.name: setting.value for setting in self.settings_of_broker(everything=True)[1]}
        return settings[name]

    def add_partitions(
        self, pattern: str, count: int, *, if_exists: bool = False, dry_run: bool = False
    ) -> list[TopicChange]:
        """Raise the number of partitions of topics to ``count``. Raises LogError, BrokerUnreachableError."""
        names = matching_topics(self.names(), pattern, if_exists=if_exists)
        for name in names:
            refuse_fewer_partitions(name, len(self.topic(name).partitions), count)
        for name in names:
            with translated_errors(name):
                options = {"request_timeout": ANSWER_SECONDS, "validate_only": dry_run}
                answer(self.client.create_partitions([NewPartitions(name, count)], **options)[name])
        return [TopicChange(topic=name, status="altered", partitions=count) for name in names]

    def delete_topics(
        self, pattern: str, *, if_exists: bool = False, dry_run: bool = False
    ) -> list[TopicChange]:
        """Delete topics. Raises LogError, BrokerUnreachableError."""
        names = matching_topics(self.names(), pattern, if_exists=if_exists)
        counts = {name: len(self.topic(name).partitions) for name in names}
        for name in [] if dry_run else names:
            with translated_errors(name):
                answer(self.client.delete_topics([name], request_timeout=ANSWER_SECONDS)[name])
        return [TopicChange(topic=name, status="deleted", partitions=counts[name]) for name in names]

    # Settings

    def _entries(self, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
        with translated_errors(name):
            resource = ConfigResource(kind, name)
            (future,) = self.client.describe_configs([resource], request_timeout=ANSWER_SECONDS).values()
            return answer(future)

    def own_settings(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """The own settings of topics: name → text. Raises UnknownTopicError, BrokerUnreachableError."""
        return {
            name: {setting.name: setting.value for setting in self.settings_of_topic(name, everything=False)}
            for name in names
        }

    def settings_of_topic(self, name: str, *, everything: bool) -> list[EffectiveSetting]:
        """A topic's own settings, or all, sorted by name. Raises UnknownTopicError,
        BrokerUnreachableError."""
        settings = _effective(self._entries(ResourceType.TOPIC, name))
        return [setting for setting in settings if everything or setting.source == _OWN]

    def settings_of_broker(
        self, number: str | None = None, *, everything: bool, of_all: bool = False
    ) -> tuple[str, list[EffectiveSetting]]:
        """(the broker's number, the settings that were set for it, or all of its settings). ``number``: None
        for ``broker_id``. ``of_all``: ("", what was set at run time for all brokers) instead. Raises
        BrokerUnreachableError, BrokerRefusedError."""
        number = number or self.broker_id()
        entries = self._entries(ResourceType.BROKER, number)
        if of_all:
            return "", _set_for_all(entries)
        default = Source.DEFAULT_CONFIG.value
        return number, [setting for setting in _effective(entries) if everything or setting.source != default]

    def broker_id(self) -> str:
        """The lowest broker id of the cluster. Raises BrokerUnreachableError."""
        with translated_errors():
            return str(min(self.client.list_topics(timeout=ANSWER_SECONDS).brokers))

    def alter_topic_settings(
        self, name: str, additions: Sequence[str], removals: Sequence[str], *, dry_run: bool = False
    ) -> SettingsChange:
        """Set and remove a topic's own settings. Raises InvalidConfigError, UnknownTopicError,
        BrokerUnreachableError."""
        new = parse_assignments(additions, "--add-config")
        before = self.own_settings([name])[name]
        refuse_missing_removals(name, before, removals)
        self._alter(ResourceType.TOPIC, name, new, removals, dry_run=dry_run)
        after = {**{key: text for key, text in before.items() if key not in removals}, **new}
        if not dry_run and after != before:
            after = _wait_until(lambda shown: shown != before, lambda: self.own_settings([name])[name])
        return SettingsChange(name=name, before=before, after=after)

    def alter_broker_settings(
        self, number: str, new: Mapping[str, str], removals: Sequence[str], *, dry_run: bool = False
    ) -> SettingsChange:
        """Set and remove settings of a broker at run time. Raises BrokerRefusedError, InvalidConfigError,
        BrokerUnreachableError."""
        before = self._set_at_run_time(number)
        self._alter(ResourceType.BROKER, number, new, removals, dry_run=dry_run)
        after = {**{key: text for key, text in before.items() if key not in removals}, **new}
        if not dry_run and after != before:
            after = _wait_until(lambda shown: shown != before, lambda: self._set_at_run_time(number))
        return SettingsChange(name=number, before=before, after=after)

    def _set_at_run_time(self, number: str) -> dict[str, str]:
        dynamic = Source.DYNAMIC_BROKER_CONFIG
        settings = _effective(self._entries(ResourceType.BROKER, number))
        return {setting.name: setting.value for setting in settings if setting.source == dynamic.value}

    def _alter(
        self,
        kind: ResourceType,
        name: str,
        new: Mapping[str, str],
        removals: Sequence[str],
        *,
        dry_run: bool,
    ) -> None:
        set_, delete = AlterConfigOpType.SET, AlterConfigOpType.DELETE
        entries = [ConfigEntry(key, text, incremental_operation=set_) for key, text in new.items()]
        entries += [ConfigEntry(key, None, incremental_operation=delete) for key in removals]
        with translated_errors(name or None):
            resource = ConfigResource(kind, name, incremental_configs=entries)
            options = {"request_timeout": ANSWER_SECONDS, "validate_only": dry_run}
            (future,) = self.client.incremental_alter_configs([resource], **options).values()
            answer(future)

    # Offsets

    def offsets(
        self, wanted: Sequence[TopicPartition], time: int, *, committed: bool = False
    ) -> dict[TopicPartition, PartitionOffset]:
        """The offset of each partition for a time (ms, or Kafka's -1 to -3); one that is refused has the
        failure. ``committed``: LATEST is the last stable offset, not the high watermark."""
        return {
            topic_partition: PartitionOffset(
                topic_partition=topic_partition, offset=None, failure=str(offset)
            )
            if isinstance(offset, SiltstoneError)
            else PartitionOffset(topic_partition=topic_partition, offset=offset)
            for topic_partition, offset in self._listed_offsets(wanted, time, committed=committed).items()
        }

    def known_offsets(
        self, wanted: Sequence[TopicPartition], time: int, *, committed: bool = False
    ) -> dict[TopicPartition, int | None]:
        """The offset of each partition for a time, None if no record is that late. Raises the error of the
        first partition that is refused: SiltstoneError."""
        offsets = dict[TopicPartition, int | None]()
        for topic_partition, offset in self._listed_offsets(wanted, time, committed=committed).items():
            if isinstance(offset, SiltstoneError):
                raise offset
            offsets[topic_partition] = offset
        return offsets

    def _listed_offsets(
        self, wanted: Sequence[TopicPartition], time: int, *, committed: bool
    ) -> dict[TopicPartition, int | SiltstoneError | None]:
        """The offset of each partition, None if no record is that late, or the error of a refused one."""
        if not wanted:
            return {}
        spec = _spec(time)
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        asked = {
            ClientPartition(topic_partition.topic, topic_partition.partition): spec
            for topic_partition in wanted
        }
        with translated_errors():
            futures = self.client.list_offsets(asked, request_timeout=ANSWER_SECONDS, isolation_level=level)
        offsets = dict[TopicPartition, int | SiltstoneError | None]()
        for client_partition, future in futures.items():
            topic_partition = TopicPartition(client_partition.topic, client_partition.partition)
            try:
                with translated_errors(str(topic_partition)):
                    offset = answer(future).offset
            except SiltstoneError as error:
                offsets[topic_partition] = error
            else:
                offsets[topic_partition] = None if offset < 0 else offset
        return {topic_partition: offsets[topic_partition] for topic_partition in wanted}

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, dry_run: bool = False
    ) -> list[PartitionOffset]:
        """Raise the start of each log to its offset (-1: the high watermark). The failure of a log is in its
        result."""
        results, unreachable = [], None
        for topic_partition, offset in offsets.items():
            try:
                if unreachable is not None:
                    raise unreachable  # the broker is not asked again: each request would wait as long
                start = (
                    self._new_start(topic_partition, offset)
                    if dry_run
                    else self._delete(topic_partition, offset)
                )
                results.append(PartitionOffset(topic_partition=topic_partition, offset=start))
            except SiltstoneError as error:
                failure = f"{error} ({error.code})"
                results.append(PartitionOffset(topic_partition=topic_partition, offset=None, failure=failure))
                unreachable = error if isinstance(error, BrokerUnreachableError) else None
        return results

    def _delete(self, topic_partition: TopicPartition, offset: int) -> int:
        self._refuse_missing(topic_partition)
        with translated_errors(str(topic_partition)):
            wanted = ClientPartition(topic_partition.topic, topic_partition.partition, offset)
            (future,) = self.client.delete_records([wanted], request_timeout=ANSWER_SECONDS).values()
            return int(answer(future).low_watermark)

    def _refuse_missing(self, topic_partition: TopicPartition) -> None:
        if topic_partition.partition not in self.topic(topic_partition.topic).partitions:
            raise UnknownTopicError(
                "there is no such topic or partition", path=str(topic_partition), advice=LIST_TOPICS
            )

    def _new_start(self, topic_partition: TopicPartition, offset: int) -> int:
        """The start that a deletion would leave. Raises the same errors."""
        self._refuse_missing(topic_partition)
        listed = self.settings_of_topic(topic_partition.topic, everything=True)
        settings = {setting.name: setting.value for setting in listed}
        if settings["cleanup.policy"] == "compact":
            reason = "records of a topic with cleanup.policy=compact cannot be deleted"
            raise PolicyViolationError(reason, path=str(topic_partition))
        start = self.known_offsets([topic_partition], EARLIEST_TIMESTAMP)[topic_partition] or 0
        end = self.known_offsets([topic_partition], LATEST_TIMESTAMP)[topic_partition] or 0
        target = end if offset == -1 else offset
        if not 0 <= target <= end:
            reason = f"offset {offset} is outside 0 to {end}, the log's end"
            raise OffsetOutOfRangeError(
                reason, path=str(topic_partition), advice="pass an offset up to the end, or -1"
            )
        return max(target, start)


def _wait_until(holds: Callable[[_Answer], bool], read: Callable[[], _Answer]) -> _Answer:
    """Call ``read`` until ``holds`` is true of its result, for at most ``CHANGED_SECONDS``; the last result.
    (A Kafka answers a change when the controller has it; the broker shows it a moment later.)"""
    deadline = time.monotonic() + CHANGED_SECONDS
    while not holds(value := read()) and time.monotonic() < deadline:
        time.sleep(_CHECK_SECONDS)
    return value


def _id_of(described: Any) -> str:
    """A topic's id as Kafka writes it: URL-safe base64; the client has the other alphabet."""
    return str(described.topic_id).replace("+", "-").replace("/", "_").rstrip("=")


def _spec(time: int) -> OffsetSpec:
    if time in _OFFSET_SPECS:
        return _OFFSET_SPECS[time]()
    spec: OffsetSpec = OffsetSpec.for_timestamp(time)
    return spec


def _set_for_all(entries: Mapping[str, ConfigEntry]) -> list[EffectiveSetting]:
    """The settings of all brokers that were changed at run time: a source of a broker's settings. (The client
    cannot ask for them alone.)"""
    of_all = Source.DYNAMIC_DEFAULT_BROKER_CONFIG.value
    return [
        EffectiveSetting(name=name, value=value, source=source, synonyms=((source, name, value),))
        for setting in _effective(entries)
        for source, name, value in setting.synonyms
        if source == of_all and name == setting.name
    ]


def _effective(entries: Mapping[str, ConfigEntry]) -> list[EffectiveSetting]:
    """Settings that have a value, sorted by name."""
    return [
        EffectiveSetting(
            name=name,
            value=entry.value,
            source=ConfigSource(entry.source).name,
            synonyms=_synonyms(name, entry),
        )
        for name, entry in sorted(entries.items())
        if entry.value is not None
    ]


def _synonyms(name: str, entry: ConfigEntry) -> tuple[tuple[str, str, str], ...]:
    """All sources, strongest first: of several of one name the client has the last one only, and the
    strongest is the setting's own."""
    synonyms = [
        (ConfigSource(synonym.source).name, synonym.name, str(synonym.value))
        for synonym in entry.synonyms.values()
    ]
    strongest = ConfigSource(entry.source).name, name, str(entry.value)
    # A value that a topic inherits from its broker is not missing: it is a synonym by the broker's name.
    is_missing = entry.source in _SET_SOURCES and strongest[0] not in {source for source, *_ in synonyms}
    return (*([strongest] if is_missing else []), *synonyms)
