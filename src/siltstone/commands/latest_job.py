"""The job that finds the last record of each key of a topic with too many keys for the view *latest*.

::

    browse(view="latest") ─► TooManyKeysError ─► find_latest ─► LatestViews ─► browse(view="latest")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from siltstone.commands import console
from siltstone.commands.browsing import RecordQuery, check_query
from siltstone.commands.cluster import partition_named
from siltstone.commands.jobs import BackgroundJob, Progress, job_target
from siltstone.commands.latest_keys import LatestViews
from siltstone.commands.served import Served
from siltstone.log.fetch import READ_UNCOMMITTED

FIND_LATEST = "find-latest"


@dataclass
class _Budget:
    """Of a job: it is over only when the job is cancelled, which raises JobCancelledError. ``spent``: bytes
    that were read; ``size``: bytes of the log, which is read once or more."""

    progress: Progress
    name: str
    size: int
    spent: int = 0

    @property
    def is_over(self) -> bool:
        """Never; reports the progress, up to the end of the reading that runs."""
        self.progress.check()
        readings = 1 + self.spent // max(self.size, 1)
        self.progress(self.name, "reading", self.spent, readings * self.size)
        return False


def find_latest(
    served: Served,
    user: str,
    topic: str,
    latest: LatestViews,
    *,
    partitions: Sequence[int] = (),
    isolation: str = READ_UNCOMMITTED,
) -> BackgroundJob:
    """Find the last record of each key of a topic, or of some of its partitions, as a job; ``latest`` has it
    then, for one isolation level. Nothing is changed.

    Its result: a sentence, the isolation level, and for each partition into how many shares the keys were
    divided, which is how often the log was read. Raises UnknownTopicError, UsageError, BusyError.
    """
    chosen = [partition_named(served, topic, number) for number in partitions]
    browsed = console.browsed_topic(served, topic)
    check_query(browsed, RecordQuery(view="latest", isolation=isolation))

    def work(progress: Progress) -> object:
        found = []
        for log in browsed.logs():
            where = log.topic_partition
            if chosen and where not in chosen:
                continue
            budget = _Budget(progress, str(where), sum(segment.size for segment in log.view.segments))
            shares = latest.find(log, browsed.checkpoints.get(where.partition, 0), isolation, budget)
            found.append({"partition": where.partition, "shares": shares, "bytes_read": budget.spent})
        sentence = "The last record of each key was found; the view latest has them."
        return {"sentence": sentence, "isolation": isolation, "partitions": found}

    return served.jobs.submit(FIND_LATEST, job_target(topic, partitions), user, work)
