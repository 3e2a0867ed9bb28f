"""Crafted batches to a real broker and to us: the same answers and the same bytes, but for what is listed.

The broker gets them raw, in Produce requests; we append them to our log. Compared are, for each row of
``tests/log/crafted.py``: error code, base offset, log-append time, the records that are named and why, and
every stored header field and record. ``DIFFERENCES`` are deliberate, and all of them have to be met;
``docs/appending.md`` tells them to users.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest

from tests.support.in_memory import FOLDER
from tests.support.kafka import tools
from tests.support.kafka.appended import Outcome, Stored, of_kafka, of_us
from tests.support.kafka.scenario import Served
from tests.support.log.crafted import Row, table

pytestmark = pytest.mark.kafka

STORED_FIELDS = tuple(field.name for field in fields(Stored))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Rows whose outcome differs: what Kafka may answer, what we may, which stored fields differ, and why."""

    rows: str
    kafka: set[int]
    ours: set[int]
    stored: tuple[str, ...] = ()
    why: str


DIFFERENCES = (
    # Not of the batch: the half that reads requests decides.
    Difference(rows="zstd to produce 6", kafka={76}, ours={0}, why="depends on the request's version"),
    Difference(
        rows="a commit marker|transactional without id|transactional of a producer without id",
        kafka={53},
        ours={0, 87},
        why="depends on the request's transactional id",
    ),
    Difference(rows="count of 2 to the 30, compressed", kafka={87}, ours={10}, why="our bound of records"),
    # Kafka fails, we say what is wrong.
    # Beyond the batch, too: what else its buffer holds decides whether a longer row fails.
    Difference(
        rows="length (14|15|21|22)(, no more)?", kafka={-1}, ours={2}, why="Kafka reads beyond the end"
    ),
    Difference(
        rows="record size over-long(, to zstd)?|record size of 2 GiB, gzip to zstd",
        kafka={-1},
        ours={87},
        why="Kafka does not catch its own exception",
    ),
    Difference(
        rows="codec 2, twice, .*|codec 4, nothing, .*",
        kafka={87},
        ours={-1},
        why="refused by both; we see the stream's damage before there are records",
    ),
    # Kafka stores what cannot be read back as it stands, or only by itself.
    Difference(
        rows="(offsets|not a number in the third)\\b.*",
        kafka={0, -1},
        ours={87},
        why="Kafka stores offsets that are not the records', or counts anew what was sent compressed",
    ),
    Difference(
        rows="record size .*, (gzip|zstd)",
        kafka={0},
        ours={87},
        why="Kafka does not look at record sizes inside of what it stores compressed",
    ),
    Difference(
        rows="(offset|time) with high bits.*", kafka={0}, ours={87}, why="Kafka drops bits of a varint"
    ),
    Difference(
        rows="(key|value|header value) size (-2|least).*",
        kafka={0},
        ours={87},
        why="Kafka takes every negative size for null",
    ),
    Difference(
        rows="codec [123], bytes behind, .*|codec 3, twice, .*",
        kafka={0},
        ours={-1, 87},
        why="Kafka does not look behind the end of a compressed stream",
    ),
    Difference(
        rows="transactional without producer id",
        kafka={0},
        ours={87},
        why="no marker could end its transaction",
    ),
    # What only the log gives.
    Difference(
        rows="delete horizon .*",
        kafka={0},
        ours={0},
        stored=("attributes",),
        why="with it a producer could have tombstones removed at once",
    ),
    Difference(
        rows="log append \\d [a-z]+|log append and horizon \\d",
        kafka={0},
        ours={0},
        stored=("max_timestamp", "base_timestamp", "attributes"),
        why="the records keep their own times, so the largest one is theirs",
    ),
    Difference(
        rows="log append \\d, record at .*",
        kafka={0},
        ours={32},
        why="the times that are checked are those that are stored",
    ),
    Difference(
        rows="log append \\d, header at .*",
        kafka={32},
        ours={0},
        why="the times that are checked are those that are stored",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Twins:
    """The outcome of each row, by the row's name."""

    kafka: Mapping[str, Outcome]
    ours: Mapping[str, Outcome]


def rows_now() -> tuple[list[Row], int]:
    """The rows, their records a minute old, and the time from which on appends happen."""
    start_ms = int(time.time() * 1000)
    return table(start_ms - 60_000), start_ms


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where our logs are; in memory, since each of so many costs some syncs."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as path:
        yield Path(path)


@pytest.fixture(scope="module")
def twins(served: Served, folder: Path) -> Twins:
    rows, start_ms = rows_now()
    return Twins(kafka=of_kafka(served.broker, rows, start_ms), ours=of_us(folder, rows, start_ms))


def differing(kafka: Outcome, ours: Outcome) -> set[str]:
    """The names of what is not the same."""
    names = set() if kafka.given == ours.given else {"answers"}
    if len(kafka.stored) != len(ours.stored):
        return names | {"how much is stored"}
    for theirs, own in zip(kafka.stored, ours.stored, strict=True):
        names |= {name for name in STORED_FIELDS if getattr(theirs, name) != getattr(own, name)}
    return names


def is_deliberate(difference: Difference, kafka: Outcome, ours: Outcome) -> bool:
    """Whether two outcomes differ as ``difference`` says, and not otherwise."""
    codes = {answer.code for answer in kafka.given}, {answer.code for answer in ours.given}
    if not (codes[0] <= difference.kafka and codes[1] <= difference.ours):
        return False
    if not difference.stored:
        return codes[0] != codes[1]
    return differing(kafka, ours) <= set(difference.stored)


def unexplained(twins: Twins) -> tuple[list[str], Counter[str]]:
    """The rows that differ without a listed reason, each with both outcomes; how often each reason holds."""
    met: Counter[str] = Counter()
    wrong = []
    for name, kafka in twins.kafka.items():
        ours = twins.ours[name]
        differs = differing(kafka, ours)
        if not differs:
            continue
        reasons = [difference for difference in DIFFERENCES if re.fullmatch(difference.rows, name)]
        if len(reasons) == 1 and is_deliberate(reasons[0], kafka, ours):
            met[reasons[0].rows] += 1
        else:
            wrong.append(f"{name}: {sorted(differs)}\n  kafka {kafka}\n  ours  {ours}")
    return wrong, met


def test_every_row_has_the_same_outcome_or_a_listed_reason(twins: Twins) -> None:
    wrong, _ = unexplained(twins)
    assert not wrong, f"{len(wrong)} of {len(twins.kafka)} rows:\n" + "\n".join(wrong[:20])


def test_every_listed_difference_occurs(twins: Twins) -> None:
    _, met = unexplained(twins)
    assert [difference.rows for difference in DIFFERENCES if not met[difference.rows]] == []


def test_kafkas_tool_finds_nothing_wrong_with_our_logs(twins: Twins, folder: Path) -> None:
    written = [path for path in sorted(folder.glob("*/*.log")) if path.stat().st_size]
    assert len(written) == sum(bool(outcome.stored) for outcome in twins.ours.values())
    assert not tools.dump_logs(written).faults


def test_rows_are_of_every_kind(twins: Twins) -> None:
    """A broker that refuses everything, or a table that has lost its rows, would agree with anybody."""
    codes = Counter(answer.code for outcome in twins.kafka.values() for answer in outcome.given)
    assert {-1, 0, 2, 10, 18, 32, 45, 47, 53, 76, 87} <= set(codes), codes
    assert min(codes[0], codes[87]) > 100
    kinds = {
        kind for outcome in twins.ours.values() for answer in outcome.given for _, kind in answer.refused
    }
    assert kinds == {"keyless", "time", "time type"}


def test_a_difference_is_seen(twins: Twins) -> None:
    kafka, ours = twins.kafka["sound 0"], twins.ours["sound 0"]
    assert differing(kafka, ours) == set()
    moved = replace(ours, stored=(replace(ours.stored[0], producer_id=4),))
    assert differing(kafka, moved) == {"producer_id"}
    assert differing(kafka, replace(ours, stored=())) == {"how much is stored"}
    assert differing(kafka, replace(ours, given=(replace(ours.given[0], base_offset=1),))) == {"answers"}
    changed = Twins(kafka={"sound 0": kafka}, ours={"sound 0": moved})
    assert len(unexplained(changed)[0]) == 1
