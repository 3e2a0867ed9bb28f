"""What was measured, as data, as JSON and as Markdown to be pasted into ``docs/benchmarks.md``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from bench.beside_kafka.producing import Made
from bench.beside_kafka.workloads import Workload

KAFKA_DEFAULT, KAFKA_TUNED = "kafka-default", "kafka-tuned"
SPARK = "spark"
_MB = 1_000_000
_COLUMNS = (
    "| cleaned by | page cache | seconds, median (min-max) | own words | processor s | written MB "
    "| peak memory MB | peak disk MB | faster than Kafka, default · tuned |"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run. ``wall``: seconds from the trigger to the durable checkpoint, from outside.

    ``own``: seconds by the cleaner's own account; ``passes``: over the keys, where the cleaner tells.
    Processor seconds and bytes are of the whole process tree.
    """

    wall: float
    own: float | None = None
    processor: float | None = None
    written: int | None = None
    memory: int | None = None
    disk: int | None = None
    passes: int | None = None


@dataclass(slots=True, kw_only=True)
class Results:
    """A workload's runs by (side, page cache)."""

    workload: Workload
    made: Made
    runs: dict[tuple[str, str], list[Measured]] = field(default_factory=dict)

    def median(self, side: str, cache: str, what: str = "wall") -> float | None:
        """Median of one figure; None when it was not measured."""
        values = [getattr(run, what) for run in self.runs.get((side, cache), [])]
        return None if not values or values[0] is None else statistics.median(values)

    def faster(self, side: str, cache: str, than: str) -> float | None:
        """How many times as fast as another side, by the wall clock from outside."""
        seconds, other_seconds = self.median(side, cache), self.median(than, cache)
        return None if not seconds or other_seconds is None else other_seconds / seconds

    def to_json(self) -> dict[str, object]:
        """Numbers for machines: every run."""
        return {
            "workload": asdict(self.workload),
            "made": asdict(self.made),
            "runs": [
                {"side": side, "cache": cache, **asdict(run)}
                for (side, cache), runs in self.runs.items()
                for run in runs
            ],
        }


def markdown(results: Results) -> str:
    """A heading, a table of all sides, and the goals."""
    workload, made = results.workload, results.made
    about = (
        f"**{workload.name}**: {workload.records + workload.updates:,} records, {made.size / _MB:,.0f} MB in "
        f"closed segments, partitions: {workload.partitions}, compression: {workload.codec}; "
        f"{sum(made.expected):,} records afterwards"
    )
    rows = [_row(results, side, cache) for side, cache in results.runs]
    lines = [about, "", _COLUMNS, "|---|---|" + "---:|" * 7, *rows]
    return "\n".join([*lines, *_goals(results)]) + "\n"


def _row(results: Results, side: str, cache: str) -> str:
    runs = results.runs[side, cache]
    walls = [run.wall for run in runs]
    seconds = f"{statistics.median(walls):.2f} ({min(walls):.2f}-{max(walls):.2f})"
    own = _shown(results.median(side, cache, "own"), lambda value: f"{value:.2f}")
    passes = f" in {runs[0].passes} passes" if (runs[0].passes or 1) > 1 else ""
    processor = _shown(results.median(side, cache, "processor"), lambda value: f"{value:.1f}")
    bytes_ = [
        _shown(results.median(side, cache, what), lambda value: f"{value / _MB:,.0f}")
        for what in ("written", "memory", "disk")
    ]
    against = [
        _shown(results.faster(side, cache, than), lambda value: f"{value:.1f}x")
        for than in (KAFKA_DEFAULT, KAFKA_TUNED)
    ]
    cells = [side, cache, seconds, own + passes, processor, *bytes_, " · ".join(against)]
    return f"| {' | '.join(cells)} |"


def _shown(value: float | None, options: Callable[[float], str]) -> str:
    return "-" if value is None else options(value)


def _goals(results: Results) -> list[str]:
    goals = {KAFKA_DEFAULT: results.workload.default_goal, KAFKA_TUNED: results.workload.tuned_goal}
    lines = []
    for cache in dict.fromkeys(cache for _, cache in results.runs):
        for than, goal in goals.items():
            ratio = results.faster(SPARK, cache, than)
            if goal is not None and ratio is not None:
                verdict = "reached" if ratio >= goal else "not reached"
                lines.append(f"- {cache}: {ratio:.1f}x against {than}, goal {goal:g}x: {verdict}")
        ours, theirs = (results.median(side, cache, "processor") for side in (SPARK, KAFKA_TUNED))
        if ours and theirs:
            lines.append(f"- {cache}: {theirs / ours:.1f}x fewer processor seconds than {KAFKA_TUNED}")
    return ["", *lines] if lines else []


def break_even(results: Sequence[Results], cache: str) -> Mapping[str, float | None]:
    """By Kafka's variant: the MB from which on our warm session is faster; None when it never is.

    Between two measured sizes the ratio's logarithm is taken to grow evenly with that of the size.
    """
    return {than: _crossing(results, cache, than) for than in (KAFKA_DEFAULT, KAFKA_TUNED)}


def _crossing(results: Sequence[Results], cache: str, than: str) -> float | None:
    ratios = [(result.made.size / _MB, result.faster(SPARK, cache, than)) for result in results]
    points = sorted((size, ratio) for size, ratio in ratios if ratio is not None)
    if not points or points[-1][1] < 1:
        return None
    below = [point for point in points if point[1] < 1]
    if not below:
        return points[0][0]
    low = below[-1]
    high = next(point for point in points if point[0] > low[0])
    share = -math.log(low[1]) / (math.log(high[1]) - math.log(low[1]))
    return math.exp(math.log(low[0]) + share * (math.log(high[0]) - math.log(low[0])))
