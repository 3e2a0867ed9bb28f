"""`siltstone clean --watch`: states, JSON lines, tables; beside who changes the logs; nothing is changed."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from siltstone.base.clock import ManualClock
from siltstone.cli import watch as command
from siltstone.commands import clean as app
from siltstone.commands import watch as outlook
from siltstone.commands import watch as watching
from siltstone.commands.policies import LogOptions
from siltstone.commands.watch import Watch, WatchSnapshot
from siltstone.compaction.inplace.planning import NO_HIGH_WATERMARK, POLICY_UNKNOWN
from siltstone.log.names import STAGING, TopicPartition
from siltstone.runtime.log_cleaner import make_candidate
from siltstone.runtime.manager import LogManager
from siltstone.runtime.served_directory import UNCLEANABLE_FILE
from tests.support.cleaning.serving import (
    SOON,
    USERS,
    Blocking,
    TransactionalWriter,
    in_background,
    joined,
    serving,
    write,
)
from tests.support.command_line import Command, Done, tree
from tests.support.golden_sets import write_checkpoint
from tests.support.log.managed import MINUTE, NOW
from tests.support.operator.staged import in_process

DAY = 24 * 60 * MINUTE
Between = Callable[[], object]


@pytest.fixture
def watch(siltstone: Command, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """`clean DIR --watch …` with as many looks as ``between`` has entries, and one more; then Ctrl-C."""

    def call(*arguments: object, between: tuple[Between, ...] = (), now_ms: int | None = NOW) -> Done:
        waiting = iter(between)

        def pause(seconds: float) -> None:
            step = next(waiting, None)
            if step is None:
                raise KeyboardInterrupt
            step()

        monkeypatch.setattr(command, "pause", pause)
        clock = () if now_ms is None else ("--now-ms", now_ms)
        return siltstone("clean", *arguments, "--watch", *clock)

    return call


def by_log(snapshot: dict[str, Any]) -> dict[str, Any]:
    return {f"{log['topic']}-{log['partition']}": log for log in snapshot["logs"]}


def states(snapshot: dict[str, Any]) -> dict[str, str]:
    return {name: log["state"] for name, log in by_log(snapshot).items()}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``stopped`` is a copy of."""
    path = tmp_path_factory.mktemp("original") / "logs"
    with serving(path, partitions=3) as (manager, cleaner):
        manager.topics.create("plain", 1)
        for number in (0, 2):
            write(manager["users", number], 60, keys=30)
        cleaner.clean_once()
        write(manager["users", 1], 60)
        write(manager["users", 2], 20)
    return path


@pytest.fixture
def stopped(original: Path, tmp_path: Path) -> Path:
    """``users``: 0 was cleaned, 1 is dirty enough, 2 is not yet; ``plain-0`` is not compacted."""
    return shutil.copytree(original, tmp_path / "logs")


def test_each_log_has_its_state_and_its_numbers(watch: Callable[..., Done], stopped: Path) -> None:
    before = tree(stopped)
    completed = watch(stopped, "--json", between=(int, int))
    assert (completed.status, completed.err, len(completed.documents)) == (130, "", 3)
    assert tree(stopped) == before
    snapshot = completed.documents[0]
    assert completed.documents == [snapshot] * 3
    assert snapshot["at_ms"] == NOW and snapshot["directories"] == [{"path": str(stopped), "in_use": False}]
    expected = {"plain-0": "skipped", "users-0": "up_to_date", "users-1": "due", "users-2": "dirty"}
    assert states(snapshot) == expected
    logs = by_log(snapshot)
    cleaned, due = logs["users-0"], logs["users-1"]
    assert cleaned["cleanup_policy"] == "compact"
    assert cleaned["cleanup_policy_source"] == "siltstone-topics.json"
    assert cleaned["min_cleanable_dirty_ratio"] == 0.5
    assert cleaned["cleaner_checkpoint"] == cleaned["first_dirty_offset"] > 0
    last = cleaned["last_cleaning"]
    assert (last["status"], last["began_ms"]) == ("cleaned", NOW) and last["removed"]["superseded"] > 20
    assert last["bytes_after"] < last["bytes_before"] and 0 < last["recopy_percent"] < 100
    assert (due["dirty_ratio"], due["clean_bytes"], due["cleaner_checkpoint"]) == (1.0, 0, None)
    sizes = [path.stat().st_size for path in sorted((stopped / "users-1").glob("*.log"))]
    assert (due["bytes"], due["dirty_bytes"]) == (sum(sizes), sum(sizes[:-1]))
    assert due["last_cleaning"] is None and logs["plain-0"]["reason"] == "cleanup.policy=delete"
    total = snapshot["total"]
    assert total["states"] == {"due": 1, "dirty": 1, "up_to_date": 1, "skipped": 1}
    assert total["dirty_bytes"] == sum(log["dirty_bytes"] or 0 for log in snapshot["logs"])


