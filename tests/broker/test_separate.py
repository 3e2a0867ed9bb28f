"""The broker in a process of its own: the surface of the one in this process, and its end in every case."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka as ck
import psutil
import pytest

from siltstone.base.clock import ManualClock, SystemClock
from siltstone.base.errors import (
    BrokerUnreachableError,
    InvalidPartitionsError,
    StorageError,
    UnknownTopicError,
    UsageError,
)
from siltstone.broker import keeper as keeping
from siltstone.broker.calls import CalledMethod, Channel, RaisedError
from siltstone.broker.embedded import EmbeddedBroker
from siltstone.broker.keeper import keeper
from siltstone.broker.separate import BrokerProcess, BrokerTopics
from siltstone.broker.store import load_kernels
from siltstone.log.names import CLEAN_SHUTDOWN
from siltstone.runtime.producing import NewRecord
from siltstone.runtime.topics import Topics
from tests.support.embedded import sent

LIMIT_S = 20


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as broker:
        yield broker


@pytest.fixture(scope="module")
def loaded() -> None:
    """The kernels of this process, which the keepers and brokers of its forks need not load."""
    load_kernels()


def values(broker: BrokerProcess, topic: str = "users") -> list[bytes | None]:
    return [record.value for record in broker[topic]]


def is_there(pid: int) -> bool:
    """Is there such a process, not only its exit status?"""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_program_with_threads_gets_one_too() -> None:
    """The first test here, as the others use the keeper that it starts."""
    if keeping._keepers:
        keeper().end()
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    try:
        with BrokerProcess() as broker:
            broker.topics.create("users", 1)
            assert sent(broker, b"value") == [None]
            assert values(broker) == [b"value"]
            assert keeper()._process is not None
    finally:
        is_over.set()
        thread.join()


def test_it_has_what_the_one_in_this_process_has(broker: BrokerProcess) -> None:
    for name, member in inspect.getmembers(EmbeddedBroker):
        if name in ("__init__", "__getitem__") or (not name.startswith("_") and name != "logs"):
            assert hasattr(broker, name), name
            if inspect.isfunction(member):
                assert parameters(getattr(BrokerProcess, name)) == parameters(member), name
    for name, member in inspect.getmembers(BrokerTopics, inspect.isfunction):
        if not name.startswith("_"):
            assert parameters(member) == parameters(getattr(Topics, name)), name


def parameters(function: Callable[..., object]) -> list[tuple[str, object, object]]:
    found = inspect.signature(function).parameters.values()
    return [(one.name, one.kind, one.default) for one in found]


def test_a_day_with_it(broker: BrokerProcess) -> None:
    broker.topics.create("users", 2, {"cleanup.policy": "compact"})
    assert broker.topics.describe("users").config == {"cleanup.policy": "compact"}
    assert broker.topics.add_partitions("users", 3).partitions == (0, 1, 2)
    row = NewRecord(key=b"key", value=b"old", headers={"a": b"1", "b": None}, timestamp=7)
    (stored,) = broker.send_many("users", [row], partition=1)
    assert (stored.topic_partition.partition, stored.offset, stored.timestamp) == (1, 0, 7)
    (record,) = broker["users"]
    assert (record.key, record.timestamp, dict(record.headers)) == (b"key", 7, {b"a": b"1", b"b": None})
    broker.send("users", b"new", key=b"key", partition=1)
    assert [result.status for result in broker.compact("users")].count("cleaned") == 1
    assert values(broker) == [b"new"]
    broker.topics.create("events", 1, {"retention.ms": "1000", "segment.ms": "500"})
    broker.send("events", b"early")
    for step in (600, 300_000):
        broker.clock.advance(step)  # type: ignore[attr-defined]
        broker.send("events", b"late")
        broker.tick()
    assert b"early" not in values(broker, "events")
    broker.send("events", b"after the tick")  # above the high watermark of the last checkpoint
    assert values(broker, "events")[-1] == b"after the tick"
    broker.topics.delete("events")
    assert broker.topics.names() == ["users"]


def test_clients_meet_the_faults(broker: BrokerProcess) -> None:
    broker.topics.create("users", 1)
    broker.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    broker.cut("Produce", after=True)
    broker.delay("Produce", 0.01)
    assert broker.due == 4
    assert sent(broker, b"value", **{"enable.idempotence": True}) == [None]
    broker.heal()
    assert (broker.due, values(broker)) == (0, [b"value"])


def test_errors_are_those_of_the_other_process(broker: BrokerProcess, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicError, match="none"):
        broker.topics.describe("none")
    with pytest.raises(InvalidPartitionsError):
        broker.topics.create("users", 0)
    with pytest.raises(UsageError, match="NO_SUCH") as raised:
        broker.fail("Produce", "NO_SUCH")
    assert raised.value.advice
    with pytest.raises(UsageError, match=r"num\.partition"):
        BrokerProcess(tmp_path / "logs", config={"num.partition": 3})
    assert not (tmp_path / "logs").exists()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="not a directory"):
        BrokerProcess(tmp_path / "file")
    with pytest.raises(UsageError, match="clock"):
        BrokerProcess(clock=ManualClock(5))
    for error in (ValueError("x"), FileNotFoundError(2, "no such file", "a")):
        again = RaisedError.of(error).to_exception()
        assert str(error) in str(again)
        assert isinstance(again, (RuntimeError, FileNotFoundError))
    assert broker.topics.names() == []


def test_a_port_that_is_taken_is_an_error(broker: BrokerProcess) -> None:
    with pytest.raises(UsageError, match="cannot listen"):
        BrokerProcess(port=int(broker.address.rpartition(":")[2]))
    with pytest.raises(UsageError, match="running"):
        broker.start()


def test_kill_and_start_keep_what_was_written_and_the_address(broker: BrokerProcess) -> None:
    broker.topics.create("users", 1)
    broker.clock.advance(1_000)  # type: ignore[attr-defined]
    assert sent(broker, b"one") == [None]
    address, pid, now = broker.address, broker.pid, broker.clock.now_ms()
    broker.kill()
    assert (broker.pid, broker.is_running) == (None, False)
    assert values(broker) == [b"one"]
    with pytest.raises(BrokerUnreachableError):
        broker.tick()
    broker.start()
    assert (broker.address, broker.clock.now_ms()) == (address, now)
    assert broker.pid != pid
    assert sent(broker, b"two") == [None]
    broker.stop()
    broker.stop()
    broker.start()
    assert values(broker) == [b"one", b"two"]


def test_another_process_kills_it(broker: BrokerProcess) -> None:
    broker.topics.create("users", 1)
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGKILL)
    with pytest.raises(BrokerUnreachableError):
        while True:
            broker.tick()
    until(lambda: not broker.is_running)
    with pytest.raises(BrokerUnreachableError):
        broker.pause()
    broker.start()
    assert broker.topics.names() == ["users"]


@pytest.mark.long
def test_the_keeper_is_killed_and_its_brokers_go_with_it(broker: BrokerProcess) -> None:
    pid = broker.pid
    assert pid is not None
    keeping = psutil.Process(pid).ppid()
    os.kill(keeping, signal.SIGKILL)
    until(lambda: not is_there(pid))
    with pytest.raises(BrokerUnreachableError):
        broker.tick()
    broker.start()
    assert broker.topics.names() == []


def test_a_paused_broker_answers_no_request_and_continues(broker: BrokerProcess) -> None:
    broker.topics.create("users", 1)
    broker.pause()
    with pytest.raises(UsageError, match="paused"):
        broker.tick()
    producer = ck.Producer({"bootstrap.servers": broker.address, "log_level": 0})
    producer.produce("users", b"value")
    assert producer.flush(0.2) == 1
    broker.resume()
    assert producer.flush(LIMIT_S) == 0
    assert values(broker) == [b"value"]
    broker.pause()  # and is closed all the same


def test_a_response_to_an_interrupted_call_is_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = socket.socketpair()
    program, broker = map(Channel, ends)

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with ends[0], ends[1]:
        monkeypatch.setattr(program, "receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            program.call(int, "one")
        monkeypatch.undo()
        assert broker.receive(CalledMethod).method == "one"
        with contextlib.suppress(EOFError):
            broker.answer(1)
        with pytest.raises(EOFError):
            program.call(int, "another")


@contextlib.contextmanager
def interrupted_while_stopped(pid: int) -> Iterator[None]:
    """What waits for a process in the block is interrupted as by a Ctrl-C, since the process is stopped."""

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    os.kill(pid, signal.SIGSTOP)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGALRM, before)
        os.kill(pid, signal.SIGCONT)


def test_a_broker_whose_call_was_interrupted_ends_in_order(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "logs") as broker:
        assert broker.pid is not None
        with interrupted_while_stopped(broker.pid):
            broker.tick()
        with pytest.raises(BrokerUnreachableError):
            broker.topics.names()
    assert (tmp_path / "logs" / CLEAN_SHUTDOWN).exists()


def test_an_interrupted_call_of_the_keeper_ends_no_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "logs") as broker:
        pid = broker.pid
        assert pid is not None
        keeper_pid = psutil.Process(pid).ppid()
        calls: tuple[Callable[[], object], ...] = (
            lambda: broker.is_running,
            lambda: BrokerProcess(tmp_path / "other"),
            broker.kill,
        )
        for call in calls[:2]:
            with interrupted_while_stopped(keeper_pid):
                call()
            assert broker.is_running and broker.topics.names() == []
        with interrupted_while_stopped(keeper_pid):
            calls[2]()
        until(lambda: not broker.is_running)
        broker.start()
        assert keeper()._channel is broker._keeper._channel and broker.topics.names() == []


def test_the_machines_clock(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "logs", clock=SystemClock()) as broker:
        broker.topics.create("users", 1)
        stored = broker.send("users", b"value")
        assert abs(stored.timestamp - SystemClock().now_ms()) < 60_000
    assert (tmp_path / "logs" / "users-0").is_dir()
    with pytest.raises(UsageError, match="closed"):
        broker.start()
    broker.close()


def in_a_fork(do: Callable[[], None]) -> int:
    """A fork of this process, which is a program with a single thread and without a keeper: it does
    something and ends, with 1 if that raises."""
    child = os.fork()
    if not child:
        status = 1
        try:
            do()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def assert_it_ends(pid: str, address: str, directory: str) -> None:
    until(lambda: not is_there(int(pid)))
    until(lambda: not Path(directory).parent.exists())
    host, _, port = address.rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), LIMIT_S)


def killed(broker: BrokerProcess) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_while_the_broker_is_stopped(broker: BrokerProcess) -> None:
    broker.pause()
    killed(broker)


def killed_while_a_fork_lives_on(broker: BrokerProcess) -> None:
    reading, writing = os.pipe()

    def live_on() -> None:
        with pytest.raises(UsageError, match="forked"):
            broker.tick()
        broker.close()
        os.write(writing, b".")
        time.sleep(LIMIT_S)

    in_a_fork(live_on)
    os.read(reading, 1)
    killed(broker)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(killed, marks=pytest.mark.long),
        killed_while_the_broker_is_stopped,
        killed_while_a_fork_lives_on,
    ],
)
@pytest.mark.usefixtures("loaded")
def test_it_ends_with_its_program(end: Callable[[BrokerProcess], None]) -> None:
    reading, writing = os.pipe()

    def program() -> None:
        broker = BrokerProcess()
        os.write(writing, f"{broker.pid} {broker.address} {broker.directory}\n".encode())
        end(broker)

    child = in_a_fork(program)
    os.close(writing)
    with open(reading) as printed:
        started = printed.readline().split()
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert_it_ends(*started)


WITHOUT_A_CLOSE = """
import sys
from siltstone.broker.separate import BrokerProcess
broker = BrokerProcess()
print(broker.pid, broker.address, broker.directory)
sys.exit(3)
"""


@pytest.mark.long
def test_it_ends_with_a_program_that_does_not_close_it() -> None:
    asked = [sys.executable, "-c", WITHOUT_A_CLOSE]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 3, done.stderr
    assert_it_ends(*done.stdout.split())


@pytest.mark.usefixtures("loaded")
def test_a_fork_of_the_program_may_connect_but_not_command(broker: BrokerProcess) -> None:
    broker.topics.create("users", 1)

    def program() -> None:
        with pytest.raises(UsageError, match="forked"):
            broker.tick()
        with pytest.raises(UsageError, match="forked"):
            broker.kill()
        broker.close()
        host, _, port = broker.address.rpartition(":")
        socket.create_connection((host, int(port)), LIMIT_S).close()
        with BrokerProcess() as own:  # with a keeper of its own
            own.topics.create("mine", 1)

    assert os.waitpid(in_a_fork(program), 0)[1] == 0
    assert broker.topics.names() == ["users"]


@pytest.mark.usefixtures("loaded")
def test_a_program_that_names_it_before_its_threads_forks_the_keeper() -> None:
    def program() -> None:
        assert not keeping._keepers
        from siltstone.testing import BrokerProcess as Named

        assert len(keeping._keepers) == 1
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        with Named() as broker:
            broker.topics.create("users", 1)
            broker.send("users", b"value")
            assert values(broker) == [b"value"]
        assert len(keeping._keepers) == 1
        assert keeping._keepers[0]._process is None

    assert os.waitpid(in_a_fork(program), 0)[1] == 0
