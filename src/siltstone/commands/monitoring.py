"""``siltstone monitoring``: alert rules for Prometheus and a dashboard for Grafana, of a server's metrics.

Both are files that their users change: thresholds are a start.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alerting rule: it fires when ``expression`` has held for ``lasting``."""

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
        advice="The log names the error; restart the process.",
    ),
    Alert(
        name="SiltstoneCleanerStalled",
        expression=f"{_MANAGER}time_since_last_run_ms > 600000",
        lasting="5m",
        severity="warning",
        summary="The log cleaner has not looked at the logs for ten minutes",
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
        expression='siltstone_logs{state="due"} > 0 and on() '
        "(time() - siltstone_cleaner_last_success_timestamp_seconds > 7200)",
        lasting="10m",
        severity="warning",
        summary="{{ $value }} logs are due, and none was cleaned for two hours",
        advice="See whether the cleaner's engine is up, and the log.",
    ),
    Alert(
        name="SiltstoneEngineDown",
        expression="siltstone_cleaner_engine_up == 0",
        lasting="10m",
        severity="critical",
        summary="The cleaner's engine (Spark) is down: nothing is cleaned",
        advice="The log has the reason; without Spark the engine process works.",
    ),
    Alert(
        name="SiltstoneDirectoryOffline",
        expression="kafka_log_logmanager_logdirectoryoffline == 1",
        lasting="0m",
        severity="critical",
        summary="{{ $labels.logDirectory }} is out of service",
        advice="Replace the disk, restart the process.",
    ),
    Alert(
        name="SiltstoneDiskFull",
        expression="predict_linear(siltstone_directory_free_bytes[6h], 4 * 3600) < 0",
        lasting="30m",
        severity="critical",
        summary="The disk of {{ $labels.logDirectory }} is full in four hours",
        advice="The console's Topics page, sorted by bytes, says of what.",
    ),
    Alert(
        name="SiltstoneCompactionFailing",
        expression="increase(pulsar_compaction_failed_count[1h]) > 0",
        lasting="5m",
        severity="warning",
        summary="Side-by-side compaction of {{ $labels.topic }} fails",
        advice="siltstone topics compaction-status TOPIC has the reason.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel of the dashboard: a title, expressions with their legends, Grafana's name of the unit."""

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
