"""``siltstone compact`` against a cluster in memory: settings come back after a failure at any point."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from siltstone.base.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    CorruptFileError,
    DirectoryLockedError,
    DirectoryRefusedError,
    UnknownTopicError,
    UsageError,
)
from siltstone.base.files.locking import Lock
from siltstone.base.files.opening import Operation, observe
from siltstone.commands import live
from siltstone.commands.live import LiveSetting, LiveTopic, ReadBack, Restored
from tests.support.errors import raises_error

DEFAULTS = {
    "cleanup.policy": "delete",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "segment.ms": "604800000",
    "delete.retention.ms": "86400000",
}
OWN = {"cleanup.policy": "compact", "segment.ms": "5000"}


class Killed(BaseException):
    """What ends the process in a test."""


@dataclass
class FakeAdmin:
    """A cluster with the topic ``t``. Its call number ``fails_at`` ends in ``failure``, before it has done
    anything, or after it if ``fails_after``; with ``is_dead`` all calls from there on do."""

    own: dict[str, str] = field(default_factory=lambda: dict(OWN))
    topic_id: str | None = "first"
    cluster: str = "cluster"
    read_backs: list[ReadBack] = field(default_factory=lambda: [DIRTY, CLEAN])
    fails_at: int = -1
    fails_after: bool = False
    failure: BaseException = field(default_factory=Killed)
    calls: list[str] = field(default_factory=list)
    altered: list[Mapping[str, str | None]] = field(default_factory=list)

    def _called(self, name: str, *, done: bool = False) -> None:
        if not done:
            self.calls.append(name)
        if len(self.calls) - 1 == self.fails_at and done == self.fails_after:
            raise self.failure

    def cluster_id(self) -> str:
        self._called("cluster_id")
        return self.cluster

    def topic(self, name: str) -> LiveTopic | None:
        self._called("topic")
        if self.topic_id is None or name != "t":
            return None
        return LiveTopic(topic_id=self.topic_id, partitions=(0,))

    def settings(self, name: str) -> Mapping[str, LiveSetting]:
        self._called("settings")
        values = {**DEFAULTS, **self.own}
        return {key: LiveSetting(value=value, own=key in self.own) for key, value in values.items()}

    def alter(self, name: str, changes: Mapping[str, str | None]) -> None:
        self._called("alter")
        self.altered.append(changes)
        for key, value in changes.items():
            if value is None:
                self.own.pop(key, None)
            else:
                self.own[key] = value
        self._called("alter", done=True)

    def read_back(self, name: str, partition: int) -> ReadBack:
        self._called("read_back")
        return self.read_backs.pop(0) if len(self.read_backs) > 1 else self.read_backs[0]


DIRTY = ReadBack(start=0, end=10, records=10, superseded=6)
CLEAN = ReadBack(start=0, end=10, records=4, superseded=0)
REST = ReadBack(start=0, end=10, records=5, superseded=1)


@dataclass
class Time:
    """Time that passes only in pauses."""

    now: float = 0.0

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def waiting(self, timeout: float = 600.0, **others: object) -> live.Waiting:
        waiting = live.Waiting(timeout=timeout, stopwatch=lambda: self.now, pause=self.pause)
        return replace(waiting, **others)  # type: ignore[arg-type]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "state" / "compact.json"


def run(admin: FakeAdmin, journal: Path, *, dry_run: bool = False, **waiting: object) -> live.Result:
    return live.compact(
        admin,
        "t",
        bootstrap_server="there:9092",
        journal=journal,
        waiting=Time().waiting(**waiting),  # type: ignore[arg-type]
        dry_run=dry_run,
    )


def test_settings_are_set_for_a_time(journal: Path) -> None:
    admin = FakeAdmin()
    result = run(admin, journal)
    assert admin.altered == [
        {"min.cleanable.dirty.ratio": "0.0", "segment.ms": "1000"},
        {"min.cleanable.dirty.ratio": None, "segment.ms": "5000"},
    ]
    assert admin.own == OWN
    assert [partition.status for partition in result.partitions] == [live.CLEANED]
    assert (result.partitions[0].before, result.partitions[0].after) == (DIRTY, CLEAN)
    assert result.restored == (Restored(topic="t", restored=("min.cleanable.dirty.ratio", "segment.ms")),)
    assert not journal.exists()


def test_a_dry_run_changes_nothing(journal: Path) -> None:
    admin = FakeAdmin()
    result = run(admin, journal, dry_run=True)
    assert [change.name for change in result.changes] == ["min.cleanable.dirty.ratio", "segment.ms"]
    assert (admin.altered, admin.own, journal.parent.exists()) == ([], OWN, False)


def test_what_is_good_enough_stays(journal: Path) -> None:
    own = {**OWN, "segment.ms": "500", "min.cleanable.dirty.ratio": "0"}
    admin = FakeAdmin(own=dict(own))
    assert run(admin, journal).changes == ()
    assert (admin.altered, admin.own) == ([], own)


def calls_of_a_run(journal: Path) -> list[str]:
    admin = FakeAdmin()
    run(admin, journal)
    return admin.calls


@pytest.mark.parametrize("fails_after", [False, True])
def test_a_run_that_is_killed_at_any_call(journal: Path, *, fails_after: bool) -> None:
    """Killed: nothing of the run goes on, also not its restoring. The next run finds the journal."""
    names = calls_of_a_run(journal)
    points = [number for number, name in enumerate(names) if name == "alter" or not fails_after]
    assert len(points) >= 2
    for number in points:
        admin = FakeAdmin(fails_at=number, fails_after=fails_after)
        _killed(admin, journal)
        assert admin.own == OWN or journal.exists()
        admin.fails_at = -1
        with live.locked(journal):
            live.restore(admin, journal)
        assert (admin.own, journal.exists()) == (OWN, False), f"{number}: {names[number]}"


def _killed(admin: FakeAdmin, journal: Path) -> None:
    """A run whose cluster is gone for it from ``fails_at`` on."""

    class Gone(FakeAdmin):
        def _called(self, name: str, *, done: bool = False) -> None:
            super()._called(name, done=done)
            if 0 <= self.fails_at < len(self.calls) - 1:
                raise Killed

    gone = Gone(own=admin.own, fails_at=admin.fails_at, fails_after=admin.fails_after)
    with pytest.raises(Killed):
        run(gone, journal)


def test_a_run_that_is_killed_at_any_change_of_a_file(journal: Path) -> None:
    operations: list[Operation] = []
    run(FakeAdmin(), journal)  # makes the directory
    with observe(operations.append):
        run(FakeAdmin(), journal)
    assert len(operations) > 4
    for number in range(len(operations)):
        admin, seen = FakeAdmin(), 0

        def stop(_: Operation, number: int = number) -> None:
            nonlocal seen
            seen += 1
            if seen > number:
                raise Killed

        # A lock file that a killed run has left is one change less, so the last one may not come.
        with observe(stop), contextlib.suppress(Killed):
            run(admin, journal)
        assert seen
        run(admin, journal)
        assert (admin.own, journal.exists()) == (OWN, False), operations[number]


def test_an_error_while_waiting_restores(journal: Path) -> None:
    for number, name in enumerate(calls_of_a_run(journal)):
        if name != "read_back":
            continue
        admin = FakeAdmin(fails_at=number, failure=BrokerUnreachableError("no answer"))
        with pytest.raises(BrokerUnreachableError):
            run(admin, journal)
        assert (admin.own, journal.exists()) == (OWN, False)


def test_a_change_that_is_refused_leaves_no_journal(journal: Path) -> None:
    first = calls_of_a_run(journal).index("alter")
    admin = FakeAdmin(fails_at=first, failure=BrokerRefusedError("not authorized"))
    with pytest.raises(BrokerRefusedError, match="not authorized"):
        run(admin, journal)
    assert (admin.altered, journal.exists()) == ([], False)


def test_a_change_whose_answer_is_lost_is_restored(journal: Path) -> None:
    first = calls_of_a_run(journal).index("alter")
    admin = FakeAdmin(fails_at=first, fails_after=True, failure=BrokerUnreachableError("no answer"))
    with pytest.raises(BrokerUnreachableError):
        run(admin, journal)
    assert (admin.own, journal.exists()) == (OWN, False)


def test_a_broker_that_is_gone_leaves_the_journal(journal: Path) -> None:
    names = calls_of_a_run(journal)
    last = len(names) - 1 - names[::-1].index("alter")
    admin = FakeAdmin(fails_at=last, failure=BrokerUnreachableError("no answer"))
    with pytest.raises(BrokerUnreachableError, match="not restored") as raised:
        run(admin, journal)
    assert raised.value.advice is not None
    assert "--restore" in raised.value.advice
    entry = live.read_journal(journal)
    assert entry is not None
    assert (entry.topic_id, entry.bootstrap_server) == ("first", "there:9092")
    admin.fails_at = -1
    result = run(admin, journal)
    assert len(result.restored) == 2
    assert (admin.own, journal.exists()) == (OWN, False)


@pytest.mark.parametrize(
    "content", [b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"[]", b'{"a":"\xff"}']
)
def test_a_damaged_journal_is_named(journal: Path, content: bytes) -> None:
    journal.parent.mkdir(parents=True, exist_ok=True)
    journal.write_bytes(content)
    with raises_error(CorruptFileError, path=journal, about="no journal"):
        live.read_journal(journal)


def left_behind(journal: Path) -> FakeAdmin:
    """A cluster that a killed run has left with our settings, and its journal."""
    number = calls_of_a_run(journal).index("alter")
    admin = FakeAdmin(fails_at=number, fails_after=True)
    _killed(admin, journal)
    admin.fails_at = -1
    assert admin.own != OWN
    return admin


def test_a_value_of_another_client_stays(journal: Path) -> None:
    admin = left_behind(journal)
    admin.own["segment.ms"] = "7777"
    restored = live.restore(admin, journal, Time().pause)
    assert restored is not None
    assert restored.restored == ("min.cleanable.dirty.ratio",)
    assert restored.kept == ("segment.ms was changed meanwhile and stays 7777",)
    assert admin.own == {**OWN, "segment.ms": "7777"}
    assert not journal.exists()


@pytest.mark.parametrize("topic_id", [None, "second"])
def test_a_topic_that_was_deleted_since_is_left_alone(journal: Path, topic_id: str | None) -> None:
    admin = left_behind(journal)
    admin.topic_id, before = topic_id, len(admin.altered)
    restored = live.restore(admin, journal, Time().pause)
    assert restored is not None
    assert "deleted" in restored.kept[0]
    assert (len(admin.altered), journal.exists()) == (before, False)


@pytest.mark.parametrize("stale", ["no topic", "an older topic", "older settings"])
def test_a_broker_with_old_metadata_does_not_end_a_restoration(journal: Path, stale: str) -> None:
    """Else the journal is gone, and the temporary settings stay."""
    admin, passed = left_behind(journal), list[float]()
    own = dict(admin.own)
    if stale == "older settings":
        admin.own["segment.ms"] = "4444"  # before that of OWN was set
    else:
        admin.topic_id = None if stale == "no topic" else "an older one"

    def learn(seconds: float) -> None:
        passed.append(seconds)
        admin.topic_id, admin.own = "first", own

    restored = live.restore(admin, journal, learn)
    assert restored is not None and restored.kept == () and len(passed) == 1
    assert (admin.own, journal.exists()) == (OWN, False)


def test_the_journal_of_another_cluster_is_kept(journal: Path) -> None:
    left_behind(journal)
    other = FakeAdmin(cluster="other")
    with pytest.raises(DirectoryRefusedError, match="another cluster"):
        run(other, journal)
    assert (other.altered, journal.exists()) == ([], True)


def test_a_user_without_a_home_directory_has_to_name_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2_000_000_001)  # as in a container: without a name
    with raises_error(UsageError, path="--journal", about="no home directory", advice="pass --journal"):
        live.default_journal()
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert live.default_journal() == Path("/state/siltstone/compact.json")


def test_nothing_to_restore(journal: Path) -> None:
    assert live.restore(FakeAdmin(), journal) is None


@pytest.mark.parametrize("contents", [b"", b"{}", b"\xff\x00", b"[" * 100_000, b'{"version": 1, "topic": 3}'])
def test_a_damaged_journal_stops_a_run(journal: Path, contents: bytes) -> None:
    journal.parent.mkdir()
    journal.write_bytes(contents)
    admin = FakeAdmin()
    with pytest.raises(CorruptFileError):
        run(admin, journal)
    assert (admin.altered, journal.read_bytes()) == ([], contents)


def test_one_run_at_a_time(journal: Path) -> None:
    journal.parent.mkdir()
    lock = Lock(journal.with_name("compact.json.lock"))
    with pytest.raises(DirectoryLockedError):
        run(FakeAdmin(), journal)
    lock.release()
    assert run(FakeAdmin(), journal).partitions


def test_refused_topics(journal: Path) -> None:
    with pytest.raises(UsageError, match=r"cleanup\.policy"):
        run(FakeAdmin(own={}), journal)
    with pytest.raises(UnknownTopicError):
        run(FakeAdmin(topic_id=None), journal)


def test_what_stays_in_the_active_segment_settles(journal: Path) -> None:
    result = run(FakeAdmin(read_backs=[DIRTY, REST]), journal)
    assert [(partition.status, partition.after) for partition in result.partitions] == [(live.SETTLED, REST)]


def test_the_time_is_over(journal: Path) -> None:
    admin = FakeAdmin(read_backs=[DIRTY])
    assert [partition.status for partition in run(admin, journal, timeout=100).partitions] == [live.TIMED_OUT]
    assert admin.own == OWN


def test_the_checkpoint_is_waited_for(journal: Path, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "t-0"
    log.mkdir(parents=True)
    for base in (0, 40, 70):
        (log / f"{base:020}.log").touch()
    time = Time()

    def pause(seconds: float) -> None:
        time.pause(seconds)
        if time.now >= 20:
            (log.parent / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 70\n")

    admin = FakeAdmin()
    result = run(admin, journal, log_dirs=(log.parent,), stopwatch=lambda: time.now, pause=pause)
    assert [
        (partition.status, partition.cleaned_to, partition.active_from) for partition in result.partitions
    ] == [(live.CLEANED, 70, 70)]
    assert 20 <= time.now < 22
    assert "read_back" not in admin.calls
