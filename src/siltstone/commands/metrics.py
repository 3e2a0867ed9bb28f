"""Metrics as a page for Prometheus: text format 0.0.4, or OpenMetrics 1.0. Needs ``siltstone[server]``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from siltstone.runtime.metrics import COUNTER, HISTOGRAM, Histogram, Sample

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["Histogram", "Sample", "openmetrics_text", "prometheus_text"]
_TOTAL = "_total"


def prometheus_text(samples: Iterable[Sample]) -> bytes:
    """``samples`` in Prometheus' text format: HELP and TYPE once a name, then its samples in order."""
    from prometheus_client import generate_latest

    return generate_latest(_registry(samples))


def openmetrics_text(samples: Iterable[Sample]) -> bytes:
    """``samples`` in OpenMetrics' text format."""
    from prometheus_client.openmetrics.exposition import generate_latest

    write: Callable[[CollectorRegistry], bytes] = generate_latest
    return write(_registry(samples))


def _registry(samples: Iterable[Sample]) -> CollectorRegistry:
    from prometheus_client import CollectorRegistry, Metric

    families: dict[str, Metric] = {}
    for sample in samples:
        name = sample.name.removesuffix(_TOTAL) if sample.kind == COUNTER else sample.name
        family = families.setdefault(name, Metric(name, sample.help, sample.kind))
        labels = dict(sample.labels)
        if sample.kind != HISTOGRAM:
            family.add_sample(sample.name, labels, sample.value)
            continue
        for bound, count in sample.buckets:
            family.add_sample(f"{name}_bucket", {**labels, "le": _bound_text(bound)}, count)
        family.add_sample(f"{name}_sum", labels, sample.value)
        family.add_sample(f"{name}_count", labels, sample.buckets[-1][1])

    class Families(CollectorRegistry):
        def collect(self) -> Iterable[Metric]:
            return families.values()

    return Families()


def _bound_text(bound: float) -> str:
    """A bucket's label: ``0.5``, ``10``, ``+Inf``."""
    return "+Inf" if bound == math.inf else f"{bound:g}"
