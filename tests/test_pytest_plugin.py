"""The pytest plugin, as a user's test sees it."""

from __future__ import annotations

import textwrap
import tomllib
from pathlib import Path

import pytest

from siltstone import testing

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def without_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """To load those of all that is installed takes seconds."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester: pytest.Pytester, test: str) -> pytest.RunResult:
    """The result of one test file in which the plugin is loaded."""
    pytester.makepyfile(textwrap.dedent(test))
    return pytester.runpytest_subprocess("-p", "siltstone.testing", "-p", "no:cacheprovider")


def test_the_example_of_the_plugin_passes(pytester: pytest.Pytester) -> None:
    example = textwrap.dedent((testing.__doc__ or "").partition("::\n\n")[2].partition("\nNothing runs")[0])
    run(pytester, example).assert_outcomes(passed=1)


def test_its_fixtures_clean_and_keep_time_and_say_what_cannot_be_cleaned(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        def test_a_deleted_user_is_gone_after_a_day(siltstone_logs, siltstone_compact, siltstone_clock):
            siltstone_logs.topics.create("users", config={"cleanup.policy": "compact"})
            siltstone_logs.send("users", key=b"anna", value=b"1")
            siltstone_logs.send("users", key=b"anna")
            siltstone_logs.send("users", key=b"ben", value=b"1")
            siltstone_compact()
            assert [record.value for record in siltstone_logs["users"]] == [None, b"1"]
            siltstone_clock.advance(86_400_001)
            siltstone_logs.send("users", key=b"ben", value=b"2")
            siltstone_compact("users")
            assert [record.value for record in siltstone_logs["users"]] == [b"2"]

        def test_old_records_go(siltstone_logs, siltstone_clock, siltstone_directory):
            siltstone_logs.topics.create("events", config={"retention.ms": 1000, "segment.ms": 500})
            siltstone_logs.send("events", b"old")
            siltstone_clock.advance(600)
            siltstone_logs.send("events", b"new")
            siltstone_clock.advance(300_000)
            siltstone_logs.tick()
            assert b"old" not in [record.value for record in siltstone_logs["events"]]
            assert (siltstone_directory / "events-0").is_dir()

        def test_damage(siltstone_logs, siltstone_compact):
            siltstone_logs.topics.create("users", config={"cleanup.policy": "compact"})
            siltstone_logs.send("users", key=b"anna", value=b"1")
            siltstone_logs.flush()
            path = siltstone_logs["users", 0].directory / f"{0:020d}.log"
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
            siltstone_compact("users")
        """,
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*users-0 was not compacted: *"])


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["entry-points"]["pytest11"] == {"siltstone.testing": testing.__name__}


def test_a_broker_for_programs_that_use_a_client(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        """
        import confluent_kafka, threading, time

        def test_the_order_is_sent(siltstone_broker):
            producer = confluent_kafka.Producer({"bootstrap.servers": siltstone_broker.address})
            producer.produce("orders", b"one")
            assert producer.flush(20) == 0
            assert [record.value for record in siltstone_broker["orders"]] == [b"one"]

        def test_by_hand():
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
            from siltstone.testing import Broker
            with Broker() as broker:
                assert broker.topics.names() == []

        def test_in_a_process_of_its_own(siltstone_broker_process):
            assert siltstone_broker_process._keeper._process is None  # forked before there were threads
            siltstone_broker_process.topics.create("orders")
            siltstone_broker_process.send("orders", b"one")
            siltstone_broker_process.kill()
            siltstone_broker_process.start()
            assert [record.value for record in siltstone_broker_process["orders"]] == [b"one"]
        """,
    ).assert_outcomes(passed=3)
