"""Samples in the text format that Prometheus reads, by its own client library (``siltstone[server]``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Metric, generate_latest

from siltstone.log.service.metrics import Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def prometheus_text(samples: Iterable[Sample]) -> bytes:
    """``samples`` as a page of metrics: HELP and TYPE once a name, then its samples in the order given."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(samples))
    return generate_latest(registry)


class _Page:
    """A collector of what was measured already."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._families: dict[str, Metric] = {}
        for each in samples:
            family = self._families.setdefault(each.name, Metric(each.name, each.help, each.type))
            family.add_sample(each.name, dict(each.labels), each.value)

    def describe(self) -> Iterable[Metric]:
        """Nothing is promised."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The families, in order of name's first use."""
        yield from self._families.values()
