"""`clean --watch` beside a broker that serves: it sees its logs, and changes nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka.broker import Broker
from tests.support.kafka.logdir import closed_segments, copy_of
from tests.support.kafka.records import Partition
from tests.support.kafka.scenario import PARTITIONS, Written

pytestmark = pytest.mark.kafka
LOOKS = 3
PATIENCE_S = 60


def looks(log_dir: Path) -> list[dict[str, Any]]:
    """What a few looks say, one a second; then Ctrl-C, which must end it well."""
    command = [
        str(Path(sys.executable).parent / "siltstone"),
        *("clean", str(log_dir), "--watch", "--interval", "1", "--policy-from-metadata", "--json"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None and watch.stderr is not None
        found = [json.loads(watch.stdout.readline()) for _ in range(LOOKS)]
        watch.send_signal(signal.SIGINT)
        said = watch.stderr.read()
        assert watch.wait(PATIENCE_S) == 130, said
    assert "Traceback" not in said
    return found


def closed(log_dir: Path) -> dict[Partition, object]:
    return {(topic, number): closed_segments(log_dir, topic, number) for topic, number in PARTITIONS}


@pytest.mark.timeout(PATIENCE_S * 3)
def test_it_looks_at_a_living_broker(written: Written, tmp_path: Path) -> None:
    log_dir = copy_of(written.log_dir, tmp_path / "logs")
    with Broker(log_dir) as broker:
        before = closed(log_dir)
        seen = looks(log_dir)
        assert closed(log_dir) == before
        assert broker.consume_many(PARTITIONS) == {each: written.records[each] for each in PARTITIONS}
    for look in seen:
        states = {(log["topic"], log["partition"]): log["state"] for log in look["logs"]}
        assert set(PARTITIONS) <= set(states)
        assert "unreadable" not in states.values() and look.get("error") is None
        assert [each["in_use"] for each in look["directories"]] == [True]
