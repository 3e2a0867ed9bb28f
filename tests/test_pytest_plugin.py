"""The pytest plugin, as a user's test sees it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from siltstone import testing

EXAMPLE = textwrap.dedent((testing.__doc__ or "").partition("::\n\n")[2].partition("\nNothing runs")[0])
FIXTURES = """\
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
"""
BROKERS = """\
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
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest prints of all test files here, in one process, which starts once."""
    folder = tmp_path_factory.mktemp("plugin")
    for name, test in (("example", EXAMPLE), ("fixtures", FIXTURES), ("brokers", BROKERS)):
        (folder / f"test_{name}.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "siltstone.testing", "-p", "no:cacheprovider"]
    command += [f"--rootdir={folder}", f"--basetemp={folder / 'base'}"]
    # To load the plugins of all that is installed takes seconds.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    completed = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return completed.stdout + completed.stderr


def outcomes(output: str, name: str) -> list[str]:
    """How the tests of a file came out, in order of the words."""
    results = re.findall(rf"^([A-Z]+) test_{name}\.py::test_", output, re.MULTILINE)
    assert results, output
    return sorted(results)


def test_the_example_of_the_plugin_passes(output: str) -> None:
    assert outcomes(output, "example") == ["PASSED"], output


def test_the_fixtures_clean_and_keep_time_and_say_what_cannot_be_cleaned(output: str) -> None:
    assert outcomes(output, "fixtures") == ["FAILED", "PASSED", "PASSED"], output
    assert re.search("^.*users-0 was not compacted: ", output, re.MULTILINE)


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["entry-points"]["pytest11"] == {"siltstone.testing": testing.__name__}


def test_a_broker_for_programs_that_use_a_client(output: str) -> None:
    assert outcomes(output, "brokers") == ["PASSED"] * 3, output
