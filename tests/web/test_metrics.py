"""/metrics has what docs/serve.md says; /readyz tells when the directories were read."""

from __future__ import annotations

from collections.abc import Callable

from siltstone.commands.catalogue import Listing, list_topics
from siltstone.commands.served import Served
from siltstone.commands.watch import NOT_READ
from tests.support.pages import named_in_rows, sections
from tests.web.conftest import client_of


def test_a_servers_own_metrics_are_on_its_page(open_served: Callable[..., Served], served: Served) -> None:
    looking = open_served(is_look=True)
    looking.cataloguer.refresh()
    job = looking.jobs.submit("explain", "users", "-", lambda progress: None)
    looking.jobs.wait(job.id)
    client = client_of(looking)
    client.get("/healthz")
    text = client.get("/metrics").text
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert sorted(named_in_rows(sections("serve.md")["Metrics"])) == sorted(names)
    assert 'siltstone_http_requests_total{code="200",method="GET",route="/healthz"} 1.0' in text
    assert 'siltstone_logs{state="up_to_date"} 2.0' in text
    opened = client_of(served).get("/metrics", headers={"Accept": "application/openmetrics-text"})
    assert opened.text.endswith("# EOF\n")
    assert "kafka_log_logcleanermanager_uncleanable_partitions_count" in opened.text


def test_readiness_follows_the_catalogue(open_served: Callable[..., Served], served: Served) -> None:
    looking = open_served(is_look=True)
    client = client_of(looking)
    assert client.get("/readyz").status_code == 503
    outline = looking.cataloguer.outline()
    (row,) = list_topics(outline, Listing()).rows
    assert (row.name, row.partitions, row.state, row.reason) == ("users", 2, "skipped", NOT_READ)
    assert client.get("/readyz").status_code == 503
    looking.cataloguer.refresh()
    assert client.get("/readyz").json() == {"status": "ready"}
    assert client_of(served).get("/readyz").status_code == 200


def test_a_lost_disk_is_not_ready(served: Served) -> None:
    served.opened().serving()[0].go_offline("the disk is gone")
    answer = client_of(served).get("/readyz")
    assert (answer.status_code, answer.json()["reason"]) == (503, "no log directory is in service")
