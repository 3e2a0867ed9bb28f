"""Fetch sessions: what they answer, in which order, and what ends them."""

from __future__ import annotations

import time
from typing import Any

from tests.support.broker_twin.batches import batch
from tests.support.broker_twin.scenes.scene import NO_SUCH_ID, ZERO_ID
from tests.support.broker_twin.side import DELETE_RECORDS, DELETE_TOPICS, FETCH, Side
from tests.support.broker_twin.wire import Connection

PLENTY = 1 << 20
SHORT_WAIT_MS, LONG_WAIT_MS = 40, 20_000
FIRST_BY_ID = 13
WHERE_THE_FORM_CHANGES = (7, 12, 13, 18)
_PLAIN = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": PLENTY}


class _Client:
    """A client with one session, ``number``, and the ``epoch`` of its next request."""

    def __init__(self, side: Side, version: int, name: str) -> None:
        self.side, self.version, self.name = side, version, name
        self.number = self.epoch = self._requests = 0

    def ask(
        self,
        what: str,
        *partitions: tuple[Any, ...],
        forget: tuple[tuple[str, int], ...] = (),
        is_ordered: bool = True,
        **fields: Any,
    ) -> None:
        """Ask for partitions, each (topic, number, offset). What is answered, in which order, is kept."""
        self._requests += 1
        request = self.request(partitions, forget, **fields)
        what = f"{self.name} {self._requests}: {what}"
        answer = self.side.ask(what, FETCH, self.version, **request)
        order = [
            f"{row.get('topic') or row['topic_id'].hex()}-{part['partition_index']}"
            for row in answer["responses"]
            for part in row["partitions"]
        ]
        for topic, number in self.side.topic_ids.items():
            order = [place.replace(number.hex(), topic) for place in order]
        if is_ordered:
            self.side.keep(f"{what}, order, v{self.version}", {"order": " ".join(order)})
        self.number, self.epoch = answer["session_id"], request["session_epoch"] + 1

    def request(
        self,
        partitions: tuple[tuple[Any, ...], ...] = (),
        forget: tuple[tuple[str, int], ...] = (),
        **fields: Any,
    ) -> dict[str, Any]:
        """The next request."""
        topics: dict[str, list[Any]] = {}
        for topic, number, offset in partitions:
            row = {"partition": number, "fetch_offset": offset, "partition_max_bytes": PLENTY}
            topics.setdefault(topic, []).append(row)
        forgotten: dict[str, list[int]] = {}
        for topic, number in forget:
            forgotten.setdefault(topic, []).append(number)
        return {
            **_PLAIN,
            "session_id": self.number,
            "session_epoch": self.epoch,
            "topics": [{**self._place(topic), "partitions": rows} for topic, rows in topics.items()],
            "forgotten_topics_data": [
                {**self._place(topic), "partitions": rows} for topic, rows in forgotten.items()
            ],
            **fields,
        }

    def _place(self, topic: str) -> dict[str, Any]:
        if self.version < FIRST_BY_ID:
            return {"topic": topic}
        return {"topic_id": ZERO_ID if not topic else self.side.topic_ids.get(topic, NO_SUCH_ID)}


def fetch_sessions(side: Side, versions: range) -> None:
    """A session's life in every version, its corners where the form changes."""
    for version in versions:
        several, single = f"sessions-{version}-a", f"sessions-{version}-b"
        side.create(several, 3)
        side.create(single)
        _life(side, version, several, single)
        _ends(side, version, several, single)
        if version in WHERE_THE_FORM_CHANGES:
            _errors(side, version, several, single)
            _changes_below(side, version)
            _long_polls(side, version, several)


def _life(side: Side, version: int, several: str, single: str) -> None:
    """Records, nothing, records; the order; limits; what is forgotten; a new log start."""
    client = _Client(side, version, "life")
    side.produce(several, batch(2), batch(3))
    every = tuple((several, number, 0) for number in range(3))
    client.ask("open", *every, (single, 0, 0))
    client.ask("the records again")
    client.ask("go on", (several, 0, 5))
    client.ask("nothing")
    side.produce(several, batch(1), partition=2)
    client.ask("one has records")
    client.ask("they come again")
    side.produce(several, batch(4), partition=1)
    side.produce(single, batch(2))
    client.ask("three have")
    for turn in range(4):
        client.ask(f"one at a time {turn}", max_bytes=1)
    client.ask(
        "forget", (several, 1, 4), (several, 2, 1), forget=((single, 0), (single, 7), ("sessions-none", 0))
    )
    side.produce(single, batch(1))
    client.ask("the forgotten one is left out")
    client.ask("and comes back", (single, 0, 3))
    cut = {"name": single, "partitions": [{"partition_index": 0, "offset": 2}]}
    side.quietly(DELETE_RECORDS, 2, topics=[cut], timeout=5000)
    client.ask("a new log start")
    client.ask("told once")
    client.ask("below it", (single, 0, 0), is_ordered=False)
    client.ask("told again", is_ordered=False)
    client.ask("and made good", (single, 0, 2))
    client.ask("committed", isolation_level=1)


