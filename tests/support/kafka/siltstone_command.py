"""`siltstone`, run as an operator would: the command beside the running Python, its exit code and report."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.kafka.records import Partition

COMMAND_TIMEOUT_S = 240
SEGMENT_BYTES = 16384
SEGMENT_INDEX_BYTES = 4096
INDEX_INTERVAL_BYTES = 1024
POLICY = {
    "cleanup.policy": "compact",
    "segment.bytes": str(SEGMENT_BYTES),
    "segment.index.bytes": str(SEGMENT_INDEX_BYTES),
    "index.interval.bytes": str(INDEX_INTERVAL_BYTES),
    "min.cleanable.dirty.ratio": "0.0",
}


class Finished(NamedTuple):
    """A command that ended."""

    returncode: int
    stdout: str
    stderr: str


def run_siltstone(*arguments: str | Path) -> Finished:
    """Run `siltstone ARGUMENTS`; it must end in time and never show a traceback."""
    command = Path(sys.executable).parent / "siltstone"
    assert command.exists(), f"{command} is missing: the package is not installed in this environment"
    completed = subprocess.run(
        [str(command), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert "Traceback" not in completed.stderr, completed.stderr
    return Finished(completed.returncode, completed.stdout, completed.stderr)


def clean(log_dir: Path, topics: Iterable[str], *arguments: str | Path, engine: str = "spark") -> Finished:
    """`siltstone clean LOG_DIR --topic … --config … --json`; `arguments`: `--in-place`, `--out NEW`…"""
    chosen = [part for topic in topics for part in ("--topic", topic)]
    policy = [part for name, value in POLICY.items() for part in ("--config", f"{name}={value}")]
    return run_siltstone("clean", log_dir, f"--engine={engine}", *arguments, *chosen, *policy, "--json")


def report_of(finished: Finished) -> dict[Partition, dict[str, Any]]:
    """The JSON report by topic and partition, of a run that must have ended well and cleaned every log."""
    assert finished.returncode == 0, (
        f"exit code {finished.returncode}\n{finished.stdout[-2000:]}\n{finished.stderr[-4000:]}"
    )
    logs: list[dict[str, Any]] = json.loads(finished.stdout)["logs"]
    assert all(log["status"] == "cleaned" for log in logs), finished.stdout
    return {(log["topic"], log["partition"]): log for log in logs}
