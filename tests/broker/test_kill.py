"""`kill -9` of a broker again and again, while real producers and a consumer go on.

Nothing that was acknowledged is lost or changes its place; an idempotent producer's records are there once
and in order; what a consumer has read once stays as it was.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from siltstone.base.clock import SystemClock
from siltstone.broker import separate
from tests.support.broker_process import BrokerProcess
from tests.support.going_on import (
    Reader,
    Sender,
    assert_nothing_is_lost,
    create_topic,
    everything,
    senders_to,
    work_until,
)
from tests.support.thoroughness import THOROUGH

KILLS = 40 if THOROUGH else 1
"""Under load; one more follows when all is acknowledged, if the test is thorough."""
KILLS_OF_COMMAND = 8
"""Of ``siltstone serve``, which serves the same broker: each start takes four processor seconds."""
MORE = range(200, 3000) if THOROUGH else range(100, 150)
"""Records between two kills."""
SETTINGS = {"log.flush.scheduler.interval.ms": "1000", "log.cleaner.enable": "false"}


def work_and_kill(
    broker: BrokerProcess | separate.BrokerProcess, address: str, kills: int
) -> tuple[list[Sender], Reader, dict[int, dict[int, int]]]:
    """Senders and a reader that have gone on through all kills, and everything that is there then."""
    rng = random.Random(26)
    create_topic(address)
    senders, watching = senders_to(address), Reader(address)
    for _ in range(kills):
        work_until(senders, watching, more=rng.choice(MORE))
        broker.kill()
        broker.start()
    for sender in senders:
        sender.finish()
    if THOROUGH:
        broker.kill()
        broker.start()
    log = everything(address)
    watching.close()
    return senders, watching, log


@pytest.mark.random
@pytest.mark.timeout(1800)
def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    with separate.BrokerProcess(tmp_path / "logs", config=SETTINGS, clock=SystemClock()) as broker:
        senders, watching, log = work_and_kill(broker, broker.address, KILLS)
    assert_nothing_is_lost(senders, watching, log)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_nothing_that_siltstone_serve_acknowledged_is_lost(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "logs", SETTINGS) as broker:
        senders, watching, log = work_and_kill(broker, broker.bootstrap, KILLS_OF_COMMAND)
        broker.stop()
    assert_nothing_is_lost(senders, watching, log)
    assert "Traceback" not in broker.errors, broker.errors
