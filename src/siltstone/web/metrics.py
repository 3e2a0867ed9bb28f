"""``/metrics``: OpenMetrics where ``Accept`` asks for it, else Prometheus' text format."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from typing import Literal

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from siltstone.commands.metrics import Histogram, Sample, metrics_page
from siltstone.commands.server_metrics import log_metrics, server_samples
from siltstone.web.dependencies import CurrentServed
from siltstone.web.guards import VIEWER

OPENMETRICS = "application/openmetrics-text"
REQUESTS, SECONDS = "siltstone_http_requests_total", "siltstone_http_request_seconds"
_BOUNDS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
router = APIRouter()


class RequestCounts:
    """Counts requests by route, method and status, and how long they took. Safe in several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._seconds: dict[str, Histogram] = defaultdict(lambda: Histogram(_BOUNDS_SECONDS))

    def count(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count one request."""
        with self._lock:
            self._requests[route, method, status] += 1
            self._seconds[route].observe(seconds)

    def samples(self) -> list[Sample]:
        """The counts so far."""
        with self._lock:
            samples = [
                Sample(
                    name=REQUESTS,
                    value=count,
                    help="Requests by route, method and status.",
                    labels={"route": route, "method": method, "code": str(status)},
                )
                for (route, method, status), count in sorted(self._requests.items())
            ]
            help_text = "Seconds until the response was sent."
            for route, histogram in sorted(self._seconds.items()):
                samples.append(histogram.sample(SECONDS, help_text, route=route))
            return samples


@router.get("/metrics", dependencies=[VIEWER], response_class=StreamingResponse)
def metrics(request: Request, served: CurrentServed, partitions: Literal["", "all"] = "") -> Response:
    """All metrics of this process. With more than 20,000 partitions, metrics of partitions are summed by
    topic, unless ``partitions=all``."""
    samples = server_samples(served) + request.app.state.counts.samples()
    families = log_metrics(served, all_partitions=partitions == "all")
    is_openmetrics = OPENMETRICS in request.headers.get("accept", "")
    content_type = f"{OPENMETRICS}; version=1.0.0" if is_openmetrics else "text/plain; version=0.0.4"
    page = metrics_page(samples, families, is_openmetrics=is_openmetrics)
    return StreamingResponse(page, headers={"Content-Type": f"{content_type}; charset=utf-8"})
