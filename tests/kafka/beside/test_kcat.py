"""kcat, unmodified: its output of our broker is that of a real Kafka."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.support.broker_twin.batches import TIME_MS, batch
from tests.support.broker_twin.pair import BOTH, Pair, Which
from tests.support.broker_twin.side import Side

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
SECONDS = 60
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(KCAT is None, reason="kcat is not installed: apt-get install kcat"),
]


class Kcat:
    """kcat of one side; what differs between any two brokers is taken out of its output."""

    def __init__(self, pair: Pair, which: Which) -> None:
        self.side, self._address = Side(pair.bootstrap[which]), pair.bootstrap[which]

    def __call__(self, *arguments: str, stdin: bytes = b"") -> bytes:
        quick = ("-m", str(SECONDS), "-X", "fetch.wait.max.ms=20")
        command = [str(KCAT), "-b", self._address, *quick, *arguments]
        completed = subprocess.run(command, input=stdin, capture_output=True, timeout=SECONDS, check=False)
        assert completed.returncode == 0, completed.stderr.decode()
        return completed.stdout.replace(self._address.encode(), b"ADDRESS")

    def read(self, topic: str, *arguments: str) -> list[dict[str, Any]]:
        """The records of partition 0 as kcat's JSON."""
        lines = self("-C", "-t", topic, "-p", "0", "-e", "-q", "-J", *arguments).splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
def both(pair: Pair) -> list[Kcat]:
    """kcat of Kafka, and of ours."""
    return [Kcat(pair, which) for which in BOTH]


def lines_of(codec: str) -> bytes:
    """Five keyed records and one whose empty value -Z makes a tombstone of."""
    values = (b"%s-%d:%s" % (codec.encode(), number, b"v" * 50) for number in range(5))
    return b"\n".join((*values, b"%s-gone:" % codec.encode())) + b"\n"


def test_what_kcat_sends_is_read(both: list[Kcat]) -> None:
    """With every codec, plain and idempotent, with headers and tombstones; from an offset, from the end."""
    results = []
    for kcat in both:
        kcat.side.create("kcat")
        for codec in CODECS:
            is_idempotent = str(codec in ("none", "lz4")).lower()
            options = ("-z", codec, "-X", f"enable.idempotence={is_idempotent}", "-H", "from=kcat")
            kcat("-P", "-t", "kcat", "-p", "0", "-K:", "-Z", *options, stdin=lines_of(codec))
        rows = [{**row, "ts": row["ts"] > TIME_MS} for row in kcat.read("kcat", "-o", "beginning")]
        offsets = {at: [row["offset"] for row in kcat.read("kcat", "-o", at)] for at in ("7", "-3", "end")}
        few = [row["offset"] for row in kcat.read("kcat", "-o", "4", "-c", "2")]
        text = kcat("-C", "-t", "kcat", "-p", "0", "-e", "-q", "-o", "25", "-f", "%o %k %S %h\\n")
        results.append((rows, offsets, few, text))
    assert results[0] == results[1]
    rows, offsets, few, text = results[1]
    assert [row["offset"] for row in rows] == list(range(30))
    assert [row["key"] for row in rows[:6]] == [*(f"none-{number}" for number in range(5)), "none-gone"]
    assert (rows[5]["payload"], rows[4]["payload"]) == (None, "v" * 50)
    assert rows[0]["headers"] == ["from", "kcat"]
    assert (offsets["-3"], offsets["end"], few) == ([27, 28, 29], [], [4, 5])
    assert text.startswith(b"25 zstd-1 50 from=kcat\n")


def test_kcat_lists_brokers_and_topics(both: list[Kcat]) -> None:
    results = []
    for kcat in both:
        kcat.side.create("kcat-listed", 3)
        document = json.loads(kcat("-L", "-J", "-t", "kcat-listed"))
        results.append((document, kcat("-L", "-t", "kcat-listed")))
    (theirs, their_text), (ours, our_text) = results
    assert ours["topics"] == theirs["topics"] and len(ours["topics"][0]["partitions"]) == 3
    assert ours["brokers"] == theirs["brokers"] == [{"id": 1, "name": "ADDRESS"}]
    assert ours["controllerid"] == theirs["controllerid"]
    assert our_text.splitlines()[1:] == their_text.splitlines()[1:]
    assert b'topic "kcat-listed" with 3 partitions' in our_text


def test_kcat_asks_for_offsets_by_time(both: list[Kcat]) -> None:
    """-Q, and reading from and up to a time; the times are those of batches that both have."""
    results = []
    for kcat in both:
        kcat.side.create("kcat-times")
        kcat.side.produce("kcat-times", batch(5, step_ms=1000), batch(5, time_ms=TIME_MS + 9000, codec=4))
        times = [-2, -1, 0, TIME_MS, TIME_MS + 1500, TIME_MS + 9000, TIME_MS + 99_000]
        answers = [kcat("-Q", "-t", f"kcat-times:0:{at}") for at in times]
        ranges = [("-o", f"s@{TIME_MS + 1500}"), ("-o", f"s@{TIME_MS + 1500}", "-o", f"e@{TIME_MS + 9001}")]
        read = [[(row["offset"], row["ts"]) for row in kcat.read("kcat-times", *at)] for at in ranges]
        results.append((answers, read))
    assert results[0] == results[1]
    answers, read = results[1]
    assert [int(answer.split()[-1]) for answer in answers] == [0, 10, 0, 0, 2, 5, -1]
    assert [row[0] for row in read[0]] == list(range(2, 10))
    assert [row[0] for row in read[1]] == [2, 3, 4, 5]