def test_only_the_topics_that_are_asked_for(watch: Callable[..., Done], stopped: Path) -> None:
    (snapshot,) = watch(stopped, "--topic", "plain", "--json").documents
    assert states(snapshot) == {"plain-0": "skipped"}
    (snapshot,) = watch(stopped / "users-1", "--json").documents
    assert states(snapshot) == {"users-1": "due"}


def test_settings_by_hand_win(watch: Callable[..., Done], stopped: Path, tmp_path: Path) -> None:
    flags = ("--topic", "users", "--config", "min.cleanable.dirty.ratio=0.1")
    (snapshot,) = watch(stopped, *flags, "--json").documents
    assert states(snapshot)["users-2"] == "due"
    settings = tmp_path / "settings"
    settings.write_text("plain:cleanup.policy=compact\n")
    (snapshot,) = watch(stopped, "--config-file", settings, "--json").documents
    assert states(snapshot)["plain-0"] == "up_to_date"
    assert by_log(snapshot)["plain-0"]["cleanup_policy_source"] == f"{settings}:1"


def test_the_range_is_the_one_that_the_cleaner_inside_goes_by(tmp_path: Path) -> None:
    """Two gatherers of facts, one from memory and one from the disk; clocks on both sides of the lags."""
    topic = {"min.compaction.lag.ms": str(MINUTE), "max.compaction.lag.ms": str(10 * MINUTE)}
    clock = ManualClock(NOW)
    with serving(tmp_path, topic=topic, clock=clock) as (manager, cleaner):
        log, seeing = manager[USERS], Watch([tmp_path], LogOptions(), clock)
        for step in range(8):
            write(log, 25, timestamp=clock.now_ms())
            log.flush()
            clock.advance(step * MINUTE)
            served = manager.directory_of(USERS)
            candidate = make_candidate(served, log, served.cleaner_checkpoint().get(USERS), clock.now_ms())
            (watched,) = seeing.snapshot().logs
            assert candidate is not None and watched.snapshot is not None
            assert watched.snapshot.range == candidate.cleanable_range, step
            assert watched.snapshot.is_due == candidate.is_eligible, step
            if step % 2:
                cleaner.clean_once()


