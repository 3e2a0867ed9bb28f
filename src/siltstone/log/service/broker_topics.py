"""The topics of a broker in whose directories a ``LogManager`` is opened: their ids and settings are in the
broker's own ``__cluster_metadata-0``, which is read once, when the directories are opened, and never changed.

A topic that is listed in ``siltstone-topics.json`` (made here, or altered here) goes by that. Metadata that
cannot be read means that nothing is opened for a change: by Kafka's defaults, a topic that compacts would
lose all that is older than a week.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from siltstone.config import Config, LogConfig, Source
from siltstone.errors import CorruptFileError, DirectoryRefusedError, UsageError
from siltstone.log.cluster.settings import (
    ClusterSettings,
    metadata_directory,
    node_id_of,
    read_cluster_settings,
)
from siltstone.log.directory import LogDirectory
from siltstone.log.service.topic_registry import TopicEntry

_logger = logging.getLogger("siltstone")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTopics:
    """What the metadata says of topics; ``cluster`` None: there is none in these directories.

    ``has_owner``: they have a ``meta.properties``, so topics that are not listed here are somebody else's.
    """

    cluster: ClusterSettings | None = None
    has_owner: bool = False

    @classmethod
    def read(cls, directories: Sequence[LogDirectory]) -> BrokerTopics:
        """Read it. Raises DirectoryRefusedError where it is damaged, or is there twice."""
        try:
            holder = metadata_directory(directories)
            if holder is None:
                return cls(has_owner=any(directory.properties() for directory in directories))
            found = read_cluster_settings(holder, node_id=node_id_of(directories))
        except (CorruptFileError, UsageError, OSError) as error:
            places = ", ".join(str(directory.path) for directory in directories)
            raise DirectoryRefusedError(
                f"{places}: not opened for a change: the settings of its broker's topics cannot be read "
                f"({error}), so nothing says what must not be deleted; let the broker put its metadata log "
                "in order, or only read the directory"
            ) from None
        _logger.info("settings of topics: %s up to offset %d", found.path, found.image.end_offset)
        return cls(cluster=found, has_owner=True)

    @property
    def is_elsewhere(self) -> bool:
        """These directories are a broker's, and its metadata is in another one."""
        return self.has_owner and self.cluster is None

    def topic_id(self, name: str) -> str | None:
        """The id of a topic of the broker, None where it has no such topic."""
        return None if self.cluster is None else self.cluster.topic_id(name)

    def why_a_stranger(self, name: str, directory: Path) -> str | None:
        """Why a directory is of no topic of the broker; None where it is, or no metadata says so."""
        if self.cluster is None:
            return None
        try:
            return self.cluster.why_a_stranger(name, directory)
        except CorruptFileError as error:
            return str(error)

    def own_texts(self, name: str) -> dict[str, str]:
        """A topic's own settings as texts, those that are known here. Raises UsageError for a bad one."""
        if self.cluster is None:
            return {}
        known = self.cluster.own(name)
        return {key: text for key, text in self.cluster.own_texts(name).items() if key in known}

    def broker(self, config: Config) -> Config:
        """The broker's settings: those of the program, over what was set at run time."""
        return config if self.cluster is None else self.cluster.broker_in_force(config)

    def without_guesses(self, name: str, entry: TopicEntry | None, config: Config) -> LogConfig:
        """What a log goes by: of a topic that was not made here nothing goes by an age that nobody has set.

        ``config``: the topic's settings, ``entry``: as it is listed here. Kafka's default of 7 days counts
        only beside settings out of the broker's ``server.properties``, which may have another; so may a topic
        whose settings are in a directory that was not named. What is gone is gone.
        """
        found = LogConfig.of(config)
        made_here = entry is not None and (entry.topic_id or None) != self.topic_id(name)
        known = config.setting("retention.ms").origin is not Source.DEFAULT_CONFIG
        if made_here or known or not self.has_owner or config.given(Source.STATIC_BROKER_CONFIG):
            return found
        return replace(found, retention_ms=-1)
