"""``siltstone monitoring``: writes alert rules and a dashboard."""

from __future__ import annotations

from pathlib import Path

from siltstone.cli import output
from siltstone.commands.monitoring import write_monitoring


def monitoring(*, out: Path) -> int:
    """Write alert rules for Prometheus and a dashboard for Grafana, for the metrics of siltstone serve.

    Parameters
    ----------
    out
        The folder for siltstone-alerts.yml and siltstone-dashboard.json; existing files are not replaced.
    """
    for path in write_monitoring(out):
        output.write_lines(str(path))
    return 0
