"""The files of ``siltstone monitoring``: they name metrics that exist, and replace nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from siltstone.base.errors import UsageError
from siltstone.broker.measuring import METRICS
from siltstone.commands.metrics import metrics_page
from siltstone.commands.monitoring import ALERTS, PANELS, alert_rules, dashboard, write_monitoring
from siltstone.commands.served import Served, ServeOptions
from siltstone.commands.server_metrics import log_metrics, server_samples
from siltstone.web.metrics import RequestCounts

_NAME = re.compile(r"\b(?:kafka|siltstone|pulsar)_[a-z0-9_]+")


def names_of_a_scrape(path: Path) -> set[str]:
    """The names of the series of an open server whose topic was compacted beside its log."""
    with Served(ServeOptions(paths=(path,), engine="process")) as served:
        manager = served.opened()
        manager.topics.create("users", 1, {"cleanup.policy": "compact"})
        manager.send("users", b"1", key=b"a", partition=0)
        assert served.compactions is not None
        served.compactions.trigger("users")
        assert served.compactions.wait(20)
        served.cataloguer.refresh()
        counts = RequestCounts()
        counts.count("/ui/", "GET", 200, 0.1)
        samples = server_samples(served) + counts.samples()
        page = b"".join(metrics_page(samples, log_metrics(served), is_openmetrics=False)).decode()
    return {re.split(r"[{ ]", line)[0] for line in page.splitlines() if not line.startswith("#")}


def test_every_metric_of_the_rules_and_the_dashboard_occurs_in_a_scrape(tmp_path: Path) -> None:
    named = set(_NAME.findall(alert_rules()))
    named |= {name for panel in PANELS for query, _ in panel.queries for name in _NAME.findall(query)}
    # A broker's metrics are held to a scrape by tests/broker/test_measuring.py.
    of_a_broker = {*METRICS, *(f"{name}_bucket" for name in METRICS if name.endswith("timems"))}
    assert len(named) > 15 and named - names_of_a_scrape(tmp_path) - of_a_broker == set()
    assert len(named & of_a_broker) > 10


def test_the_dashboard_has_every_panel_once_and_none_overlaps() -> None:
    document = json.loads(dashboard())
    assert [panel["title"] for panel in document["panels"]] == [panel.title for panel in PANELS]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in document["panels"]}
    assert len(places) == len(PANELS) and len({panel["id"] for panel in document["panels"]}) == len(PANELS)


def test_each_alert_says_what_to_do() -> None:
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
    assert all(alert.summary and alert.advice.endswith(".") for alert in ALERTS)


@pytest.mark.parametrize("kind", ["file", "link"])
def test_no_existing_file_is_replaced(tmp_path: Path, kind: str) -> None:
    assert len(write_monitoring(tmp_path / "new" / "folder")) == 2
    place = tmp_path / "siltstone-dashboard.json"
    if kind == "file":
        place.write_text("mine")
    else:
        place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError) as caught:
        write_monitoring(tmp_path)
    assert caught.value.path == str(place) and not (tmp_path / "siltstone-alerts.yml").exists()
    assert not (tmp_path / "elsewhere").exists()
