"""The job that finds the last record of each key of a topic with too many keys for the view *latest*.

::

    browse(view="latest") ─► TooManyKeysError ─► find_latest ─► LatestViews ─► browse(view="latest")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from siltstone.commands import console
from siltstone.commands.browsing import RecordQuery, check_query, chosen_logs
from siltstone.commands.jobs import BackgroundJob, Progress, job_target
from siltstone.commands.latest_keys import LatestViews
from siltstone.commands.served import Served
from siltstone.log.fetch import READ_UNCOMMITTED
from siltstone.log.names import TopicPartition

FIND_LATEST = "find-latest"


@dataclass
class _Budget:
    """The ``WorkBudget`` of a job, which is never over; once the job is cancelled, it raises
    JobCancelledError. ``spent``: bytes that were read; ``size``: bytes of the log, which is read once or
    more."""

    progress: Progress
    name: str
    size: int
    spent: int = 0

    @property
    def is_over(self) -> bool:
        """Never; reports the progress, up to the end of the reading that runs."""
        self.progress.check()
        readings = max(-(-self.spent // max(self.size, 1)), 1)
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

    Its result: a sentence, the topic, the isolation level, and for each partition into how many shares the
    keys were divided, which is how often the log was read. Raises UnknownTopicError, UsageError, BusyError,
    and TooManyKeysError if the last records of all the logs would exceed the bound of ``latest``.
    """
    query = RecordQuery(view="latest", partitions=tuple(partitions) or None, isolation=isolation)
    browsed = console.browsed_topic(served, topic)
    check_query(browsed, query)
    latest.require_room(topic, chosen_logs(browsed, query).values(), isolation)

    def work(progress: Progress) -> object:
        by_partition = []
        for partition, log in chosen_logs(browsed, query).items():
            size = sum(segment.size for segment in log.view.segments)
            budget = _Budget(progress, str(log.topic_partition), size)
            shares = latest.find(log, isolation, budget)
            by_partition.append({"partition": partition, "shares": shares, "bytes_read": budget.spent})
        sentence = "The last record of each key was found; the view latest has them."
        return {"sentence": sentence, "topic": topic, "isolation": isolation, "partitions": by_partition}

    return served.jobs.submit(FIND_LATEST, job_target(topic, partitions), user, work)


def unfinished_find(served: Served, topic: str) -> BackgroundJob | None:
    """The newest job that waits or runs to find last records of a topic, or of some of its partitions."""
    partitions = served.describe(topic).partitions
    names = {topic, *(str(TopicPartition(topic, number)) for number in partitions)}
    return next(
        (
            job
            for job in served.jobs.all()
            if job.kind == FIND_LATEST and not job.has_ended and not names.isdisjoint(job.target.split(", "))
        ),
        None,
    )
