"""Times that do not fit: retentions for ever, stamps that wrapped around, timestamps at the ends of 64 bits.

A sum of two times is capped, a negative delete horizon is none, and no record's own time changes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.clock import LATEST_MS, ManualClock, resolve_now_ms, time_text
from siltstone.base.config import LONG_MAX
from siltstone.base.errors import UsageError
from siltstone.base.records.decode import decode_records
from siltstone.cli.watch import watch_logs
from siltstone.commands import clean as app
from siltstone.commands.review import ExplainRequest, VerifyRequest, explain, verify
from siltstone.compaction.inplace import ranges
from siltstone.compaction.inplace.planning import Horizons, find_horizons
from siltstone.compaction.report import CLEANED, NOTHING_TO_DO
from siltstone.log.segments import list_segments, windows
from tests.support.cleaning import logs
from tests.support.cleaning.logs import DAY, NOW, Rec, batch, one, write_log
from tests.support.errors import raises_error
from tests.support.golden_sets import load_case, partition_directory, stage_round

LONG_MIN = -LONG_MAX - 1
EXTREMES = (LONG_MIN, LONG_MIN + 1, -2, -1, 0, 1, NOW, LONG_MAX - 1, LONG_MAX)
STAMPED = 0x40

RecordsByOffset = dict[int, tuple[bytes | None, bytes | None, int]]


def records(partition: Path) -> RecordsByOffset:
    """Every record by offset: key, value, timestamp (as Java adds them up, in 64 bits)."""
    records_by_offset = {}
    for segment in list_segments(partition):
        with files.Reader(segment.path) as reader:
            for window in windows(reader):
                columns = decode_records(window.data, window.batches, path=segment.path, origin=window.origin)
                for row in range(len(columns)):
                    read = (columns.key(row), columns.value(row), int(columns.timestamp[row]))
                    records_by_offset[int(columns.offset[row])] = read
    return records_by_offset


def stamps(partition: Path) -> list[int]:
    """The delete horizons, whatever they are, of all segments but the active one."""
    _, *closed = sorted(logs.logs_of(partition).items(), reverse=True)
    data = b"".join(data for _, data in reversed(closed))
    return [header.base_timestamp for header, _ in logs.headers_of(data) if header.attributes & STAMPED]


@pytest.mark.parametrize(
    ("retention_ms", "horizon_ms"),
    [
        (LONG_MAX, LONG_MAX),
        (LONG_MAX - 1, LONG_MAX),
        (LONG_MAX - NOW + 1, LONG_MAX),
        (LONG_MAX - NOW, LONG_MAX),
        (LONG_MAX - NOW - 1, LONG_MAX - 1),
    ],
)
def test_a_tombstone_that_is_kept_for_ever_is_kept(
    tmp_path: Path, retention_ms: int, horizon_ms: int
) -> None:
    segments = {0: [one(0, "a"), one(1, "a", None)], 2: [one(2, "b"), one(3, "b")], 4: [one(4, "c")]}
    partition = write_log(tmp_path / "log", segments)
    before = records(partition)
    config = {"delete.retention.ms": retention_ms}
    for days in range(3):
        result = logs.run(tmp_path / "log", config=config, now_ms=NOW + days * DAY)
        assert result.status == (NOTHING_TO_DO if days else CLEANED)
        assert records(partition) == {offset: before[offset] for offset in (1, 3, 4)}
        assert stamps(partition) == [horizon_ms]
    write_log(tmp_path / "before", segments)
    request = VerifyRequest(
        before=tmp_path / "before",
        after=tmp_path / "log",
        topics=["topic"],
        config=["cleanup.policy=compact", f"delete.retention.ms={retention_ms}"],
        now_ms=NOW,
        no_spark=True,
    )
    assert verify(request).is_sound


@pytest.mark.parametrize("name", ["v0_gzip", "v1_basic"])
def test_a_message_sets_tombstone_that_is_kept_for_ever_is_kept(
    cleaned: Path, tmp_path: Path, name: str
) -> None:
    case = load_case(cleaned, f"old_formats/{name}")
    stage_round(case, case.rounds[0], tmp_path)
    partition = partition_directory(case, tmp_path)
    last = {key: offset for offset, (key, _, _) in sorted(records(partition).items())}
    before = {offset: read for offset, read in records(partition).items() if offset in last.values()}
    dead = [offset for offset, (_, value, _) in before.items() if value is None]
    for days in range(2):
        logs.run(tmp_path, config={"delete.retention.ms": LONG_MAX}, now_ms=NOW + days * DAY)
        after = records(partition)
        assert dead and all(after[offset] == before[offset] for offset in dead)
        assert set(stamps(partition)) == {LONG_MAX}


@pytest.mark.parametrize("wrapped_ms", [-1, -2, NOW + LONG_MAX - (1 << 64), LONG_MIN])
def test_a_horizon_that_wrapped_around_does_not_count_and_is_stamped_anew(
    tmp_path: Path, wrapped_ms: int
) -> None:
    dead = batch([Rec(offset=0, key=b"a", value=None)], delete_horizon_ms=wrapped_ms)
    partition = write_log(tmp_path, {0: [dead], 1: [one(1, "b")], 2: [one(2, "b")]})
    before = records(partition)
    assert stamps(partition) == [wrapped_ms]
    assert find_horizons(list_segments(partition), 2, NOW) == Horizons()
    assert logs.run(tmp_path).status == CLEANED
    assert records(partition) == before and stamps(partition) == [NOW + DAY]
    assert logs.run(tmp_path, now_ms=NOW + DAY, force=False).discarded.tombstones == 1


def test_a_horizon_that_wrapped_around_does_not_have_an_idle_log_cleaned_for_ever(tmp_path: Path) -> None:
    dead = batch([Rec(offset=0, key=b"a", value=None)], delete_horizon_ms=-5)
    partition = write_log(tmp_path, {0: [dead], 1: [one(1, "b")]}, checkpoint=1)
    before = logs.tree(partition)
    assert logs.run(tmp_path, force=False).status == NOTHING_TO_DO
    assert logs.tree(partition) == before


def test_a_marker_with_a_horizon_that_wrapped_around_stays(tmp_path: Path) -> None:
    """Its transaction holds nothing any more, so it is stamped anew, as a pass that finds it first does."""
    commit = Rec(offset=1, key=bytes((0, 0, 0, 1)), value=bytes(6))
    shape = {"control": True, "transactional": True, "producer_id": 5, "producer_epoch": 0}
    marker = batch([commit], delete_horizon_ms=-5, **shape)
    partition = write_log(tmp_path, {0: [one(0, "a"), marker], 2: [one(2, "b")]})
    assert logs.run(tmp_path).status == CLEANED
    assert sorted(records(partition)) == [0, 1, 2] and stamps(partition) == [NOW + DAY]


@pytest.mark.parametrize("seed", range(30))
def test_times_at_the_ends_of_their_range_stay_as_they_are(tmp_path: Path, seed: int) -> None:
    """Whatever records, stamps, files and clock say: every value that is the last of its key stays, and
    what is read of each record that stays is the same."""
    chance = random.Random(seed)
    partition = write_log(
        tmp_path, any_segments(chance), modified_ms={0: chance.choice((-5, 0, 1, NOW - DAY))}
    )
    before = records(partition)
    last = {key: offset for offset, (key, _, _) in sorted(before.items())}
    config = {"delete.retention.ms": chance.choice((0, DAY, LONG_MAX - NOW, LONG_MAX))}
    config["min.compaction.lag.ms"] = chance.choice((0, 0, 1, LONG_MAX))
    for _ in range(2):
        now_ms = chance.choice((0, 1, NOW, LATEST_MS))
        assert logs.run(tmp_path, config=config, now_ms=now_ms).status in (CLEANED, NOTHING_TO_DO)
        after = records(partition)
        assert {offset: before[offset] for offset in after} == after
        last_values = {offset for offset in last.values() if before[offset][1] is not None}
        assert last_values <= after.keys(), seed


def any_segments(chance: random.Random) -> dict[int, list[bytes]]:
    offset, segments = 0, {}
    for _ in range(chance.randint(2, 4)):
        base, batches = offset, []
        for _ in range(chance.randint(1, 3)):
            count = chance.randint(1, 3)
            records = [
                Rec(
                    offset=offset + number,
                    key=b"k%d" % chance.randint(0, 2),
                    value=None if chance.random() < 0.4 else b"v%d" % (offset + number),
                    timestamp=chance.choice(EXTREMES),
                )
                for number in range(count)
            ]
            offset += count
            horizon = chance.choice(EXTREMES) if chance.random() < 0.3 else None
            batches.append(batch(records, delete_horizon_ms=horizon, codec=chance.choice((0, 0, 0, 1, 4))))
        segments[base] = batches
    return segments


def test_a_map_that_holds_no_key_takes_a_pass_for_each() -> None:
    config = logs.settings({"log.cleaner.io.buffer.load.factor": 0.0})
    assert ranges.kafka_passes(7, ranges.kafka_map_keys(config)) == 7


@pytest.mark.parametrize("given_ms", [LONG_MIN, -1, LATEST_MS + 1, LONG_MAX, 10**30, NOW * 1000])
def test_a_time_outside_the_clocks_range_is_refused(given_ms: int) -> None:
    with raises_error(UsageError, path="--now-ms", about=str(given_ms), advice=str(LATEST_MS)):
        resolve_now_ms(given_ms, ManualClock(NOW))


@pytest.mark.parametrize("command", ["clean", "watch", "explain", "verify", "recover"])
def test_every_command_refuses_such_a_time_before_it_changes_anything(tmp_path: Path, command: str) -> None:
    write_log(tmp_path, {0: [one(0, "a")], 1: [one(1, "a")]})
    (tmp_path / ".kafka_cleanshutdown").touch()
    before = logs.tree(tmp_path)
    now_ms = NOW * 1000  # microseconds
    of_topic = {"topics": ["topic"], "config": ["cleanup.policy=compact"], "now_ms": now_ms}
    calls: dict[str, Callable[[], object]] = {
        "clean": lambda: app.clean(app.CleanRequest(directories=[tmp_path], in_place=True, **of_topic)),
        "watch": lambda: watch_logs(app.CleanRequest(directories=[tmp_path], **of_topic), None, json=True),
        "explain": lambda: explain(ExplainRequest(directories=[tmp_path], **of_topic)),
        "verify": lambda: verify(VerifyRequest(before=tmp_path, after=tmp_path, **of_topic)),
        "recover": lambda: app.recover([tmp_path], now_ms=now_ms),
    }
    with pytest.raises(UsageError, match="--now-ms"):
        calls[command]()
    assert logs.tree(tmp_path) == before


def test_any_time_within_the_clocks_range_is_taken() -> None:
    assert [resolve_now_ms(given_ms, ManualClock(NOW)) for given_ms in (None, 0, NOW, LATEST_MS)] == [
        NOW,
        0,
        NOW,
        LATEST_MS,
    ]
    assert time_text(0) == "1970-01-01 00:00:00Z" and time_text(LONG_MAX) == f"{LONG_MAX} ms"
