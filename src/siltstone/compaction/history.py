"""Writes the results of cleanings to the files of their log directories: the history and the savings."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from siltstone.compaction.report import CLEANED, CLEANINGS_FILE, Cleaning, append_cleanings
from siltstone.compaction.savings import SAVINGS_FILE, append_savings
from siltstone.log.names import TopicPartition

_logger = logging.getLogger("siltstone.cleaner")


class History:
    """Writes cleanings to the history and the savings of their log directories. Thread-safe.

    A result with another status than cleaned is written only if its reason is not that of the log's last
    result: else an engine that cannot start would add a line for every log in every round.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[TopicPartition, str] = {}

    def append(self, directory: Path, cleanings: Iterable[Cleaning]) -> None:
        """Append the cleanings whose results are new. Raises nothing: an OSError is logged as a warning."""
        with self._lock:
            new = [cleaning for cleaning in cleanings if self._is_new(cleaning)]
            if not new:
                return
            for path, write in ((CLEANINGS_FILE, append_cleanings), (SAVINGS_FILE, append_savings)):
                try:
                    write(directory, new)
                except OSError as error:
                    _logger.warning(
                        "%s: the history of cleanings could not be written: %s; the logs are not affected",
                        directory / path,
                        error.strerror or error,
                    )

    def _is_new(self, cleaning: Cleaning) -> bool:
        """Was the log cleaned, or is the reason why not another one than the last time? Remembers the
        reason."""
        topic_partition, reason = cleaning.result.topic_partition, cleaning.result.reason
        if cleaning.result.status == CLEANED:
            self._reasons.pop(topic_partition, None)
            return True
        last_reason, self._reasons[topic_partition] = self._reasons.get(topic_partition), reason
        return last_reason != reason