def test_a_transaction_that_was_open_when_the_active_segment_began_bounds_the_range(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with serving(tmp_path, clock=clock) as (manager, _):
        log, seeing = manager[USERS], Watch([tmp_path], LogOptions(), clock)
        write(log, 30)
        writer = TransactionalWriter(log, 7)
        first = log.log_end_offset
        writer.put("a", "open ")
        write(log, 60)
        log.flush()
        (watched,) = seeing.snapshot().logs
        assert watched.snapshot is not None and 0 < watched.snapshot.range.end <= first
        writer.end(commit=True)
        log.flush()
        (watched,) = seeing.snapshot().logs
        assert watched.snapshot is not None
        assert watched.snapshot.range.end == log.view.segments[-1].base_offset


def test_an_uncleanable_log_has_its_reason_and_its_last_failure(
    watch: Callable[..., Done], tmp_path: Path
) -> None:
    with serving(tmp_path, partitions=2) as (manager, cleaner):
        for number in range(2):
            write(manager["users", number], 60)
        segment = manager[USERS].view.segments[1].path()
        raw = segment.read_bytes()
        segment.write_bytes(raw[:150] + bytes([raw[150] ^ 1]) + raw[151:])
        cleaner.clean_once()
    (tmp_path / "users-1" / "partition.metadata").write_bytes(b"version: 9\n")
    (snapshot,) = watch(tmp_path, "--json").documents
    log = by_log(snapshot)["users-0"]
    assert log["state"] == "uncleanable" and "checksum" in log["reason"]
    assert log["uncleanable_since_ms"] == NOW and log["last_failure"]["status"] == "uncleanable"
    assert log["last_cleaning"] is None and log["dirty_ratio"] == 1.0
    (tmp_path / UNCLEANABLE_FILE).write_bytes(b"{")
    (snapshot,) = watch(tmp_path, "--json").documents
    assert states(snapshot)["users-0"] == "due" and any(
        UNCLEANABLE_FILE in note for note in snapshot["notes"]
    )


def test_tombstones_of_an_idle_log_are_waited_for_and_then_may_go(
    watch: Callable[..., Done], tmp_path: Path
) -> None:
    with serving(tmp_path) as (manager, cleaner):
        write(manager[USERS], 5, value=None)
        write(manager[USERS], 60, keys=60)
        cleaner.clean_once()
    (early,) = watch(tmp_path, "--json", now_ms=NOW + DAY - 1).documents
    assert early["logs"][0]["state"] == "tombstones" and early["logs"][0]["delete_horizon_ms"] == NOW + DAY
    assert "passes in" in early["logs"][0]["reason"]
    (late,) = watch(tmp_path, "--json", now_ms=NOW + DAY).documents
    assert late["logs"][0]["state"] == "tombstones" and "have passed" in late["logs"][0]["reason"]


def test_a_horizon_that_passes_between_two_snapshots_is_noticed(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with serving(tmp_path, clock=clock) as (manager, cleaner):
        write(manager[USERS], 5, value=None)
        write(manager[USERS], 60, keys=60)
        cleaner.clean_once()
        seeing = Watch([tmp_path], LogOptions(), clock)
        reasons = []
        for wait_ms in (0, DAY - 1, 1):
            clock.advance(wait_ms)
            reasons.append(seeing.snapshot().logs[0].reason)
        assert "passes in 24 h" in reasons[0] and "passes in 0 s" in reasons[1]
        assert "have passed" in reasons[2]
        cleaner.clean_once()
        assert seeing.snapshot().logs[0].state == "up_to_date"


def test_a_bounded_part_of_the_headers_is_read_for_one_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, partitions=4) as (manager, cleaner):
        for number in range(4):
            write(manager["users", number], 60)
        cleaner.clean_once()
        monkeypatch.setattr(outlook, "HORIZON_BYTES", 1)
        seeing = Watch([tmp_path], LogOptions(), ManualClock(NOW))
        known = [
            sum(
                log.snapshot is not None and log.snapshot.horizons is not None
                for log in seeing.snapshot().logs
            )
            for _ in range(5)
        ]
        assert known == [1, 2, 3, 4, 4]


def test_a_log_that_is_overdue_says_by_how_much(watch: Callable[..., Done], tmp_path: Path) -> None:
    topic = {"max.compaction.lag.ms": str(MINUTE), "min.cleanable.dirty.ratio": "1.0"}
    with serving(tmp_path, topic=topic) as (manager, _):
        write(manager[USERS], 60)
    (snapshot,) = watch(tmp_path, "--json", now_ms=NOW + MINUTE).documents
    assert (states(snapshot)["users-0"], snapshot["total"]["overdue_ms"]) == ("dirty", 0)
    (snapshot,) = watch(tmp_path, "--json", now_ms=NOW + MINUTE + 5000).documents
    assert (states(snapshot)["users-0"], snapshot["total"]["overdue_ms"]) == ("due", 5000)


def test_a_running_cleaning_is_shown_and_then_its_result(watch: Callable[..., Done], tmp_path: Path) -> None:
    engine = Blocking()
    with serving(tmp_path, lambda: engine) as (manager, cleaner):
        write(manager[USERS], 60)
        cleaning = in_background(cleaner.clean_once)
        assert engine.staged.wait(SOON)

        def go_on() -> None:
            engine.go_on.set()
            joined(cleaning)

        during, after = watch(tmp_path, "--json", between=(go_on,)).documents
    assert during["directories"][0]["in_use"] and states(during) == {"users-0": "cleaning"}
    assert "run " in during["logs"][0]["reason"]
    assert states(after) == {"users-0": "up_to_date"}
    assert after["logs"][0]["last_cleaning"]["status"] == "cleaned"


def test_a_cleaning_may_end_while_its_staged_files_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path) as (manager, _):
        write(manager[USERS], 60)
        run = tmp_path / "users-0" / STAGING / "20260101T000000Z-1"
        run.mkdir(parents=True)
        listed = outlook.files.entries

        def then_removed(directory: Path) -> Any:
            entries = listed(directory)
            if directory == run.parent and run.exists():
                run.rmdir()
            return entries

        monkeypatch.setattr(outlook.files, "entries", then_removed)
        seeing = Watch([tmp_path], LogOptions(), ManualClock(NOW))
        log_states = [seeing.snapshot().logs[0].state for _ in range(2)]
        assert log_states == ["cleaning", "due"]
        run.parent.rmdir()
        assert seeing.snapshot().logs[0].state == "due"


