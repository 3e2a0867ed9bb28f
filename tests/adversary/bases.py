"""The logs that are attacked: whole log directories, each made once and copied for every case.

::

    golden/NAME/0, legacy/NAME, old/NAME/0, txn/NAME/0     rounds of the golden sets, by their number
    recovery/NAME                                          directories after a kill, damaged or amid a swap
    broker/whole_43, broker/whole_39                       all log directories of a stopped broker
    life/3                                                 a random log of the product, with transactions
    made/NAME                                              small ones with one thing in them each

A base lies below a folder as ``data`` (``data0``, ``data1`` for a broker). Its bytes depend on its name only.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.adversary import writing
from tests.support import golden_sets
from tests.support.cleaning import lives
from tests.support.cleaning.logs import DAY, NOW

LIVES = 24
PARTS = {"golden": "g/golden", "legacy": "g/golden", "recovery": "", "old": "c/cleaned", "txn": "c/cleaned"}
MARKER = '{"version":0,"brokerEpoch":-1}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A log directory, or several of one broker, below ``folder``, and how it is cleaned.

    ``topics``: which to clean, empty for all. ``broker_config``: what the broker's server.properties said.
    """

    name: str
    folder: Path
    now_ms: int
    config: Mapping[str, str] = field(default_factory=dict)
    topics: tuple[str, ...] = ()
    from_metadata: bool = False
    broker_config: Mapping[str, str] = field(default_factory=dict)

    @property
    def directories(self) -> list[str]:
        """The names of its log directories."""
        return sorted(path.name for path in self.folder.iterdir() if path.is_dir())


def place_of(room: Path, part: str) -> Path:
    """Where an archive of golden sets is unpacked to, for all workers of a room."""
    return room / f"sets-{part}"


class Bases:
    """Makes bases below ``store`` when they are asked for; the golden sets are unpacked there when needed."""

    def __init__(self, store: Path) -> None:
        self._store, self._known = store, dict[str, Base]()

    def __getitem__(self, name: str) -> Base:
        """A base by its name. Raises KeyError."""
        if name not in self._known:
            kind, _, rest = name.partition("/")
            folder = self._store / "bases" / name.replace("/", "~")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            self._known[name] = _KINDS[kind](self, name, rest, folder)
        return self._known[name]

    def names(self, *, golden: bool = True) -> list[str]:
        """All of them, without those of the golden sets where these are not wanted."""
        own_names = [f"made/{name}" for name in writing.MADE] + [f"life/{number}" for number in range(LIVES)]
        if not golden:
            return own_names
        golden_names = [f"broker/{name}" for name in ("whole_43", "whole_39")]
        for kind, prefix in (("golden", ""), ("old", "old_formats/"), ("txn", "transactions/")):
            root = self.root(kind)
            names = golden_sets.case_names(root / prefix)
            for name in names:
                case = golden_sets.load_case(root, prefix + name)
                usable = (round_ for round_ in case.rounds if round_.now_ms is not None or kind == "old")
                golden_names += [f"{kind}/{name}/{round_.number - 1}" for round_ in usable]
        for part in ("g", "r"):
            root = self.unpacked(part) / "golden"
            golden_names += golden_sets.recovery_names(root)
        return own_names + sorted(golden_names)

    def root(self, kind: str) -> Path:
        """Where the golden sets of a kind were unpacked to."""
        part, _, below = PARTS[kind].partition("/")
        return self.unpacked(part) / below

    def unpacked(self, part: str) -> Path:
        """An archive, unpacked once for all workers: by a name that is only there when it is whole."""
        place = place_of(self._store.parent, part)
        if not place.is_dir():
            partial = self._store / f"unpacking-{part}"
            unpack = {
                "g": golden_sets.unpack_golden,
                "c": golden_sets.unpack_cleaned,
                "r": golden_sets.unpack_recovery,
                "b": golden_sets.unpack_brokers,
                "w": golden_sets.unpack_broker,
            }[part]
            unpack(partial)
            try:
                partial.rename(place)
            except OSError:
                shutil.rmtree(partial)
        return place

    def small_files(self, name: str, limit: int = 4096) -> list[tuple[str, int]]:
        """A base's small files, logs left out: (path below its folder, size in bytes)."""
        folder = self[name].folder
        return [
            (str(path.relative_to(folder)), path.stat().st_size)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.suffix != ".log" and 0 < path.stat().st_size <= limit
        ]


def _golden(bases: Bases, name: str, rest: str, folder: Path) -> Base:
    kind = name.partition("/")[0]
    set_name, _, number = rest.partition("/")
    prefix = {"old": "old_formats/", "txn": "transactions/", "legacy": "legacy/"}.get(kind, "")
    case = golden_sets.load_case(bases.root(kind), prefix + set_name)
    round_ = case.rounds[int(number or 0)]
    golden_sets.stage_round(case, round_, folder / "data")
    newest = max(round_.mtimes_before_ms.values(), default=0)
    config = {**round_.command_config, "cleanup.policy": round_.config.get("cleanup.policy", "compact")}
    return Base(
        name=name,
        folder=folder,
        topics=(case.topic,),
        config={key: value for key, value in config.items() if not key.startswith("message.format")},
        now_ms=round_.now_ms or newest + 1000,
    )