def _ends(side: Side, version: int, several: str, single: str) -> None:
    """Epochs, and all that ends a session."""
    client = _Client(side, version, "ends")
    client.ask("open", (several, 0, 5))
    number = client.number
    for epoch in (2, 7, -2, 0x7FFFFFFF):
        client.ask(f"epoch {epoch}", session_id=number, session_epoch=epoch)
    client.number, client.epoch = number, 1
    client.ask("the right epoch")
    client.ask("again", session_epoch=1)
    client.ask("the next", session_id=number, session_epoch=2)
    client.ask("forget all", forget=((several, 0),))
    client.ask("gone", session_id=number)
    client = _Client(side, version, "ends, too")
    client.ask("open", (several, 0, 0), (single, 0, 2), (several, 0, 2))
    number = client.number
    client.ask(
        "all is forgotten and one comes", (several, 1, 0), forget=((several, 1), (several, 0), (single, 0))
    )
    client.ask("gone", session_id=number, session_epoch=2)
    client = _Client(side, version, "closes")
    client.ask("open", (several, 0, 0))
    number = client.number
    client.ask("close", (several, 1, 0), session_epoch=-1)
    client.ask("gone", session_id=number, session_epoch=1)
    client = _Client(side, version, "anew")
    client.ask("open", (several, 0, 0))
    number, client.epoch = client.number, 0
    client.ask("open anew", (several, 1, 0))
    client.ask("go on")
    client.ask("gone", session_id=number, session_epoch=1)
    client = _Client(side, version, "empty")
    client.ask("open")
    client.ask("is not kept")
    client = _Client(side, version, "empty at first")
    client.ask("open")
    client.ask("one comes", (several, 1, 0))
    client.ask("goes on")


def _errors(side: Side, version: int, several: str, single: str) -> None:
    """Unknown topics and partitions; names where ids were, and ids where names were."""
    client = _Client(side, version, "errors")
    wrong = ((several, 9, 0), (several, -1, 0), (several, 1, 77))
    client.ask("open", (several, 0, 5), *wrong, is_ordered=False)
    client.ask("they stay", is_ordered=False)
    client.ask("unknown topic", ("sessions-none", 0, 0), forget=((several, 1),), is_ordered=False)
    client.ask("it stays", is_ordered=False)
    begun = time.monotonic()
    client.ask("is waited beside", max_wait=SHORT_WAIT_MS, min_bytes=1, is_ordered=False)
    side.keep(f"waited beside v{version}", {"yes": time.monotonic() - begun > SHORT_WAIT_MS / 2000})
    client.ask("alone", forget=((several, 0),), max_wait=LONG_WAIT_MS, min_bytes=1, is_ordered=False)
    side.keep(f"answered at once v{version}", {"yes": time.monotonic() - begun < LONG_WAIT_MS / 2000})
    client = _Client(side, version, "other names")
    client.ask("open", (several, 0, 5))
    number = client.number
    client.version = 12 if version >= FIRST_BY_ID else 13
    client.name = f"other names, from {version}"
    client.ask("refused", (single, 0, 0))
    client.version = version
    client.ask("still there", session_id=number, session_epoch=1)
    if version >= FIRST_BY_ID:
        client = _Client(side, version, "zero id")
        client.ask("open", (several, 0, 5), ("", 0, 0), is_ordered=False)
        client.ask("it stays", is_ordered=False)
        client.ask("forgotten", forget=(("", 0),), is_ordered=False)


def _changes_below(side: Side, version: int) -> None:
    """A topic that is deleted while a session has it, and made again."""
    topic = f"sessions-{version}-gone"
    side.create(topic)
    side.produce(topic, batch(2))
    client = _Client(side, version, "below")
    client.ask("open", (topic, 0, 2))
    deletion = {"topic_names": [topic]} if version < 0 else {"topics": [{"name": topic}]}
    side.quietly(DELETE_TOPICS, 6, timeout=5000, **deletion)
    side.wait_for_deletion(topic)
    client.ask("gone", is_ordered=False)
    client.ask("still gone", is_ordered=False)
    old = side.topic_ids.pop(topic)
    side.create(topic)
    client.ask("out of range, or another id", is_ordered=False)
    side.topic_ids["sessions-old"] = old


def _long_polls(side: Side, version: int, topic: str) -> None:
    """A session that waits: in vain, and until records come."""
    client = _Client(side, version, "polls")
    client.ask("open", (topic, 0, 5), (topic, 1, 4), (topic, 2, 1), max_wait=SHORT_WAIT_MS, min_bytes=1)
    for turn in range(2):
        begun = time.monotonic()
        client.ask(f"in vain {turn}", max_wait=SHORT_WAIT_MS, min_bytes=1)
        side.keep(f"waited {turn} v{version}", {"yes": time.monotonic() - begun > SHORT_WAIT_MS / 2000})
    for turn in range(2):
        begun = time.monotonic()
        with Connection(side.bootstrap) as waiting:
            waiting.send(FETCH, version, client.request(max_wait=LONG_WAIT_MS, min_bytes=1))
            side.produce(topic, batch(1), partition=1)
            received = waiting.receive()
        side.keep(f"woken {turn} v{version}", {"closed": True} if received is None else received[1])
        side.keep(f"in time {turn} v{version}", {"yes": time.monotonic() - begun < LONG_WAIT_MS / 2000})
        client.epoch += 1
        client.ask(f"goes on {turn}", (topic, 1, 5 + turn))
