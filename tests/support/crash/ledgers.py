"""A small log whose ledgers are written, read as they are on disk, and recovered, for crash tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from siltstone.log.fetch import LogView
from siltstone.log.ledger.reading import CompactedReader
from siltstone.log.ledger.store import LedgerStore, recover_ledgers
from siltstone.log.replacement import delete_oldest, finish_replacement
from siltstone.log.segments import list_segments
from tests.support.cleaning import logs
from tests.support.cleaning.logs import Rec
from tests.support.crash.disk import Recording, recorded
from tests.support.log import plainly
from tests.support.log.views import view_of

WORDS = "a1 b1 c1 d1 e1 b2 f- a2 g1 c- h1 b3 i1 a3 j1 d2"
"""One record each, four to a segment: at 8 and at 12 a compaction ends."""
View = list[tuple[int, bytes, bytes]]


@dataclass(frozen=True)
class LogOnDisk:
    """A partition as it is on disk, without recovery; ``mark``: its high watermark."""

    directory: Path
    mark: int | None = None

    @property
    def view(self) -> LogView:
        return view_of(self.directory, high_watermark=self.mark)


def write(path: Path) -> None:
    rows = [
        Rec(offset=at, key=word[:1].encode(), value=None if word[1:] == "-" else word[1:].encode())
        for at, word in enumerate(WORDS.split())
    ]
    logs.write_log(
        path, {base: [logs.batch([row]) for row in rows[base : base + 4]] for base in (0, 4, 8, 12)}
    )


def retain(path: Path) -> None:
    """Delete the original segments that the ledger covers."""
    partition = path / "topic-0"
    horizon = LedgerStore(partition).first_needed_offset() or 0
    segments = list_segments(partition)
    ends = [segment.base_offset for segment in segments[1:]]
    delete_oldest(
        partition,
        [segment.base_offset for segment, end in zip(segments, ends, strict=False) if end <= horizon],
    )


def both(*steps: Callable[[Path], None]) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        for step in steps:
            step(path)

    return act


@dataclass(frozen=True)
class Scenario:
    """What is crashed, and what comes before it."""

    act: Callable[[Path], None]
    earlier: Callable[[Path], None] = lambda path: None

    def prepare(self, path: Path) -> None:
        write(path)
        self.earlier(path)


def view(path: Path) -> View:
    with CompactedReader(LogOnDisk(path / "topic-0")) as reader:
        return [(rec.offset, rec.key or b"", rec.value or b"") for rec in plainly.recs_of(reader)]


def table(records: View) -> dict[bytes, bytes]:
    last = {key: value for _, key, value in records}
    return {key: value for key, value in last.items() if value}


TABLE = {word[:1].encode(): word[1:].encode() for word in WORDS.split() if word[0] not in "cf"}


@dataclass(frozen=True)
class Recorded:
    recording: Recording
    before: View
    after: View


def record(scenario: Scenario, path: Path) -> Recorded:
    """The operations of an undisturbed run, and what a reader sees before and after it."""
    scenario.prepare(path)
    before = view(path)
    with recorded(path) as recording:
        scenario.act(path)
    after = view(path)
    assert table(before) == table(after) == TABLE
    return Recorded(recording, before, after)


def check_view(path: Path, known: Recorded) -> None:
    """What a reader sees before any recovery: the view from before the run, or the one after it."""
    current = view(path)
    assert current in (known.before, known.after), ("view", current)
    assert table(current) == TABLE


def check_names(partition: Path) -> None:
    """The folder has the files of the cursor's ledger, and no others."""
    store = LedgerStore(partition)
    ledger, names = store.current(), set()
    if ledger is not None:
        names = {"cursor.json", f"ledger-{ledger.id}.json"}
        names |= {f"generation-{run.id}" for run in ledger.runs}
        names |= {f"ledger-{ledger.id}.hidden"} if ledger.superseded_crc is not None else set()
    present = {path.name for path in store.folder.iterdir()} if store.folder.exists() else set()
    assert present == names


def start(path: Path) -> None:
    partition = path / "topic-0"
    finish_replacement(partition)
    recover_ledgers(partition, view_of(partition).log_end_offset)
