"""Writes alert rules for Prometheus and a dashboard for Grafana over a server's metrics: ``siltstone
monitoring``.

Users are expected to adapt both files: the thresholds are only a start.

::

    DIR/siltstone-alerts.yml        groups of alerting rules (promtool check rules)
    DIR/siltstone-dashboard.json    a dashboard (Grafana: Dashboards → Import)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from siltstone.base import files
from siltstone.base.errors import UsageError

ALERTS_FILE, DASHBOARD_FILE = "siltstone-alerts.yml", "siltstone-dashboard.json"
_MANAGER = "kafka_log_logcleanermanager_"
_REQUESTS, _BY_INSTANCE = "kafka_network_requestmetrics_", "sum by (instance, job)"
_CONNECTIONS = "kafka_server_socket_server_metrics_connection_count"
"""Parts of several expressions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alerting rule: it fires when ``expression`` (PromQL) has held for ``lasting`` (such as ``10m``)."""

    name: str
    expression: str
    lasting: str
    severity: str
    summary: str
    advice: str


ALERTS = (
    Alert(
        name="SiltstoneCleanerDead",
        expression="kafka_log_logcleaner_deadthreadcount > 0",
        lasting="1m",
        severity="critical",
        summary="{{ $value }} threads of the log cleaner have ended",
        advice="The server's messages name the error; restart the process.",
    ),
    Alert(
        name="SiltstoneCleanerStalled",
        expression=f"{_MANAGER}time_since_last_run_ms > 600000",
        lasting="5m",
        severity="warning",
        summary="The log cleaner has not searched for logs to clean for ten minutes",
        advice="A cleaning may take that long: see the jobs; otherwise restart the process.",
    ),
    Alert(
        name="SiltstoneCleanerBehind",
        expression="kafka_log_logcleaner_max_compaction_delay_secs > 3600",
        lasting="10m",
        severity="warning",
        summary="A record is {{ $value }} s over max.compaction.lag.ms",
        advice="Deleted keys stay too long: give the cleaner more threads, or Spark.",
    ),
    Alert(
        name="SiltstoneLogsUncleanable",
        expression=f"{_MANAGER}uncleanable_partitions_count > 0",
        lasting="1m",
        severity="critical",
        summary="{{ $value }} logs of {{ $labels.logDirectory }} are not cleaned any more",
        advice="The console's Cleaner page has file, byte and reason; retry there when they are repaired.",
    ),
    Alert(
        name="SiltstoneDueWithoutCleaning",
        expression='siltstone_logs{state="due"} > 0 and on (instance, job) '
        "(time() - siltstone_cleaner_last_success_timestamp_seconds > 7200)",
        lasting="10m",
        severity="warning",
        summary="{{ $value }} logs are due, and none was cleaned for two hours",
        advice="See whether the cleaner's engine is up, and what the server's messages say.",
    ),
    Alert(
        name="SiltstoneEngineDown",
        expression="siltstone_cleaner_engine_up == 0",
        lasting="10m",
        severity="critical",
        summary="The cleaner's engine (Spark) is down: nothing is cleaned",
        advice="The server's messages have the reason; without Spark the engine process works.",
    ),
    Alert(
        name="SiltstoneDirectoryOffline",
        expression="kafka_log_logmanager_logdirectoryoffline == 1",
        lasting="0m",
        severity="critical",
        summary="{{ $labels.logDirectory }} is offline",
        advice="Replace the disk, restart the process.",
    ),
    Alert(
        name="SiltstoneDiskFull",
        expression="predict_linear(siltstone_directory_free_bytes[6h], 4 * 3600) < 0",
        lasting="30m",
        severity="critical",
        summary="The disk of {{ $labels.logDirectory }} will be full in four hours",
        advice="The console's Topics page, sorted by bytes, shows the largest topics.",
    ),
    Alert(
        name="SiltstoneCompactionFailing",
        expression="increase(pulsar_compaction_failed_count[1h]) > 0",
        lasting="5m",
        severity="warning",
        summary="Side-by-side compaction of {{ $labels.topic }} fails",
        advice="siltstone topics compaction-status TOPIC has the reason.",
    ),
    Alert(
        name="SiltstoneRequestErrors",
        expression=f"increase({_REQUESTS}errors_total"
        '{error=~"KAFKA_STORAGE_ERROR|UNKNOWN_SERVER_ERROR"}[15m]) > 0',
        lasting="1m",
        severity="critical",
        summary="{{ $labels.request }} fails with {{ $labels.error }}",
        advice="A disk has failed, or there is a defect: the server's messages have the error.",
    ),
    Alert(
        name="SiltstoneProduceSlow",
        expression="histogram_quantile(0.99, sum by (instance, job, le) "
        f'(rate({_REQUESTS}localtimems_bucket{{request="Produce"}}[10m]))) > 100',
        lasting="10m",
        severity="warning",
        summary="1 % of produce requests take over {{ $value }} ms",
        advice="See whether the disk or a processor is busy, and with what: the console's Clients page.",
    ),
    Alert(
        name="SiltstoneClientsThrottled",
        expression="sum by (instance, job, quota) (rate(siltstone_broker_throttled_ms_total[10m])) > 500",
        lasting="30m",
        severity="warning",
        summary="Clients wait {{ $value }} ms a second for their quota of {{ $labels.quota }}",
        advice="The Clients page shows who is throttled; raise the quota, or send them less work.",
    ),
    Alert(
        name="SiltstoneBrokerMemoryShort",
        expression="siltstone_broker_memory_waiting_connections > 0",
        lasting="10m",
        severity="warning",
        summary="{{ $value }} connections wait for memory",
        advice="Raise queued.max.request.bytes, or find the clients that read slowly on the Clients page.",
    ),
    Alert(
        name="SiltstoneConnectionsNearLimit",
        expression=f"{_BY_INSTANCE} ({_CONNECTIONS}) > 0.9 * "
        f"{_BY_INSTANCE} (siltstone_broker_connections_max)",
        lasting="10m",
        severity="warning",
        summary="{{ $value }} connections: over 90 % of those that the broker may have",
        advice="Raise max.connections and the limit of open files, or find clients that close nothing.",
    ),
    Alert(
        name="SiltstoneConnectionsRefused",
        expression="increase(siltstone_broker_refused_connections_total[15m]) > 0",
        lasting="1m",
        severity="warning",
        summary="{{ $value }} connections were closed: their address had too many",
        advice="Raise max.connections.per.ip, or find the client on the Clients page.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel of the dashboard. ``queries``: (PromQL, legend); ``unit``: by Grafana's name of it."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"


PANELS = (
    Panel(title="Bytes of logs", queries=(("sum(kafka_log_log_size)", "stored"),), unit="bytes"),
    Panel(title="Logs by state", queries=(("siltstone_logs", "{{state}}"),)),
    Panel(
        title="Largest topics",
        queries=(("topk(10, sum by (topic) (kafka_log_log_size))", "{{topic}}"),),
        unit="bytes",
    ),
    Panel(
        title="Dirty, of the dirtiest log", queries=((f"{_MANAGER}max_dirty_percent", "%"),), unit="percent"
    ),
    Panel(
        title="Overdue, of the most overdue log",
        queries=(("kafka_log_logcleaner_max_compaction_delay_secs", "s"),),
        unit="s",
    ),
    Panel(
        title="Cleanings an hour",
        queries=(("sum by (status) (increase(siltstone_cleaner_cleanings_total[1h]))", "{{status}}"),),
    ),
    Panel(
        title="Freed an hour",
        queries=(("increase(siltstone_cleaner_reclaimed_bytes_total[1h])", "bytes"),),
        unit="bytes",
    ),
    Panel(
        title="Removed records an hour",
        queries=(("sum by (reason) (increase(siltstone_cleaner_removed_records_total[1h]))", "{{reason}}"),),
    ),
    Panel(
        title="Seconds of a cleaning, 95 %",
        queries=(
            ("histogram_quantile(0.95, sum by (le) (rate(siltstone_cleaner_seconds_bucket[1h])))", "p95"),
        ),
        unit="s",
    ),
    Panel(
        title="Uncleanable bytes",
        queries=((f"{_MANAGER}uncleanable_bytes", "{{logDirectory}}"),),
        unit="bytes",
    ),
    Panel(
        title="Free space",
        queries=(("siltstone_directory_free_bytes", "{{logDirectory}}"),),
        unit="bytes",
    ),
    Panel(
        title="Requests a second",
        queries=(("sum by (code) (rate(siltstone_http_requests_total[5m]))", "{{code}}"),),
        unit="reqps",
    ),
    Panel(
        title="Kafka's requests a second",
        queries=((f"sum by (request) (rate({_REQUESTS}requests_total[5m]))", "{{request}}"),),
        unit="reqps",
    ),
    Panel(
        title="Local time of Produce and Fetch, 99 %",
        queries=(
            (
                "histogram_quantile(0.99, sum by (request, le) "
                f'(rate({_REQUESTS}localtimems_bucket{{request=~"Produce|Fetch"}}[5m])))',
                "{{request}}",
            ),
        ),
        unit="ms",
    ),
    Panel(
        title="Bytes in and out a second",
        queries=tuple(
            (f'sum(rate(kafka_server_brokertopicmetrics_bytes{way}_total{{topic=""}}[5m]))', way)
            for way in ("in", "out")
        ),
        unit="Bps",
    ),
    Panel(
        title="Errors of Kafka's requests a second",
        queries=((f"sum by (error) (rate({_REQUESTS}errors_total[5m]))", "{{error}}"),),
    ),
    Panel(
        title="Throttled, ms a second",
        queries=(("sum by (quota) (rate(siltstone_broker_throttled_ms_total[5m]))", "{{quota}}"),),
        unit="ms",
    ),
    Panel(
        title="Connections of Kafka's clients",
        queries=(
            (f"sum by (listener) ({_CONNECTIONS})", "{{listener}}"),
            ("siltstone_broker_connections_max", "limit"),
            ("siltstone_broker_throttled_connections", "throttled"),
            ("siltstone_broker_memory_waiting_connections", "wait for memory"),
        ),
    ),
    Panel(
        title="Memory of requests",
        queries=(
            ("kafka_network_socketserver_memorypoolused", "used"),
            ("kafka_network_socketserver_memorypoolavailable", "available"),
        ),
        unit="bytes",
    ),
)


def write_monitoring(folder: Path) -> list[Path]:
    """Write both files into a folder, which is made where it is missing; their paths.

    Raises UsageError if one of them exists already, OSError.
    """
    contents = {ALERTS_FILE: alert_rules().encode(), DASHBOARD_FILE: dashboard().encode()}
    paths = [folder / name for name in contents]
    for path in paths:
        if files.exists(path) or files.is_link(path):
            raise UsageError("the file exists already", path=path, advice="pass another folder for --out")
    files.make_directory(folder, parents=True)
    for path, data in zip(paths, contents.values(), strict=True):
        files.write_new(path, data)
    return paths


def alert_rules() -> str:
    """The rules as YAML. Each text is a JSON string, which YAML reads as it is."""
    lines = ["groups:", "  - name: siltstone", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expression)}",
            f"        for: {alert.lasting}",
            f"        labels: {{severity: {alert.severity}}}",
            f"        annotations: {{summary: {json.dumps(alert.summary)}, "
            f"description: {json.dumps(alert.advice)}}}",
        ]
    return "\n".join(lines) + "\n"


def dashboard() -> str:
    """The dashboard as JSON, two panels a row. The data source is chosen when it is imported."""
    source = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
    panels = [
        {
            "id": number + 1,
            "type": "timeseries",
            "title": panel.title,
            "datasource": source,
            "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + place), "expr": expression, "legendFormat": legend}
                for place, (expression, legend) in enumerate(panel.queries)
            ],
        }
        for number, panel in enumerate(PANELS)
    ]
    document = {
        "__inputs": [
            {
                "name": "DS_PROMETHEUS",
                "label": "Prometheus",
                "type": "datasource",
                "pluginId": "prometheus",
                "pluginName": "Prometheus",
            }
        ],
        "title": "Siltstone",
        "uid": "siltstone",
        "schemaVersion": 39,
        "time": {"from": "now-24h", "to": "now"},
        "refresh": "30s",
        "panels": panels,
    }
    return json.dumps(document, indent=2) + "\n"
