"""The cleaner on clusters of this machine, beside a local master: ``python -m bench --only cleaner``.

Each side is a process with a session of its own (``bench.session``)::

    local[N]                  threads of one Java, for the largest number of executors, and for the smallest:
                              what a second core earns without a cluster
    local-cluster[n,1,2048]   n executors of one core, which the driver's Java starts
    standalone, n workers     a master and n workers, processes with work directories, homes and temporary
                              folders of their own; only the log is shared; Spark's settings are the cluster's

All sides clean a fresh copy of the same log in turns (A B B A); the first turn, in which executors start and
load the package, is not counted. A ratio is the median of the ratios of each turn: on a machine that has
other work, too, it says more than one of medians.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.generate import WHERE, Generated
from bench.measure import SETTINGS, Times, check, fresh_copy
from bench.session import RunningSession
from tests.support.spark.standalone import INSTALLED, standalone_cluster

LOCAL, LOCAL_CLUSTER, STANDALONE = "local", "local-cluster", "standalone"
CLUSTERS = (LOCAL_CLUSTER, STANDALONE)
EXECUTOR_MIB = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Where Spark runs: a kind of master, and how many executors of one core (of ``local``: threads)."""

    kind: str
    executors: int

    @property
    def name(self) -> str:
        """As tables and documents have it."""
        if self.kind == STANDALONE:
            return f"standalone, {self.executors} worker{'s' * (self.executors > 1)}"
        if self.kind == LOCAL_CLUSTER:
            return f"local-cluster[{self.executors},1,{EXECUTOR_MIB}]"
        return f"local[{self.executors}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SideTimes:
    """What a side took; how many times as long as ``local[N]``, and how many times as fast as the same kind
    with the fewest executors, both None where there is nothing to compare with."""

    times: Times
    slower_than_local: float | None
    faster_than_fewest: float | None

    def to_json(self) -> dict[str, object]:
        """Numbers for machines."""
        return self.times.to_json() | {
            "times_as_long_as_local": self.slower_than_local,
            "times_as_fast_as_fewest_executors": self.faster_than_fewest,
        }


def measure_clusters(
    folder: Path, generated: Generated, repetitions: int, executors: Sequence[int]
) -> dict[str, SideTimes]:
    """All sides for each number of executors, by name. Raises WrongResultError."""
    clusters = [Side(kind=kind, executors=number) for number in executors for kind in CLUSTERS]
    locals_ = [Side(kind=LOCAL, executors=number) for number in sorted({max(executors), min(executors)})]
    sides = [*reversed(locals_), *clusters]
    times = {side: Times(size=generated.closed_size) for side in sides}
    config = folder / "topic.config"
    config.write_text("".join(f"{WHERE.topic}:{setting}\n" for setting in SETTINGS))
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(_folder_for(folder / "clusters"))
        sessions = {side: stack.enter_context(_session(side, place)) for side in sides}
        for turn in range(repetitions + 1):
            for side in sides if turn % 2 == 0 else reversed(sides):
                seconds = _clean_once(sessions[side], folder, generated, config)
                times[side].seconds += [seconds] if turn else []
    return {side.name: _compared(side, times) for side in sides}


def _clean_once(session: RunningSession, folder: Path, generated: Generated, config: Path) -> float:
    with fresh_copy(folder) as copy:
        seconds = session.clean(copy, config, [WHERE.topic], spread=True)
        check(copy, generated)
    return seconds


def _compared(side: Side, times: Mapping[Side, Times]) -> SideTimes:
    """A side's times with their ratios to ``local[N]``, of as many cores, and to the fewest executors."""
    seconds = times[side].seconds
    executors = [other.executors for other in times]
    local = times[Side(kind=LOCAL, executors=max(executors))].seconds
    fewest = times.get(Side(kind=side.kind, executors=min(executors)))
    has_local = side.kind != LOCAL and side.executors == max(executors)
    has_fewest = side.executors > min(executors)
    return SideTimes(
        times=times[side],
        slower_than_local=_ratio(seconds, local) if has_local else None,
        faster_than_fewest=_ratio(fewest.seconds, seconds) if has_fewest and fewest is not None else None,
    )


def _ratio(seconds: Sequence[float], other: Sequence[float]) -> float:
    """The median of the ratios turn by turn."""
    return statistics.median(ours / theirs for ours, theirs in zip(seconds, other, strict=True))


@contextlib.contextmanager
def _folder_for(place: Path) -> Iterator[Path]:
    """An empty folder for what clusters and sessions write, on the disk of the logs."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def _session(side: Side, place: Path) -> Iterator[RunningSession]:
    """A session on the master of a side, which is started for it if it is a standalone one."""
    with contextlib.ExitStack() as stack:
        master, settings, environment = side.name, {}, None
        if side.kind == STANDALONE:
            folder = place / f"standalone-{side.executors}"
            folder.mkdir()
            cluster = stack.enter_context(
                standalone_cluster(folder, workers=side.executors, memory=f"{EXECUTOR_MIB}m")
            )
            master, settings = cluster.master, {"spark.ui.enabled": "false"}
            environment = cluster.environment(INSTALLED)
        spill = place / f"spill-{side.kind}-{side.executors}"
        session = RunningSession("spark", spill, master, settings, environment)
        stack.callback(session.close)
        yield session
