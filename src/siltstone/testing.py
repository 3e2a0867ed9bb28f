"""The pytest plugin: fixtures for programs that use Siltstone; pytest finds it where Siltstone is installed.

::

    def test_the_last_address_of_a_user_stays(siltstone_logs, siltstone_compact):
        siltstone_logs.topics.create("users", config={"cleanup.policy": "compact"})
        siltstone_logs.send("users", key=b"anna", value=b"Oslo")
        siltstone_logs.send("users", key=b"anna", value=b"Bergen")
        siltstone_compact("users")
        assert [record.value for record in siltstone_logs["users"]] == [b"Bergen"]

Nothing runs in a background thread, and the clock stands still until the test advances it:
``siltstone_clock.advance(60_000)`` (ms), then ``siltstone_logs.tick()`` does what is due by then (retention,
flushes, checkpoints).

``Broker`` (``siltstone_broker``) speaks Kafka's protocol, for tests of programs that use a Kafka client::

    def test_the_order_is_sent(siltstone_broker):
        program(bootstrap_servers=siltstone_broker.address)
        assert [record.value for record in siltstone_broker["orders"]] == [b"one"]

``BrokerProcess`` (``siltstone_broker_process``) is the same in a process of its own, which a test may also
kill, pause and start again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import siltstone as st

if TYPE_CHECKING:
    from siltstone.broker.embedded import EmbeddedBroker as Broker
    from siltstone.broker.separate import BrokerProcess
    from siltstone.compaction.report import LogResult

START_MS = 1_800_000_000_000
"""The clock's first time: 2027-01-15 08:00 UTC."""


def __getattr__(name: str) -> object:
    """``Broker`` and ``BrokerProcess``, which are imported when they are named: pytest loads this module in
    every run. The process that starts the processes of brokers (``broker.keeper``) is forked when
    ``BrokerProcess`` is named: that is best done before the program has threads."""
    if name == "Broker":
        from siltstone.broker.embedded import EmbeddedBroker

        return EmbeddedBroker
    if name == "BrokerProcess":
        from siltstone.broker.keeper import fork_ahead
        from siltstone.broker.separate import BrokerProcess

        fork_ahead()
        return BrokerProcess
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def pytest_collection_finish(session: pytest.Session) -> None:
    """If a test uses the fixture of ``BrokerProcess``: name it now, before a test starts threads."""
    if any("siltstone_broker_process" in getattr(item, "fixturenames", ()) for item in session.items):
        __getattr__("BrokerProcess")


@pytest.fixture
def siltstone_clock() -> st.ManualClock:
    """A clock that stands still until the test calls ``advance(ms)``."""
    return st.ManualClock(START_MS)


@pytest.fixture
def siltstone_directory(tmp_path: Path) -> Path:
    """The path of a log directory of the test's own, which is created when it is opened."""
    return tmp_path / "siltstone-logs"


@pytest.fixture
def siltstone_logs(siltstone_directory: Path, siltstone_clock: st.ManualClock) -> Iterator[st.OpenLogs]:
    """The log directory, open as by ``st.open(…, mode="a")``, with ``siltstone_clock`` as its clock. It is
    closed after the test."""
    # What otherwise runs in a pool of threads (deleting files) runs at once, in the test's own thread.
    with st.OpenLogs([siltstone_directory], clock=siltstone_clock, background=lambda task: task()) as logs:
        yield logs


@pytest.fixture
def siltstone_compact(siltstone_logs: st.OpenLogs) -> Callable[..., list[LogResult]]:
    """A function that compacts a topic now, ``siltstone_compact("users")``, or all topics without an
    argument, and returns the result of each log.

    Active segments are compacted, too, whatever the dirty ratio. The test fails if a log cannot be cleaned.
    Tombstones stay for ``delete.retention.ms`` after the cleaning: advance the clock, and compact again.
    """

    def compact(topic: str | Sequence[str] = ()) -> list[LogResult]:
        results = siltstone_logs.clean(topic)
        for result in results:
            if result.status in ("failed", "uncleanable"):
                pytest.fail(f"{result.topic_partition} was not compacted: {result.reason}")
        return results

    return compact


@pytest.fixture
def siltstone_broker() -> Iterator[Broker]:
    """A broker on a free port: ``siltstone_broker.address``. It is stopped, and its directory removed, after
    the test."""
    from siltstone.broker.embedded import EmbeddedBroker

    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def siltstone_broker_process() -> Iterator[BrokerProcess]:
    """``siltstone_broker`` in a process of its own, which may be killed, paused and started again."""
    from siltstone.broker.separate import BrokerProcess

    with BrokerProcess() as broker:
        yield broker
