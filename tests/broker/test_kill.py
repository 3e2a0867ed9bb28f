"""`kill -9` of a broker again and again, while real producers and a consumer go on.

Nothing that was acknowledged is lost or changes its place; an idempotent producer's records are there once
and in order; what a consumer has read once stays as it was.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.going_on import (
    Reader,
    assert_nothing_is_lost,
    create_topic,
    everything,
    senders_to,
    work_until,
)
from tests.support.thoroughness import THOROUGH

KILLS = 40 if THOROUGH else 1
"""Under load; one more follows when all is acknowledged, if the test is thorough."""
MORE = 3000 if THOROUGH else 300
"""Records between two kills, at most."""
SETTINGS = {"log.flush.scheduler.interval.ms": "1000", "log.cleaner.enable": "false"}


@pytest.mark.random
@pytest.mark.timeout(1800)
def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    rng = random.Random(26)
    with BrokerProcess(tmp_path / "logs", SETTINGS) as broker:
        create_topic(broker.bootstrap)
        senders, watching = senders_to(broker.bootstrap), Reader(broker.bootstrap)
        for _ in range(KILLS):
            work_until(senders, watching, more=rng.randrange(200, MORE))
            broker.kill()
            broker.start()
        for sender in senders:
            sender.finish()
        if THOROUGH:
            broker.kill()
            broker.start()
        log = everything(broker.bootstrap)
        watching.close()
        broker.stop()
    assert_nothing_is_lost(senders, watching, log)
    assert "Traceback" not in broker.errors, broker.errors