def test_a_log_is_read_again_when_a_segment_vanishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = {"min.compaction.lag.ms": "1"}
    with serving(tmp_path, topic=topic, clock=ManualClock(NOW + MINUTE)) as (manager, cleaner):
        write(manager[USERS], 60, keys=30)
        manager.topics.alter("users", {"segment.bytes": "100000"})
        seeing = Watch([tmp_path], LogOptions(), ManualClock(NOW + MINUTE))
        listed = outlook.partition_entries
        swaps: list[int] = []

        def swapped_meanwhile(directory: Path, owner: int | None) -> Any:
            entries = listed(directory, owner)
            if not swaps:
                swaps.append(len(cleaner.clean_once()))
                for path in directory.glob("*.deleted"):
                    path.unlink()
            return entries

        monkeypatch.setattr(outlook, "partition_entries", swapped_meanwhile)
        (watched,) = seeing.snapshot().logs
        assert swaps == [1] and watched.state == "up_to_date" and watched.checkpoint is not None

        def never_there(directory: Path, owner: int | None) -> Any:
            raise FileNotFoundError(2, "No such file or directory", str(directory))

        monkeypatch.setattr(outlook, "partition_entries", never_there)
        assert seeing.snapshot().logs[0].state == "changing"


@pytest.mark.parametrize(("modified_ms", "state"), [(NOW - 10_000, "unreadable"), (NOW, "changing")])
def test_damage_in_a_directory_in_use_is_told_from_a_file_that_is_being_written(
    tmp_path: Path, modified_ms: int, state: str
) -> None:
    with serving(tmp_path) as (manager, _):
        write(manager[USERS], 60)
        manager[USERS].roll()
        manager.serving()[0].write_cleaner_checkpoint(USERS, manager[USERS].view.segments[-1].base_offset)
        closed = sorted(tmp_path.glob("users-0/*.log"))[0]
        closed.write_bytes(b"\xff" * closed.stat().st_size)
        os.utime(closed, ns=(0, modified_ms * 1_000_000))
        (log,) = Watch([tmp_path], LogOptions(), ManualClock(NOW)).snapshot().logs
    assert log.state == state and "byte 0" in log.reason


@pytest.mark.parametrize("in_use", [True, False])
def test_swap_leftovers_mean_a_cleaning_in_use_and_a_crash_otherwise(
    watch: Callable[..., Done], tmp_path: Path, in_use: bool
) -> None:
    with serving(tmp_path) as (manager, _):
        write(manager[USERS], 60)
        leftover = tmp_path / "users-0" / f"{0:020d}.log.cleaned"
        if in_use:
            leftover.write_bytes(b"")
            (snapshot,) = watch(tmp_path, "--json").documents
            leftover.unlink()
    if not in_use:
        leftover.write_bytes(b"")
        (snapshot,) = watch(tmp_path, "--json").documents
    assert states(snapshot) == {"users-0": "cleaning" if in_use else "skipped"}
    assert leftover.name in snapshot["logs"][0]["reason"]


def test_a_log_is_read_again_when_a_swap_ends_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path) as (manager, _):
        write(manager[USERS], 60)
        refusals: list[str | None] = ["an interrupted swap is unfinished", None]
        monkeypatch.setattr(watching, "refusal", lambda state, *listed: refusals.pop(0) if refusals else None)
        assert Watch([tmp_path], LogOptions(), ManualClock(NOW)).snapshot().logs[0].state == "due"
        assert refusals == []


def test_logs_and_directories_come_and_go(watch: Callable[..., Done], stopped: Path) -> None:
    away = stopped.with_name("away")

    def new_topic() -> None:
        with serving(stopped) as (manager, _):
            manager.topics.create("more", config={"cleanup.policy": "compact"})
            manager.topics.delete("plain")

    steps = (new_topic, lambda: stopped.rename(away), lambda: away.rename(stopped))
    first, second, third, fourth = watch(stopped, "--json", between=steps).documents
    assert set(states(first)) - set(states(second)) == {"plain-0"}
    assert set(states(second)) - set(states(first)) == {"more-0"}
    assert third["logs"] == [] and "no such directory" in third["error"]
    assert fourth["error"] is None and states(fourth) == states(second)


