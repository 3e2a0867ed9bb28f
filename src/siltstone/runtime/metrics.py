"""Samples of metrics in Prometheus' data model, without its library.

::

    Sample      one value of a gauge or a counter, with labels
    Histogram   for each of its bounds, how many observations are not above it; and the sum of all

A name that ends in ``_total`` is a counter: it only grows, and begins at 0 when the process starts.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value, with its labels. ``help`` describes the metric. Of a histogram: ``value`` is the sum, and
    ``buckets`` has (upper bound, observations up to it), the last bound infinite."""

    name: str
    value: float
    help: str
    labels: Mapping[str, str] = field(default_factory=dict)
    buckets: tuple[tuple[float, int], ...] = ()

    @property
    def kind(self) -> str:
        """The metric's type, by Prometheus' word."""
        if self.buckets:
            return HISTOGRAM
        return COUNTER if self.name.endswith("_total") else GAUGE


def samples_of(values: Mapping[str, float], help_by_name: Mapping[str, str], **labels: str) -> list[Sample]:
    """A sample for each of ``values`` (name → value), all with the same labels."""
    return [
        Sample(name=name, value=value, help=help_by_name[name], labels=labels)
        for name, value in values.items()
    ]


class Histogram:
    """Counts observations by upper bounds. Not thread-safe: the caller holds a lock."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = [*bounds, float("inf")]
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def sample(self, name: str, meaning: str, **labels: str) -> Sample:
        """The counts so far."""
        total, buckets = 0, list[tuple[float, int]]()
        for bound, count in zip(self._bounds, self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        return Sample(name=name, value=self._sum, help=meaning, labels=labels, buckets=tuple(buckets))
