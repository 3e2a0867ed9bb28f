"""What holds for each topic of a KRaft broker: its own settings, over this broker's, over all brokers'.

    DYNAMIC_TOPIC_CONFIG           the topic's settings in the metadata log
    DYNAMIC_BROKER_CONFIG          those of the broker with ``node.id``
    DYNAMIC_DEFAULT_BROKER_CONFIG  those of all brokers
    STATIC_BROKER_CONFIG           its ``server.properties``, where that was handed in

The sources of settings are named by these words. Where one of a topic's own settings has a bad value, nothing
is known of that topic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from siltstone import files
from siltstone.config import Config, Setting, Source, parse_stored_config
from siltstone.config.resolve import Given
from siltstone.errors import DirectoryRefusedError
from siltstone.log.checkpoints import read_topic_id
from siltstone.log.cluster.image import ALL_BROKERS, BROKER, TOPIC, ClusterImage
from siltstone.log.cluster.metadata_log import read_cluster_metadata
from siltstone.log.directory import LogDirectory
from siltstone.log.names import CLUSTER_METADATA, TopicPartition

METADATA_PARTITION = TopicPartition(CLUSTER_METADATA, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Topics, ids and settings, out of ``image``. ``broker``: what holds for a topic without its own."""

    path: Path
    image: ClusterImage
    broker: Config = field(default_factory=Config)

    @classmethod
    def of(
        cls, path: Path, image: ClusterImage, *, node_id: str | None, static: Given | None = None
    ) -> ClusterSettings:
        """Settings as broker ``node_id`` sees them. Raises UsageError for a bad value of a broker's."""

        def broker(name: str, origin: Source) -> dict[str, Setting]:
            given = image.settings_of(BROKER, name)
            return _in_kafkas_words(parse_stored_config(given, f"{path}: broker {name!r}", origin))

        config = Config(
            broker={} if node_id is None else broker(node_id, Source.DYNAMIC_BROKER_CONFIG),
            broker_default=broker(ALL_BROKERS, Source.DYNAMIC_DEFAULT_BROKER_CONFIG),
            static=_in_kafkas_words(static or {}),
            default_source=Source.DEFAULT_CONFIG.value,
        )
        return cls(path=path, image=image, broker=config)

    def topic_id(self, topic: str) -> str | None:
        """The id of the topic that has this name now, None where there is no such topic."""
        return self.image.topics.get(topic)

    def why_a_stranger(self, topic: str, directory: Path) -> str | None:
        """Why a directory is no partition of the topic that has its name, None where it is one.

        Raises CorruptFileError for a ``partition.metadata`` that makes no sense.
        """
        known = self.topic_id(topic)
        if known is None:
            return f"{self.path} knows no topic of this name: it was deleted"
        found = read_topic_id(directory)
        if found is None:
            return f"it has no partition.metadata that would tell whether it is of the topic with id {known}"
        if found != known:
            return (
                f"its topic id is {found}, but {self.path} has {known}: left over from a deleted topic "
                "of the same name"
            )
        return None

    def own_texts(self, topic: str) -> dict[str, str]:
        """The topic's own settings as the metadata has them, every one."""
        return dict(self.image.settings_of(TOPIC, topic))

    def own(self, topic: str) -> dict[str, Setting]:
        """Those of them that are known here. Raises UsageError for a bad value of one that is used."""
        source = f"{self.path}: topic {topic}"
        return parse_stored_config(self.own_texts(topic), source, Source.DYNAMIC_TOPIC_CONFIG)

    def broker_in_force(self, config: Config) -> Config:
        """A broker's ``config`` with what was set for it at run time; what it has itself wins."""
        for origin in (Source.DYNAMIC_BROKER_CONFIG, Source.DYNAMIC_DEFAULT_BROKER_CONFIG):
            config = config.replacing(origin, {**self.broker.given(origin), **config.given(origin)})
        return config

    def config_of(self, topic: str, broker: Config | None = None) -> Config:
        """What holds for a topic; ``broker``: the broker's settings where others than its own here.

        Raises UsageError for a bad value of a setting that is used.
        """
        broker = self.broker if broker is None else broker
        return broker.replacing(Source.DYNAMIC_TOPIC_CONFIG, _in_kafkas_words(self.own(topic)))


def _in_kafkas_words(given: Given) -> dict[str, Setting]:
    return {name: replace(setting, source=setting.origin.value) for name, setting in given.items()}


def node_id_of(directories: Iterable[LogDirectory]) -> str | None:
    """The number of the broker that the directories belong to, by ``meta.properties``."""
    for directory in directories:
        found = directory.properties()
        number = found.get("node.id") or found.get("broker.id")
        if number:
            return number
    return None


def metadata_directory(directories: Iterable[LogDirectory]) -> LogDirectory | None:
    """The one of a broker's log directories that the metadata log lies in, None where it is in none.

    Raises DirectoryRefusedError where it lies in two.
    """
    found = {
        each.path: each for each in directories if files.is_directory(each.path / str(METADATA_PARTITION))
    }
    if len(found) > 1:
        raise DirectoryRefusedError(
            f"{METADATA_PARTITION} is in {' and in '.join(map(str, found))}; remove the stray one"
        )
    return next(iter(found.values()), None)


def read_cluster_settings(
    directory: LogDirectory, *, node_id: str | None, static: Given | None = None
) -> ClusterSettings:
    """The settings out of the metadata log in ``directory``. Raises CorruptFileError, UsageError, OSError."""
    path = directory.path / str(METADATA_PARTITION)
    image = read_cluster_metadata(
        path,
        high_watermark=directory.checkpoints().high_watermark.get(METADATA_PARTITION),
        torn_tail=directory.is_marked and not directory.was_stopped_cleanly,
    )
    return ClusterSettings.of(path, image, node_id=node_id, static=static)