def test_a_stopped_brokers_logs_are_what_a_dry_run_says(
    watch: Callable[..., Done], stopped_broker: tuple[Path, Path]
) -> None:
    """Settings out of the metadata log, states as the planner decides."""
    (snapshot,) = watch(*stopped_broker, "--json").documents
    request = app.CleanRequest(
        directories=stopped_broker, dry_run=True, policy_from_metadata=True, now_ms=NOW
    )
    expected = {
        "cleaned": {"due", "tombstones"},
        "not_eligible": {"dirty"},
        "nothing_to_do": {"up_to_date", "tombstones"},
        "skipped": {"skipped"},
    }
    report = app.clean(request, engine=in_process)
    logs = by_log(snapshot)
    compared = set()
    for result in report.results:
        if str(result.topic_partition) in logs:
            assert logs[str(result.topic_partition)]["state"] in expected[result.status], result
            compared.add(result.status)
    assert compared >= {"cleaned", "skipped"}
    sources = {log["cleanup_policy_source"] for log in snapshot["logs"]}
    assert "DYNAMIC_TOPIC_CONFIG" in sources
    assert any("metadata log, up to offset" in note for note in snapshot["notes"])


def test_a_log_with_unknown_settings_is_skipped_with_advice(
    watch: Callable[..., Done], stopped: Path
) -> None:
    for path in stopped.glob("siltstone-*"):
        path.unlink()
    (snapshot,) = watch(stopped, "--json").documents
    assert set(states(snapshot).values()) == {"skipped"}
    assert snapshot["logs"][0]["reason"] == POLICY_UNKNOWN
    # A setting by hand tells no policy: Kafka's default, delete, may not be the topic's.
    (snapshot,) = watch(
        stopped, "--topic", "users", "--config", "min.cleanable.dirty.ratio=0", "--json"
    ).documents
    assert {(log["reason"], log["cleanup_policy"]) for log in snapshot["logs"]} == {(POLICY_UNKNOWN, None)}
    (stopped / "replication-offset-checkpoint").unlink()
    flags = ("--topic", "users", "--config", "cleanup.policy=compact")
    (snapshot,) = watch(stopped, *flags, "--json").documents
    assert {log["reason"] for log in snapshot["logs"]} == {NO_HIGH_WATERMARK}
    (snapshot,) = watch(stopped, *flags, "--high-watermark", "end", "--json").documents
    assert states(snapshot)["users-1"] == "due"


@pytest.mark.parametrize("created_by_siltstone", [True, False])
def test_an_entry_for_the_high_watermark_bounds_every_stopped_log(
    watch: Callable[..., Done], stopped: Path, created_by_siltstone: bool
) -> None:
    """As it bounds `clean`; only a directory in use has an owner that knows more than the entry."""
    if not created_by_siltstone:
        for path in stopped.glob("siltstone-*"):
            path.unlink()
    write_checkpoint(stopped / "replication-offset-checkpoint", {("users", 1): 0})
    flags = ("--topic", "users", "--config", "cleanup.policy=compact", "--high-watermark", "end")
    (snapshot,) = watch(stopped, *flags, "--json").documents
    assert by_log(snapshot)["users-1"]["first_uncleanable_offset"] == 0
    assert states(snapshot)["users-1"] == "up_to_date"


def test_a_brokers_topic_that_was_altered_may_have_other_replicas(
    watch: Callable[..., Done], stopped_broker: tuple[Path, Path]
) -> None:
    """Siltstone's registry lists it then; without a high watermark `clean` skips it, and so does this."""
    with LogManager.open(stopped_broker) as manager:
        manager.topics.alter("users", {"min.cleanable.dirty.ratio": "0.25"})
        manager.topics.create("ours", config={"cleanup.policy": "compact"})
    for directory in stopped_broker:
        write_checkpoint(directory / "replication-offset-checkpoint", {})
    (snapshot,) = watch(*stopped_broker, "--json", now_ms=None).documents
    reasons = {log["topic"]: log["reason"] for log in snapshot["logs"]}
    assert reasons["users"] == NO_HIGH_WATERMARK != reasons["ours"]


def test_the_table_has_the_urgent_logs_first_and_a_total(watch: Callable[..., Done], stopped: Path) -> None:
    completed = watch(stopped, between=(int,))
    text = completed.out.decode()
    assert completed.status == 130 and text.count("last cleaning") == 2
    rows = [line.split()[0] for line in text.splitlines() if line.startswith("users")]
    assert rows == ["users-1", "users-2", "users-0"] * 2
    assert "skipped: plain-0: cleanup.policy=delete" in text
    assert "total: 4 logs (1 due, 1 dirty, 1 up_to_date, 1 skipped)" in text
    assert " ago " in text and " → " in text and max(map(len, text.splitlines())) <= 100


