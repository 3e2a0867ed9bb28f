"""Prometheus' own tool reads the alert rules; each fires where it should, and is silent where it should."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from siltstone.commands.monitoring import ALERTS, ALERTS_FILE, PANELS, write_monitoring

# By alert: series that let it fire after six hours, and series that do not.
_MANAGER, _REQUESTS = "kafka_log_logcleanermanager_", "kafka_network_requestmetrics_"
SERIES = {
    "SiltstoneCleanerDead": [("kafka_log_logcleaner_deadthreadcount", "1x400", "0x400")],
    "SiltstoneCleanerStalled": [(f"{_MANAGER}time_since_last_run_ms", "600001x400", "599999x400")],
    "SiltstoneCleanerBehind": [("kafka_log_logcleaner_max_compaction_delay_secs", "3601x400", "3600x400")],
    "SiltstoneLogsUncleanable": [(f"{_MANAGER}uncleanable_partitions_count", "2x400", "0x400")],
    "SiltstoneDueWithoutCleaning": [
        ('siltstone_logs{state="due"}', "3x400", "3x400"),
        ("siltstone_cleaner_last_success_timestamp_seconds", "60x400", "18000x400"),
        # Another server, which has had nothing to clean for hours, says nothing of the first one's logs.
        ('siltstone_logs{state="due",instance="idle"}', "0x400", "0x400"),
        ('siltstone_cleaner_last_success_timestamp_seconds{instance="idle"}', "60x400", "60x400"),
    ],
    "SiltstoneEngineDown": [("siltstone_cleaner_engine_up", "0x400", "1x400")],
    "SiltstoneDirectoryOffline": [("kafka_log_logmanager_logdirectoryoffline", "1x400", "0x400")],
    "SiltstoneDiskFull": [("siltstone_directory_free_bytes", "1000000-2500x400", "1000000-100x400")],
    "SiltstoneCompactionFailing": [("pulsar_compaction_failed_count", "0+1x400", "7x400")],
    "SiltstoneRequestErrors": [
        (f'{_REQUESTS}errors_total{{request="Produce",error="KAFKA_STORAGE_ERROR"}}', "0+1x400", "3x400"),
        (f'{_REQUESTS}errors_total{{request="Fetch",error="OFFSET_OUT_OF_RANGE"}}', "0+1x400", "0+1x400"),
    ],
    "SiltstoneProduceSlow": [
        (f'{_REQUESTS}localtimems_bucket{{request="Produce",le="{bound}"}}', slow, fast)
        for bound, slow, fast in (
            ("100.0", "0+98x400", "0+100x400"),
            ("250.0", "0+100x400", "0+100x400"),
            ("+Inf", "0+100x400", "0+100x400"),
        )
    ],
    "SiltstoneClientsThrottled": [
        ('siltstone_broker_throttled_ms_total{quota="Produce"}', "0+31000x400", "0+29000x400")
    ],
    "SiltstoneBrokerMemoryShort": [("siltstone_broker_memory_waiting_connections", "1x400", "0x400")],
    "SiltstoneConnectionsNearLimit": [
        ('kafka_server_socket_server_metrics_connection_count{listener="A"}', "500x400", "500x400"),
        ('kafka_server_socket_server_metrics_connection_count{listener="B"}', "401x400", "400x400"),
        ("siltstone_broker_connections_max", "1000x400", "1000x400"),
    ],
    "SiltstoneConnectionsRefused": [("siltstone_broker_refused_connections_total", "0+1x400", "9x400")],
}
AT = "6h"


def values(text: str) -> str:
    """``1x400`` in promtool's words: the value, 400 times more, a minute apart."""
    return text if "+" in text or "-" in text else text.replace("x", "+0x")


@pytest.mark.parametrize("fires", [True, False], ids=["fires", "silent"])
def test_each_alert_fires_and_is_silent_as_it_should(tmp_path: Path, fires: bool) -> None:
    """promtool evaluates all rules once, over the series of all alerts: no two alerts share a metric."""
    assert [alert.name for alert in ALERTS] == list(SERIES)
    metrics = Counter(
        metric for rows in SERIES.values() for metric in {name.partition("{")[0] for name, *_ in rows}
    )
    assert max(metrics.values()) == 1, metrics
    write_monitoring(tmp_path)
    assert_holds(tmp_path, dict.fromkeys(SERIES, fires), dict.fromkeys(SERIES, fires))


def test_a_wrong_alert_is_named(tmp_path: Path) -> None:
    """Of two alerts, the one that is silent where it should fire."""
    write_monitoring(tmp_path)
    is_wrong = {"SiltstoneEngineDown": False, "SiltstoneCleanerDead": True}
    with pytest.raises(AssertionError, match="SiltstoneEngineDown") as raised:
        assert_holds(tmp_path, is_wrong, dict.fromkeys(is_wrong, True))
    assert "SiltstoneCleanerDead" not in str(raised.value)


def assert_holds(folder: Path, series_fire: Mapping[str, bool], alert_fires: Mapping[str, bool]) -> None:
    """promtool finds each alert firing at ``AT`` or not, of series that let it fire or do not."""
    series = [
        {"series": series_name, "values": values(firing if series_fires else silent)}
        for name, series_fires in series_fire.items()
        for series_name, firing, silent in SERIES[name]
    ]
    expected = [
        {
            "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
            "eval_time": AT,
            "exp_samples": [{"labels": "{}", "value": int(fires)}],
        }
        for name, fires in alert_fires.items()
    ]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": expected}
    document = {"rule_files": [ALERTS_FILE], "evaluation_interval": "1m", "tests": [test]}
    (folder / "test.yml").write_text(json.dumps(document))  # JSON is YAML
    completed = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_the_rules_and_the_dashboards_expressions_are_read(tmp_path: Path) -> None:
    write_monitoring(tmp_path)
    rules = [
        {"record": f"panel:{number}", "expr": query}
        for number, query in enumerate(query for panel in PANELS for query, _ in panel.queries)
    ]
    panels = {"groups": [{"name": "panels", "rules": rules}]}
    (tmp_path / "panels.yml").write_text(json.dumps(panels))
    for name in (ALERTS_FILE, "panels.yml"):
        completed = subprocess.run(
            ["promtool", "check", "rules", name], cwd=tmp_path, capture_output=True, check=False
        )
        assert completed.returncode == 0, completed.stderr
