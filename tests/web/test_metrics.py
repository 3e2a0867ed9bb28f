"""/metrics has what docs/serve.md says; /readyz tells when the directories were read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from siltstone.base.errors import SiltstoneError, StorageError
from siltstone.commands import administration, server_metrics
from siltstone.commands.catalogue import TopicQuery, list_topics
from siltstone.commands.changes import Actor
from siltstone.commands.metrics import MetricFamily
from siltstone.commands.served import Served, ServeOptions
from siltstone.commands.watch import NOT_READ
from tests.support.golden_sets import unpack_broker
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


def test_methods_that_clients_make_up_are_one_series(served: Served) -> None:
    client = client_of(served)
    for method in ("BREW", "WHEN", "PROPFIND"):
        assert client.request(method, "/metrics", headers={"Host": "unknown"}).status_code == 421
        assert client.request(method, "/healthz").status_code == 405
    text = client.get("/metrics").text
    counted = 'siltstone_http_requests_total{{code="{}",method="other",route="{}"}} 3.0'
    assert counted.format(421, "other") in text and counted.format(405, "/healthz") in text
    assert "BREW" not in text


def test_readiness_follows_the_catalogue(open_served: Callable[..., Served], served: Served) -> None:
    looking = open_served(is_look=True)
    client = client_of(looking)
    assert client.get("/readyz").status_code == 503
    outline = looking.cataloguer.outline()
    (row,) = list_topics(outline, TopicQuery()).rows
    assert (row.name, row.partitions, row.state, row.reason) == ("users", 2, "skipped", NOT_READ)
    assert client.get("/readyz").status_code == 503
    looking.cataloguer.refresh()
    assert client.get("/readyz").json() == {"status": "ready"}
    assert client_of(served).get("/readyz").status_code == 200
    for path in ("/healthz", "/readyz"):
        assert client_of(served).head(path).status_code == 200


def test_a_lost_disk_is_not_ready(served: Served) -> None:
    served.opened().serving()[0].go_offline("the disk is gone")
    answer = client_of(served).get("/readyz")
    assert (answer.status_code, answer.json()["reason"]) == (503, "no log directory is in service")


def values_of(text: str) -> dict[tuple[str, str, str], float]:
    """By (name, topic, partition) the values of the logs' metrics; "" for a label that there is not."""
    return {
        (sample.name, sample.labels["topic"], sample.labels.get("partition", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "topic" in sample.labels
    }


def test_logs_have_a_series_a_partition_and_above_the_bound_a_sum_a_topic(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.opened().topics.create("plain", 1)
    for number in range(3):
        served.opened().send("users", b"%d" % number, key=b"a", partition=1)
    for number in range(2):
        served.opened()["users", number].roll()
    served.opened().flush()
    served.cataloguer.refresh()
    while not served.catalogue.figures.is_complete:
        served.cataloguer.refresh_figures()
    client = client_of(served)
    by_partition = values_of(client.get("/metrics").text)
    size = [by_partition["kafka_log_log_size", "users", str(number)] for number in range(2)]
    assert [by_partition["siltstone_log_records", "users", str(number)] for number in range(2)] == [1, 3]
    assert [by_partition["siltstone_log_dirty_bytes", "users", str(number)] for number in range(2)] == size
    assert by_partition["siltstone_log_dirty_ratio", "users", "1"] == 1
    assert by_partition["siltstone_log_records", "plain", "0"] == 0
    assert ("siltstone_log_dirty_bytes", "plain", "0") not in by_partition
    monkeypatch.setattr(server_metrics, "PARTITIONS_MAX", 2)
    summed = values_of(client.get("/metrics").text)
    assert {partition for _, _, partition in summed} == {""}
    assert summed["siltstone_log_records", "users", ""] == 4
    assert summed["kafka_log_log_logendoffset", "users", ""] == 4
    assert summed["siltstone_log_dirty_ratio", "users", ""] == 1
    assert (
        summed["siltstone_log_dirty_bytes", "users", ""]
        == summed["kafka_log_log_size", "users", ""]
        == sum(size)
    )
    assert values_of(client.get("/metrics?partitions=all").text) == by_partition
    assert client.get("/metrics?partitions=some").status_code == 400
    accepted = client.get("/metrics", headers={"Accept": "application/openmetrics-text"}).text
    assert any(family.name == "siltstone_log_records" for family in openmetrics_families(accepted))


def test_the_lags_of_groups_and_ends_of_logs_have_the_names_of_kafkas_exporter(
    served: Served, tmp_path: Path
) -> None:
    values = values_of(client_of(served).get("/metrics").text)
    assert values["kafka_topic_partition_current_offset", "users", "0"] == 1
    assert values["kafka_topic_partition_oldest_offset", "users", "0"] == 0
    with Served(ServeOptions(paths=unpack_broker(tmp_path / "broker"), is_look=True)) as looking:
        looking.cataloguer.refresh()
        client = client_of(looking)
        client.get("/metrics")
        looking.scans.wait("groups")
        families = {
            family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)
        }
        rows = client.get("/ui/groups?format=json").json()
    for name, key in (
        ("kafka_consumergroup_lag", "lag"),
        ("kafka_consumergroup_current_offset", "committed"),
    ):
        samples = {
            (sample.labels["consumergroup"], f"{sample.labels['topic']}-{sample.labels['partition']}"): (
                sample.value
            )
            for sample in families[name].samples
        }
        expected = {(row["group"], row["log"]): row[key] for row in rows if row["lag"] is not None}
        assert samples == expected and samples
    assert not families["kafka_topic_partition_current_offset"].samples


def test_changes_of_settings_are_counted_by_outcome(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    administration.alter_settings(served, Actor(), "users", {"retention.ms": "1"})
    administration.create_topic(served, Actor(), "other", 1, {})

    def full(*arguments: object, **more: object) -> None:
        raise StorageError("the disk is full", path="logs")

    with monkeypatch.context() as patch:
        patch.setattr(served.opened().topics, "alter", full)
        with pytest.raises(SiltstoneError):
            administration.alter_settings(served, Actor(), "users", {"retention.ms": "2"})
    text = client_of(served).get("/metrics").text
    for outcome, count in (("done", 1), ("failed", 1), ("interrupted", 0)):
        assert f'siltstone_setting_changes_total{{outcome="{outcome}"}} {count}.0' in text


def test_a_label_with_a_quote_and_a_line_end_is_escaped() -> None:
    labels = [server_metrics.partition_label('a"b\\c\nd', 0), server_metrics.topic_label("plain")]
    text = b"".join(MetricFamily(name="x", help="X.", labels=labels, values=[1, 2.5]).lines()).decode()
    (family,) = text_string_to_metric_families(text)
    assert [(sample.labels.get("topic"), sample.value) for sample in family.samples] == [
        ('a"b\\c\nd', 1),
        ("plain", 2.5),
    ]