def test_on_a_terminal_the_table_is_drawn_in_place(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(force_terminal=True, width=150, file=io.StringIO(), record=True)

    def looks() -> Iterator[WatchSnapshot]:
        watched = Watch([stopped], LogOptions(), ManualClock(NOW))
        yield watched.snapshot()
        yield WatchSnapshot(at_ms=NOW, error="gone [for] now")
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "Console", lambda **options: screen)
    with pytest.raises(KeyboardInterrupt):
        command._show_all(looks(), False, json=False)
    drawn = screen.export_text()
    assert "users-1" in drawn and "gone [for] now" in drawn


CLEANING_FLAGS = (
    ("--in-place",),
    ("--out", "new"),
    ("--dry-run",),
    ("--force",),
    ("--drop-keyless",),
    ("--keep-originals", "kept"),
    ("--max-extra-bytes", "5"),
    ("--stop-after", "1"),
    ("--report", "r.json"),
    ("--no-spark",),
    ("--master", "local[1]"),
    ("--spill-dir", "spill"),
)


@pytest.mark.parametrize("flags", CLEANING_FLAGS, ids=lambda flags: flags[0])
def test_flags_that_clean_are_refused_with_watch(
    watch: Callable[..., Done], stopped: Path, flags: tuple[str, ...]
) -> None:
    completed = watch(stopped, *flags)
    assert (completed.status, completed.out) == (2, b"") and completed.err.count("\n") == 1
    assert "--watch" in completed.err and flags[0] in completed.err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e9", "soon"])
def test_an_interval_out_of_range_is_refused(watch: Callable[..., Done], stopped: Path, seconds: str) -> None:
    completed = watch(stopped, f"--interval={seconds}")
    assert (completed.status, completed.out) == (2, b"") and "interval" in completed.err


def test_other_wrong_usage_is_refused(siltstone: Command, watch: Callable[..., Done], stopped: Path) -> None:
    alone = siltstone("clean", stopped, "--dry-run", "--interval", "1")
    assert alone.status == 2 and "--watch" in alone.err
    missing = watch(stopped, "--topic", "nobody")
    assert missing.status == 2 and "nobody" in missing.err
    assert watch(stopped, "--high-watermark", "7").status == 2
    assert watch(stopped, "--config", "cleanup.policy=compact").status == 2
    nowhere = watch(stopped / "nowhere")
    assert nowhere.status == 1 and nowhere.err.count("\n") == 1


@pytest.mark.long  # consume and produce end so in processes in every run
def test_a_process_without_a_terminal_ends_well_on_ctrl_c(stopped: Path) -> None:
    arguments = ["clean", str(stopped), "--watch", "--interval", "0.05", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from siltstone.cli.main import main; main()", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first, second = json.loads(process.stdout.readline()), json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=SOON)
    assert (process.returncode, errors) == (130, "")
    assert second["at_ms"] > first["at_ms"] and states(first)["users-1"] == "due"
    assert all(json.loads(line)["total"]["logs"] == 4 for line in rest.splitlines())


def test_a_copy_that_may_not_be_written_to_is_watched(watch: Callable[..., Done], stopped: Path) -> None:
    copy = stopped.with_name("copy")
    shutil.copytree(stopped, copy)
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        (snapshot,) = watch(copy, "--json").documents
        assert states(snapshot)["users-1"] == "due"
    finally:
        for path in [copy, *copy.rglob("*")]:
            path.chmod(0o755)


def test_several_directories_are_one_table(watch: Callable[..., Done], tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    with LogManager.open(paths, clock=ManualClock(NOW)) as manager:
        manager.topics.create("users", 2, {"cleanup.policy": "compact", "segment.bytes": "1000"})
        for number in range(2):
            write(manager["users", number], 30)
        directories = {
            str(topic_partition): manager.directory_of(topic_partition).path for topic_partition in manager
        }
        assert manager.directory_of(TopicPartition("users", 1)).path != directories["users-0"]
    (snapshot,) = watch(*paths, "--json").documents
    assert states(snapshot) == {"users-0": "due", "users-1": "due"}
    assert {log["directory"] for log in snapshot["logs"]} == {
        str(path / name) for name, path in directories.items()
    }