def _recovery(bases: Bases, name: str, rest: str, folder: Path) -> Base:
    root = next(
        bases.unpacked(part) / "golden"
        for part in ("g", "r")
        if (bases.unpacked(part) / "golden" / name).is_dir()
    )
    case = golden_sets.load_case(root, name)
    golden_sets.stage_round(case, case.rounds[0], folder / "data")
    newest = max(case.rounds[0].mtimes_before_ms.values(), default=0)
    config = {**case.rounds[0].command_config, "cleanup.policy": "compact"}
    return Base(name=name, folder=folder, topics=(case.topic,), config=config, now_ms=newest + 1000)


def _broker(bases: Bases, name: str, rest: str, folder: Path) -> Base:
    if rest == "whole_43":
        source = bases.unpacked("w")
        case_root = bases.unpacked("g") / "golden"
        parts = [source / "data0", source / "data1"]
    else:
        case_root = bases.unpacked("b") / "golden"
        parts = [case_root / rest / "before" / "data"]
    for part in parts:
        shutil.copytree(part, folder / part.name, copy_function=shutil.copy2)
    case = json.loads((case_root / rest / "case.json").read_text(encoding="utf-8"))
    now_ms = max(cleaning["now_ms"] for cleaning in case["cleaned"].values())
    return Base(
        name=name, folder=folder, from_metadata=True, broker_config=case["broker_static"], now_ms=now_ms
    )


def _life(bases: Bases, name: str, rest: str, folder: Path) -> Base:
    """A log as a program left it: one to three rounds of appends, only the last one not yet cleaned."""
    draw = random.Random(f"life {rest}")
    rounds = tuple(_round(draw) for _ in range(draw.choice([1, 1, 2])))
    living = lives.Living(folder / "data", lives.Life(rounds=rounds, interval=draw.choice([0, 200, 4096])))
    for round_ in rounds:
        living.write(round_)
    writing.finish(folder / "data")
    config = {key: str(value) for key, value in living.settings(rounds[-1]).items()}
    config.pop("producer.id.expiration.ms")
    config |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0"}
    return Base(name=name, folder=folder, topics=("topic",), config=config, now_ms=living.clock.now_ms())


def _round(draw: random.Random) -> lives.Round:
    events = tuple(_event(draw) for _ in range(draw.randint(6, 24)))
    if draw.random() < 0.2:
        events = (*events, lives.DeleteRecords(draw.randint(0, 60)))
    return lives.Round(
        events=events,
        rolls=draw.choice([(1,), (2,), (3, 1), (4, 1, 2)]),
        leaves_open=draw.random() < 0.5,
        later_ms=draw.choice([0, lives.HOUR, 2 * DAY]),
        log_append_time=draw.random() < 0.25,
        unreplicated=draw.choice([0, 0, 1, 9]),
        min_lag_ms=draw.choice([0, 0, 0, lives.HOUR]),
        retention_ms=draw.choice([0, 1000, DAY // 2, 100 * DAY]),
        segment_bytes=draw.choice([1, 500, 2000, 1 << 20]),
    )


def _event(draw: random.Random) -> lives.Event:
    if draw.random() < 0.25:
        return lives.End(producer=draw.choice(lives.TRANSACTIONAL), commit=draw.random() < 0.5)
    records = tuple(
        (draw.randrange(len(lives.KEYS)), draw.randint(0, 3), draw.choice(lives.AGES))
        for _ in range(draw.choice([1, 1, 3, 8]))
    )
    producer = draw.choice(lives.PLAIN + lives.IDEMPOTENT + 2 * lives.TRANSACTIONAL)
    return lives.Append(producer=producer, records=records, codec=draw.choice([0, 0, 0, 1, 2, 3, 4]))


def _made(bases: Bases, name: str, rest: str, folder: Path) -> Base:
    config, topics = writing.MADE[rest](folder / "data")
    writing.finish(folder / "data")
    return Base(name=name, folder=folder, topics=topics, config=config, now_ms=NOW)


_KINDS: dict[str, Callable[[Bases, str, str, Path], Base]] = {
    "golden": _golden,
    "legacy": _golden,
    "old": _golden,
    "txn": _golden,
    "recovery": _recovery,
    "broker": _broker,
    "life": _life,
    "made": _made,
}


def copy(base: Base, place: Path) -> list[Path]:
    """A fresh copy of a base's log directories below ``place``."""
    copies = []
    for name in base.directories:
        shutil.copytree(base.folder / name, place / name, copy_function=shutil.copy2)
        facts = os.stat(base.folder / name)
        os.utime(place / name, ns=(facts.st_mtime_ns, facts.st_mtime_ns))
        copies.append(place / name)
    return copies
