"""What may be left of a file's unsynced bytes after a crash.

A file has what was synced last, and every content that it had since. Any of them may be on the disk, and what
lies behind the synced bytes may be whole, torn, or blocks that never arrived: zeros, or whatever was there
before. The size may have grown without the blocks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Content:
    """A file's bytes and modification time: as synced (``durable``), as seen now (``data``), and between.

    ``since`` are the contents after each change since the last sync, the newest last.
    """

    number: int
    data: bytes = b""
    modified_ns: int = 0
    durable: bytes = b""
    durable_modified_ns: int = 0
    since: list[bytes] = field(default_factory=list)

    def change(self, data: bytes, modified_ns: int) -> None:
        """It is written to, cut off, or given another time."""
        if data != self.data:
            self.since.append(data)
        self.data, self.modified_ns = data, modified_ns

    def sync(self) -> None:
        """What is seen is on the disk."""
        self.durable, self.durable_modified_ns = self.data, self.modified_ns
        self.since = []


def whole(tail: bytes, rng: random.Random) -> bytes:
    """All of it arrived."""
    return tail


def torn(tail: bytes, rng: random.Random) -> bytes:
    """The last write came to an end somewhere."""
    return tail[: rng.randrange(len(tail) + 1)]


def zero_filled(tail: bytes, rng: random.Random) -> bytes:
    """The size is right, the last blocks are missing."""
    intact = rng.randrange(len(tail) + 1)
    return tail[:intact] + bytes(len(tail) - intact)


def nonsense(tail: bytes, rng: random.Random) -> bytes:
    """The size is right, the last blocks are somebody else's."""
    intact = rng.randrange(len(tail) + 1)
    return tail[:intact] + rng.randbytes(len(tail) - intact)


def holed(tail: bytes, rng: random.Random) -> bytes:
    """A block in the middle is missing, what came later is there."""
    first, last = sorted((rng.randrange(len(tail) + 1), rng.randrange(len(tail) + 1)))
    return tail[:first] + bytes(last - first) + tail[last:]


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    whole,
    torn,
    torn,
    zero_filled,
    nonsense,
    holed,
)


def surviving(content: Content, rng: random.Random) -> tuple[bytes, int]:
    """One of the possible (bytes, modification time in ns)."""
    modified = rng.choice([content.modified_ns, content.durable_modified_ns])
    if not content.since or rng.random() < 0.2:
        return content.durable, modified
    written = rng.choice([content.data, rng.choice(content.since)])
    safe = _same_bytes(content.durable, written)
    return written[:safe] + rng.choice(DAMAGES)(written[safe:], rng), modified


def _same_bytes(one: bytes, other: bytes) -> int:
    """How many bytes at the start are the same."""
    maximum = min(len(one), len(other))
    if one[:maximum] == other[:maximum]:
        return maximum
    return next(i for i in range(maximum) if one[i] != other[i])
