"""Memory is bounded by the decompressed size of a few batches, and that of one batch by a setting.

``max.decompressed.message.bytes``; see docs/operating.md, "Memory".
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.errors import CompactionFailedError, CorruptRecordError
from siltstone.commands import clean as app
from siltstone.commands import review
from siltstone.commands.directories import BrokerDirectories, Snapshot
from siltstone.compaction.ledger.compactor import InProcessCompactionEngine, TwoPhaseCompactor
from siltstone.compaction.report import LogResult
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.log.reading import LogReader
from tests.support.cleaning.logs import NOW, WHERE, logs_of, offsets, one, records_in, write_log
from tests.support.golden_sets import write_checkpoint
from tests.support.log.views import FixedLog
from tests.support.operator import high_ratio
from tests.support.operator.staged import in_process, listing
from tests.support.tables.tables import table_of
from tests.support.thoroughness import THOROUGH

MEBIBYTE = 1 << 20
BATCHES, BATCH_BYTES = (12, 30_000_000) if THOROUGH else (9, 8_000_000)
"""More batches than may be in memory at one time (7)."""
PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Bytes of memory by room; if thorough, of 360 MB of records in 13 KB, and in 1.4 MB of message sets."""
    folder = tmp_path_factory.mktemp("memory")
    for name, batches, size in (("small", 2, 2000), ("large", BATCHES, BATCH_BYTES)):
        partition = high_ratio.packed_log(folder / name / "log", batches, size)
        high_ratio.packed_log(folder / name / "grown", batches, size, grown=True)
        high_ratio.packed_message_sets(folder / name / "old", batches, size)
    assert (partition / f"{0:020d}.log").stat().st_size < 50_000
    command = [sys.executable, "-m", "tests.support.operator.high_ratio", str(folder)]
    completed = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    bytes_by_room: dict[str, int] = json.loads(completed.stdout)
    return bytes_by_room


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells a new peak")
@pytest.mark.parametrize("room", high_ratio.ROOMS)
def test_memory_of_every_room_is_bounded_by_a_few_batches(taken: dict[str, int], room: str) -> None:
    assert taken[room] < 7 * BATCH_BYTES, {name: size // MEBIBYTE for name, size in taken.items()}


LIMIT = "max.decompressed.message.bytes"
LARGE = 3
"""The number of the batch that is larger than the others."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """``topic-0`` with one batch of 3 MB among small ones, and ``other-0`` with small ones only."""
    packed_batches = [
        high_ratio.packed_batch(
            high_ratio.PER_BATCH * number, b"%d" % number, 3_000_000 if number == LARGE else 1000
        )
        for number in range(6)
    ]
    for name, batches in (("topic-0", packed_batches), ("other-0", packed_batches[:LARGE])):
        end = high_ratio.PER_BATCH * len(batches)
        apart = write_log(tmp_path / name, {0: batches, end: [one(end, "active")]})
        shutil.move(apart, tmp_path / "data" / name)
    data = tmp_path / "data"
    (data / "meta.properties").write_text("version=1\ncluster.id=tests\nnode.id=0\n")
    (data / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    write_checkpoint(data / "replication-offset-checkpoint", {("topic", 0): 99, ("other", 0): 99})
    return data


def position_of_the_large(directory: Path) -> str:
    before = [high_ratio.packed_batch(3 * number, b"%d" % number, 1000) for number in range(LARGE)]
    return f"byte {sum(map(len, before))}: zstd: decompresses to more than"


def cleaned(directory: Path, *config: str, **fields: object) -> dict[str, LogResult]:
    request = app.CleanRequest(
        directories=[directory],
        topics=["topic", "other"],
        in_place=True,
        force=True,
        config=["cleanup.policy=compact", *config],
        now_ms=NOW,
        **fields,  # type: ignore[arg-type]
    )
    return {result.topic: result for result in app.clean(request, engine=in_process).results}


def test_a_batch_over_the_limit_makes_only_its_own_log_uncleanable(directory: Path) -> None:
    before = listing(directory / "topic-0")
    results = cleaned(directory, f"{LIMIT}=1000000")
    assert {name: result.status for name, result in results.items()} == {
        "topic": "uncleanable",
        "other": "cleaned",
    }
    reason = results["topic"].reason
    path = directory / "topic-0" / f"{0:020d}.log"
    assert (
        f"{path}: {position_of_the_large(directory)} 1000000 bytes" in reason and f"raise {LIMIT}" in reason
    )
    assert listing(directory / "topic-0") == before
    assert offsets(directory / "other-0") == [1, 2, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("limit", ["", f"{LIMIT}=3000200"])
def test_a_batch_within_the_limit_is_cleaned(directory: Path, limit: str) -> None:
    result = cleaned(directory, *[limit] if limit else [])["topic"]
    assert (result.status, result.reason) == ("cleaned", "")
    retained = records_in(logs_of(directory / "topic-0")[0])
    stays = {0: (1, 2), 1: (0, 1, 2)}
    assert [record.offset for record in retained] == [
        3 * number + place for number in range(6) for place in stays[number == 5]
    ]
    assert [len(record.value or b"") for record in retained if record.key == b"3"] == [1_500_000]


def test_the_limit_may_come_from_a_config_file(directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "settings"
    file.write_text(f"topic:{LIMIT}=1000000\n")
    results = cleaned(directory, config_file=file)
    assert {name: result.status for name, result in results.items()} == {
        "topic": "uncleanable",
        "other": "cleaned",
    }


def _explained(directory: Path) -> str:
    request = review.ExplainRequest(
        directories=[directory],
        topics=["topic"],
        config=["cleanup.policy=compact", f"{LIMIT}=1000000"],
        now_ms=NOW,
        no_spark=True,
        force=True,
    )
    (log,) = review.explain(request).logs
    assert log.status == "uncleanable"
    return log.reason


def _verified(directory: Path) -> str:
    (log,) = review.verify(
        review.VerifyRequest(
            before=directory,
            after=shutil.copytree(directory, directory.parent / "after"),
            topics=["topic"],
            config=["cleanup.policy=compact", f"{LIMIT}=1000000"],
            now_ms=NOW,
            no_spark=True,
        )
    ).logs
    assert not log.is_sound
    return " ".join(f"byte {problem.position}: {problem.detail}" for problem in log.problems)


def _limited(directory: Path) -> FixedLog:
    """An open log with that setting."""
    with ReadOnlyLogs([directory]) as logs:
        log = FixedLog(logs["topic", 0].view._replace(batch_limit=1_000_000), WHERE)
    log.directory = directory / "topic-0"
    return log


def _compacted(directory: Path) -> str:
    compactor = TwoPhaseCompactor(InProcessCompactionEngine(1), clock=ManualClock(NOW))
    with pytest.raises(CompactionFailedError) as error:
        compactor.compact(_limited(directory))
    return str(error.value)


def _read(directory: Path) -> str:
    log = _limited(directory)
    reader = LogReader(log)
    polled = reader.poll()
    assert polled is not None and len(polled) == LARGE * high_ratio.PER_BATCH
    with pytest.raises(CorruptRecordError) as error:
        reader.poll()
    assert sum(map(len, LogReader(log, limit=1 << 30))) == 6 * high_ratio.PER_BATCH + 1
    return str(error.value)


def _table(directory: Path) -> str:
    options = {"subscribe": "topic", "maxDecompressedMessageBytes": "1000000"}
    with pytest.raises(CorruptRecordError) as error:
        table_of(directory, **options)
    with pytest.raises(CorruptRecordError):
        table_of(directory, view="latest", **options)
    assert table_of(directory, subscribe="topic").num_rows == 6 * high_ratio.PER_BATCH + 1
    return str(error.value)


def _looked_at(directory: Path) -> str:
    properties = directory.parent / "server.properties"
    properties.write_text(f"{LIMIT}=1000000\n")
    place = BrokerDirectories(paths=(directory,), server_properties=properties)
    reader = Snapshot([directory], place.broker_config()).log(WHERE).reader()
    with pytest.raises(CorruptRecordError) as error:
        list(reader)
    return str(error.value)


@pytest.mark.parametrize("room", [_explained, _verified, _compacted, _read, _looked_at, _table])
def test_every_room_names_the_batch_and_the_setting(directory: Path, room: Callable[[Path], str]) -> None:
    reason = room(directory)
    assert position_of_the_large(directory) in reason and LIMIT in reason
