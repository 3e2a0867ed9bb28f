"""One workload through all sides: order A B B A, a fresh twin for each run, the same records at the end."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.beside_kafka.broker import DEFAULT, TUNED, MeasuredBroker, Variant
from bench.beside_kafka.contents import Contents, contents_of
from bench.beside_kafka.figures import KAFKA_DEFAULT, KAFKA_TUNED, SPARK, Measured, Results
from bench.beside_kafka.observing import Observed, observe
from bench.beside_kafka.producing import Made, pristine
from bench.beside_kafka.siltstone_side import ONE_SHOT, ONE_SHOT_PROCESS, Session, one_shot
from bench.beside_kafka.twins import copy_closed, settle, twin_of
from bench.beside_kafka.workloads import IDLE, MAIN, WARM_UP, Workload
from siltstone.spark.settings import DEFAULT_MASTER
from tests.support.kafka.logdir import active_base

VARIANTS = {KAFKA_DEFAULT: DEFAULT, KAFKA_TUNED: TUNED}
SESSIONS = (SPARK, "untuned", "in-process")
COPY = "copy"
ONE_SHOTS = (ONE_SHOT, ONE_SHOT_PROCESS)
SIDES = (*VARIANTS, *SESSIONS, *ONE_SHOTS, COPY)
HOT, COLD = "hot", "cold"
_PARTITIONS_MANY = 100
"""Twins with more are put aside, not removed between runs."""


class OtherRecordsError(Exception):
    """Two cleaners did not leave the same records, or not as many as there must be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is run: how often, by whom, with which page cache, on links or real copies, on which Spark."""

    runs: int
    sides: Sequence[str]
    caches: Sequence[str]
    real_copies: bool = False
    master: str = DEFAULT_MASTER


def measure(workload: Workload, folder: Path, plan: Plan) -> Results:
    """Produce what is not there yet and measure. Raises OtherRecordsError, NotCleanedError."""
    began = time.perf_counter()
    made = pristine(folder, workload)
    say(f"{workload.name}: {made.size / 1e6:,.0f} MB, there after {time.perf_counter() - began:.0f} s")
    results = Results(workload=workload, made=made)
    for cache in plan.caches:
        for side in plan.sides:
            results.runs[side, cache] = []
    with contextlib.ExitStack() as stack:
        rounds = _Rounds(workload, made, folder, plan, stack)
        for cache in plan.caches:
            for number in range(plan.runs):
                for side in plan.sides if number % 2 == 0 else reversed(plan.sides):
                    run = rounds.run(side, cold=cache == COLD)
                    results.runs[side, cache].append(run)
                    say(f"{workload.name}: {side}, {cache}: {run.wall:.2f} s")
    return results


def say(text: str) -> None:
    """Tell how far it is, on standard error."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


class _Rounds:
    def __init__(
        self, workload: Workload, made: Made, folder: Path, plan: Plan, stack: contextlib.ExitStack
    ) -> None:
        self._workload, self._made, self._folder, self._plan = workload, made, folder, plan
        self._stack = stack
        self._sessions: dict[str, Session] = {}
        self._contents: dict[str, list[Contents]] | None = None
        self._aside: Path | None = None
        if workload.all_partitions > _PARTITIONS_MANY:
            self._aside = folder / "aside"
            shutil.rmtree(self._aside, ignore_errors=True)
            stack.callback(shutil.rmtree, self._aside, ignore_errors=True)

    def run(self, side: str, *, cold: bool) -> Measured:
        """One side on a fresh twin."""
        if side in SESSIONS:
            self._start(side)
        with twin_of(self._folder / "pristine", real=self._plan.real_copies, aside=self._aside) as twin:
            measured = self._measure(side, twin, cold=cold)
            if side != COPY:
                self._check(side, twin)
        return measured

    def _measure(self, side: str, twin: Path, *, cold: bool) -> Measured:
        if side in VARIANTS:
            return self._by_kafka(VARIANTS[side], twin, cold=cold)
        settle(twin, cold=cold)
        if side == COPY:
            return self._copied(twin)
        if side in ONE_SHOTS:
            return _measured(*one_shot(side, twin, self._workload, self._plan.master))
        return _measured(*self._sessions[side].clean(twin))

    def _by_kafka(self, variant: Variant, twin: Path, *, cold: bool) -> Measured:
        with MeasuredBroker(twin, variant) as broker:
            if variant.warmed:
                broker.clean(WARM_UP, [active_base(twin, WARM_UP)])
            settle(twin, cold=cold)
            since = broker.log_size()
            with observe(broker.pid, [twin]) as observed:
                observed.wall = broker.clean(MAIN, self._made.ends)
        words = broker.own_words(MAIN, since)
        return _measured(observed, words.seconds, words.passes)

    def _copied(self, twin: Path) -> Measured:
        target = twin.with_name("copied")
        with observe(None, []) as observed:
            copy_closed(twin, MAIN, target)
        shutil.rmtree(target)
        return Measured(wall=observed.wall)

    def _start(self, side: str) -> None:
        """A session once a workload, warmed by the workload's warm-up topic."""
        if side in self._sessions:
            return
        session = Session(side, self._workload, self._folder / f"spill-{side}", self._plan.master)
        self._sessions[side] = session
        self._stack.callback(session.close)
        with twin_of(self._folder / "pristine", real=False, aside=self._aside) as twin:
            session.warm_up(twin)

    def _check(self, side: str, twin: Path) -> None:
        contents = {MAIN: contents_of(twin, MAIN, self._workload.partitions)}
        contents[IDLE] = contents_of(twin, IDLE, self._workload.idle_partitions)
        counts = [partition_contents.records for partition_contents in contents[MAIN]]
        if counts != self._made.expected:
            raise OtherRecordsError(f"{side} left {counts} records, {self._made.expected} expected")
        if self._contents is None:
            self._contents = contents
        elif self._contents != contents:
            raise OtherRecordsError(f"{side} left other records than the side before it")


def _measured(observed: Observed, own: float, passes: int | None = None) -> Measured:
    return Measured(
        wall=observed.wall,
        own=own,
        processor=observed.processor,
        written=observed.written,
        memory=observed.memory,
        disk=observed.disk,
        passes=passes,
    )
