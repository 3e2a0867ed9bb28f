"""What is done to a directory before a command meets it, one kind a function, by name in ``ATTACKS``.

An attack draws what it needs from the case's own generator, changes the scene and says in a line what it did.
One that finds nothing to attack raises DoesNotApplyError.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

from siltstone.base.config_table import BROKER_KEYS, TOPIC_KEYS, Kind
from tests.adversary import writing
from tests.adversary.plain import CODEC, HORIZON, TRANSACTIONAL, read, scan
from tests.adversary.scene import DoesNotApplyError, Scene, regular
from tests.support.records import twin

Attack = Callable[[Random, Scene], str]
ATTACKS: dict[str, Attack] = {}
CHECKPOINTS = (
    "cleaner-offset-checkpoint",
    "replication-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
)
LONG_MAX, INT_MAX = (1 << 63) - 1, (1 << 31) - 1
EXTREMES = (
    0,
    1,
    -1,
    2,
    7,
    INT_MAX,
    -INT_MAX - 1,
    INT_MAX + 1,
    1 << 40,
    LONG_MAX - 1,
    LONG_MAX,
    -LONG_MAX - 1,
)
INDEXED = (".index", ".timeindex", ".txnindex", ".snapshot")


def attack(function: Attack) -> Attack:
    """Register an attack under its function's name."""
    ATTACKS[function.__name__] = function
    return function


def _below(scene: Scene, path: Path) -> str:
    return os.fsencode(path.relative_to(scene.root)).decode("utf-8", "backslashreplace")


def _write(path: Path, data: bytes) -> None:
    """Other bytes in the same file, with the time that it had."""
    facts = path.stat()
    _put(path, data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def _put(path: Path, data: bytes) -> None:
    """A file, new or in place of one. Where an attack before put something else there, this one does not
    apply: a queue would hold us."""
    if os.path.lexists(path) and not regular(path):
        raise DoesNotApplyError
    path.write_bytes(data)


def _files(draw: Random, scene: Scene, *, logs: bool = False) -> list[Path]:
    """Small files of a partition that is cleaned and of the directory; with ``logs`` the logs too."""
    partition = scene.target(draw)
    files = [path for path in sorted(partition.iterdir()) if regular(path)]
    files += [path for path in sorted(partition.parent.iterdir()) if regular(path) and path.name != ".lock"]
    return [path for path in files if logs or path.suffix != ".log"]


def _any_of(draw: Random, files: list[Path]) -> Path:
    if not files:
        raise DoesNotApplyError
    return draw.choice(files)


def flip_exactly(scene: Scene, place: str) -> str:
    """Flip one bit: ``place`` is PATH:BIT, the path below the scene's root."""
    name, _, bit = place.rpartition(":")
    _flip(scene.root / name, int(bit))
    if name.endswith(".snapshot"):
        scene.snapshots_hold = False
    return f"flipped bit {bit} of {name}"


def _flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    _write(path, bytes(data))


def _note_file(scene: Scene, path: Path) -> None:
    if path.suffix == ".snapshot":
        scene.snapshots_hold = False
    if path.suffix == ".log":
        scene.doubtful = True


# Bytes


@attack
def flip_bit(draw: Random, scene: Scene) -> str:
    """One bit of a file beside the logs."""
    path = _any_of(draw, [file for file in _files(draw, scene) if file.stat().st_size])
    bit = draw.randrange(path.stat().st_size * 8)
    _note_file(scene, path)
    _flip(path, bit)
    return f"flipped bit {bit} of {_below(scene, path)}"


@attack
def flip_log(draw: Random, scene: Scene) -> str:
    """One bit of a log, of the headers more often than of the rest."""
    path = _any_of(
        draw, [segment for segment in scene.segments(scene.target(draw)) if segment.stat().st_size]
    )
    data = path.read_bytes()
    position = draw.randrange(len(data))
    batches = scan(int(path.stem), data).batches
    if batches and draw.random() < 0.6:
        position = draw.choice(batches)[0] + draw.randrange(min(61, len(data)))
    bit = min(position, len(data) - 1) * 8 + draw.randrange(8)
    scene.doubtful = True
    _flip(path, bit)
    return f"flipped bit {bit} of {_below(scene, path)}"


@attack
def cut_file(draw: Random, scene: Scene) -> str:
    """A file ends early."""
    path = _any_of(
        draw, [file for file in _files(draw, scene, logs=draw.random() < 0.5) if file.stat().st_size]
    )
    size = draw.randrange(path.stat().st_size)
    _note_file(scene, path)
    _write(path, path.read_bytes()[:size])
    return f"cut {_below(scene, path)} to {size} bytes"


@attack
def zero_file(draw: Random, scene: Scene) -> str:
    """Some of a file is zeros, as a block that never reached the disk."""
    path = _any_of(
        draw, [file for file in _files(draw, scene, logs=draw.random() < 0.5) if file.stat().st_size]
    )
    data = bytearray(path.read_bytes())
    start = draw.randrange(len(data))
    end = min(len(data), start + draw.choice([1, 8, 512, 1 << 20]))
    data[start:end] = bytes(end - start)
    _note_file(scene, path)
    _write(path, bytes(data))
    return f"zeros from {start} to {end} in {_below(scene, path)}"


@attack
def append_garbage(draw: Random, scene: Scene) -> str:
    """Something stands behind a file's end."""
    path = _any_of(draw, _files(draw, scene, logs=draw.random() < 0.5))
    data = path.read_bytes()
    tail = draw.choice([draw.randbytes(draw.choice([1, 12, 100, 5000])), bytes(64), data, data[-20:]])
    _note_file(scene, path)
    _write(path, data + tail)
    return f"appended {len(tail)} bytes to {_below(scene, path)}"


@attack
def empty_file(draw: Random, scene: Scene) -> str:
    """A file without bytes."""
    path = _any_of(draw, _files(draw, scene))
    _note_file(scene, path)
    _write(path, b"")
    return f"emptied {_below(scene, path)}"


@attack
def swap_files(draw: Random, scene: Scene) -> str:
    """Two files of one kind in each other's place."""
    partition = scene.target(draw)
    suffix = draw.choice([*INDEXED, ".log"])
    files = [
        path
        for folder in {partition, *scene.targets()}
        for path in sorted(folder.glob(f"*{suffix}"))
        if regular(path)
    ]
    if len(files) < 2:
        raise DoesNotApplyError
    first_file, second_file = draw.sample(sorted(files), 2)
    first_bytes, second_bytes = first_file.read_bytes(), second_file.read_bytes()
    _note_file(scene, first_file)
    _write(first_file, second_bytes)
    _write(second_file, first_bytes)
    return f"swapped {_below(scene, first_file)} and {_below(scene, second_file)}"


@attack
def delete_file(draw: Random, scene: Scene) -> str:
    """A file that is gone."""
    path = _any_of(draw, _files(draw, scene, logs=draw.random() < 0.3))
    _note_file(scene, path)
    path.unlink()
    return f"deleted {_below(scene, path)}"


# Links, and what is no file


def _put_link(scene: Scene, path: Path, target: Path) -> str:
    if os.path.lexists(path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    path.symlink_to(target)
    return f"{_below(scene, path)} leads to {_below(scene, target)}"


@attack
def link_file(draw: Random, scene: Scene) -> str:
    """A file of the partition is a link to the same bytes elsewhere; logs too."""
    path = _any_of(draw, _files(draw, scene, logs=draw.random() < 0.7))
    target = scene.bystander / f"moved-{path.name}"
    shutil.copy2(path, target)
    return _put_link(scene, path, target)


@attack
def link_to_nowhere(draw: Random, scene: Scene) -> str:
    """A file is a link to a name that is not there: who opens it to write makes it there."""
    names = [".lock", *CHECKPOINTS, "siltstone-cleanings.jsonl"]
    names += [f"{checkpoint}.tmp" for checkpoint in CHECKPOINTS]
    directory = scene.target(draw).parent
    return _put_link(scene, directory / draw.choice(names), scene.bystander / "made-by-a-link")


@attack
def link_own_names(draw: Random, scene: Scene) -> str:
    """Names that commands write or remove are there already, as links to files and trees of others."""
    partition = scene.target(draw)
    base = int(draw.choice(scene.segments(partition)).stem)
    inside = [
        f"{base:020}.log.cleaned",
        f"{base:020}.index.cleaned",
        f"{base:020}.log.swap",
        f"{base:020}.log.deleted",
        "leader-epoch-checkpoint.tmp",
        "partition.metadata.tmp",
        f"{base + 1:020}.snapshot.tmp",
    ]
    beside = [".lock", "siltstone-cleanings.jsonl", "siltstone-uncleanable.json", *CHECKPOINTS]
    beside += [f"{checkpoint}.tmp" for checkpoint in CHECKPOINTS]
    path = partition / draw.choice(inside) if draw.random() < 0.5 else partition.parent / draw.choice(beside)
    return _put_link(scene, path, scene.bystander / "file")


@attack
def link_folders(draw: Random, scene: Scene) -> str:
    """Folders that are ours are links to a tree of somebody else, at the top or further in."""
    partition = scene.target(draw)
    name = draw.choice([".siltstone", ".compacted", ".siltstone/old-run", ".compacted/x", ".siltstone-old"])
    path = partition / name
    path.parent.mkdir(exist_ok=True)
    return _put_link(scene, path, scene.bystander / "precious-0")


@attack
def link_partition(draw: Random, scene: Scene) -> str:
    """The partition's directory is a link to where it really lies: with a broker that was not stopped."""
    partition = scene.target(draw)
    target = scene.bystander / "logs" / partition.name
    target.parent.mkdir(exist_ok=True)
    _put(target.parent / "meta.properties", b"version=1\ncluster.id=others\nnode.id=7\n")
    (target.parent / ".lock").touch()
    shutil.copytree(partition, target, copy_function=shutil.copy2)
    return _put_link(scene, partition, target)


@attack
def hard_link(draw: Random, scene: Scene) -> str:
    """A file of the partition has a second name elsewhere."""
    path = _any_of(draw, _files(draw, scene, logs=True))
    os.link(path, scene.root / "twin" / path.name)
    scene.shared = True
    return f"{_below(scene, path)} has a second name"


@attack
def odd_file(draw: Random, scene: Scene) -> str:
    """A queue or a directory has the name of a file."""
    path = _any_of(draw, _files(draw, scene, logs=draw.random() < 0.6))
    path.unlink()
    if draw.random() < 0.5:
        os.mkfifo(path)
        return f"{_below(scene, path)} is a queue"
    path.mkdir()
    return f"{_below(scene, path)} is a directory"


@attack
def extra_odd_segment(draw: Random, scene: Scene) -> str:
    """A segment's name that nobody needs, and that is no file."""
    partition = scene.target(draw)
    base = int(draw.choice(scene.segments(partition)).stem) + draw.choice([1, 2, 1000])
    path = partition / f"{base:020}.{draw.choice(['log', 'log', 'index', 'txnindex', 'snapshot'])}"
    if os.path.lexists(path):
        raise DoesNotApplyError
    kind = draw.choice(["queue", "directory", "link"])
    if kind == "queue":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(scene.bystander / "precious-0" / f"{0:020}.log")
    return f"{_below(scene, path)} is a {kind}"


@attack
def other_owner(draw: Random, scene: Scene) -> str:
    """A file, or all of the partition, is somebody else's."""
    if os.geteuid() != 0:
        raise DoesNotApplyError
    if draw.random() < 0.3:
        partition = scene.target(draw)
        for path in (partition, *partition.iterdir()):
            os.chown(path, 12345, 12345, follow_symlinks=False)
        return f"all of {_below(scene, partition)} is of owner 12345"
    path = _any_of(draw, _files(draw, scene, logs=draw.random() < 0.5))
    os.chown(path, 12345, 12345)
    return f"{_below(scene, path)} is of owner 12345"


@attack
def odd_mode(draw: Random, scene: Scene) -> str:
    """A mode that makes no sense."""
    path = _any_of(draw, _files(draw, scene, logs=draw.random() < 0.5))
    mode = draw.choice([0o000, 0o777, 0o4755, 0o200, 0o444])
    path.chmod(mode)
    return f"{_below(scene, path)} has mode {mode:o}"


# Forged, with the right checksum and size


@attack
def forge_checkpoint(draw: Random, scene: Scene) -> str:
    """An offset checkpoint with another offset for the partition."""
    partition = scene.target(draw)
    log = read(partition)
    near = [log.end_offset, log.end_offset + 1, log.end_offset - 1, log.active, log.active + 1, *log.segments]
    offsets = [*near, *log.records, *EXTREMES]
    name = draw.choice(CHECKPOINTS)
    topic, _, number = partition.name.rpartition("-")
    path = partition.parent / name
    rows = {}
    for line in path.read_text().splitlines()[2:] if regular(path) else ():
        fields = line.split(" ")
        if len(fields) == 3:
            rows[fields[0], fields[1]] = fields[2]
    rows[topic, number] = str(draw.choice(offsets))
    lines = [
        "0",
        str(len(rows)),
        *(
            f"{topic_name} {partition_number} {offset_text}"
            for (topic_name, partition_number), offset_text in rows.items()
        ),
    ]
    _put(path, ("\n".join(lines) + "\n").encode())
    return f"{name} says {rows[topic, number]} for {partition.name}"


@attack
def forge_checkpoint_text(draw: Random, scene: Scene) -> str:
    """An offset checkpoint whose text is odd: twice the same entry, other numbers, other lines."""
    partition = scene.target(draw)
    topic, _, number = partition.name.rpartition("-")
    path = partition.parent / draw.choice(CHECKPOINTS)
    text = draw.choice(
        [
            f"0\n2\n{topic} {number} 1\n{topic} {number} 2\n",
            f"0\n1\n{topic} {number} 1_0\n",
            f"0\n1\n{topic} {number} \u0665\n",
            f"0\n1\n{topic} {number} {10**30}\n",
            f"0\n1\n{topic} {number} 3.5\n",
            f"0\n-1\n{topic} {number} 3\n",
            f"1\n1\n{topic} {number} 3\n",
            f"0\n1\n{topic}  {number}  3\n",
            f"0\n1\n{topic} {number} 3 4\n",
            f"0\n0\n{topic} {number} 3\n",
            f"0\r\n1\r\n{topic} {number} 3\r\n",
            f"0\n1\n../../{topic} {number} 3\n",
            "0\n" + "9" * 4000 + "\n",
            "\ufeff0\n0\n",
        ]
    )
    _put(path, text.encode())
    return f"{path.name} is {text[:60]!r}"


@attack
def forge_snapshot(draw: Random, scene: Scene) -> str:
    """A sound producer snapshot that is not true: above the end, without an open transaction, with others."""
    partition = scene.target(draw)
    log = read(partition)
    rows = _rows_of(log)
    kind = draw.choice(["none", "closed", "other", "opened", "extreme"])
    if kind == "none":
        rows = []
    elif kind == "closed":
        rows = [(*row[:7], -1) for row in rows]
    elif kind == "other":
        rows = [(row[0] + 1000, *row[1:]) for row in rows] or [(5, 0, 0, 0, 0, 0, 0, -1)]
    elif kind == "opened":
        rows = [(*row[:7], draw.choice([0, row[3], log.end_offset])) for row in rows]
    else:
        rows = [(draw.choice(EXTREMES), 0, 0, draw.choice(EXTREMES), 0, draw.choice(EXTREMES), 0, -1)]
    above = [log.end_offset + 1, log.end_offset + 1000, LONG_MAX]
    places = [log.end_offset, log.end_offset, *log.segments, *above, *above]
    offset = draw.choice(places)
    scene.snapshots_hold = False
    _put(partition / f"{offset:020}.snapshot", writing.snapshot(rows))
    return f"snapshot {offset} (end {log.end_offset}) says {kind}: {rows}"


def _rows_of(log: object) -> list[tuple[int, ...]]:
    """What a true snapshot of the log's end has to say."""
    rows: dict[int, list[int]] = {}
    for batch in log.batches():  # type: ignore[attr-defined]
        if batch.magic == 2 and batch.producer_id >= 0 and batch.records and not batch.attributes & 0x20:
            last = batch.records[-1]
            opened = batch.base_offset if batch.attributes & TRANSACTIONAL else -1
            sequence = max(last.producer[2], 0)
            stamp = batch.max_timestamp
            rows[batch.producer_id] = [batch.producer_id, 0, sequence, last.offset, 0, stamp, 0, opened]
    return [tuple(row) for row in rows.values()]


@attack
def forge_index(draw: Random, scene: Scene) -> str:
    """Entries of an offset or time index that point anywhere: into values, behind the end, backwards."""
    partition = scene.target(draw)
    log = draw.choice(scene.segments(partition))
    size, entries = log.stat().st_size, b""
    count = draw.choice([1, 2, 5])
    kind = draw.choice(["index", "timeindex"])
    for number in range(count):
        if kind == "index":
            position = draw.choice([draw.randrange(size + 1), size, size + 1, INT_MAX, -1, 0, 61])
            entries += struct.pack(">ii", draw.choice([number, number + 1, 7, INT_MAX, -1, 0]), position)
        else:
            entries += struct.pack(">qi", draw.choice(EXTREMES), draw.choice([number, 7, INT_MAX, -1]))
    _put(log.with_suffix(f".{kind}"), entries)
    return f"{count} entries in {log.stem}.{kind}: {entries.hex()}"


@attack
def forge_aborted(draw: Random, scene: Scene) -> str:
    """A ``.txnindex`` with an entry moved, of another producer, added or left out."""
    partition = scene.target(draw)
    logs = scene.segments(partition)
    files = [path for path in (log.with_suffix(".txnindex") for log in logs) if regular(path)]
    path = draw.choice(files) if files and draw.random() < 0.8 else draw.choice(logs).with_suffix(".txnindex")
    data = path.read_bytes() if regular(path) else b""
    rows = list(writing.ABORTED.iter_unpack(data[: len(data) - len(data) % writing.ABORTED.size]))
    end = read(partition).end_offset
    if rows and draw.random() < 0.75:
        number = draw.randrange(len(rows))
        row, kind = list(rows[number]), draw.choice(["moved", "other", "left out", "wide", "twice"])
        if kind == "moved":
            row[draw.choice([2, 3])] += draw.choice([-1, 1])
        elif kind == "other":
            row[1] = draw.choice([row[1] + 1, row[1] - 1, -1, 0, LONG_MAX])
        elif kind == "wide":
            row[2], row[3] = draw.choice([(0, row[3]), (row[2], end), (0, LONG_MAX), (row[3], row[2])])
        rows[number : number + 1] = [] if kind == "left out" else [tuple(row)] * (2 if kind == "twice" else 1)
    else:
        producers = sorted({batch.producer_id for batch in read(partition).batches()})
        first, last = sorted(draw.randrange(end + 1) for _ in range(2))
        kind = "added"
        rows.append((0, draw.choice(producers or [1]), first, last, last + 1))
    _put(path, b"".join(writing.ABORTED.pack(*row) for row in rows))
    return f"{path.name}: {kind}: {[row[1:] for row in rows]}"


@attack
def forge_epochs(draw: Random, scene: Scene) -> str:
    """A ``leader-epoch-checkpoint`` with offsets from anywhere."""
    partition = scene.target(draw)
    rows = [
        f"{draw.choice([0, 1, 5, INT_MAX, -1])} {draw.choice(EXTREMES)}" for _ in range(draw.randint(1, 3))
    ]
    _put(partition / "leader-epoch-checkpoint", "\n".join(["0", str(len(rows)), *rows, ""]).encode())
    return f"leader epochs {rows}"


@attack
def forge_batch(draw: Random, scene: Scene) -> str:
    """A header's field is another, and the checksum goes with it."""
    path, raw, position, data = _a_batch(draw, scene)
    name = draw.choice(list(_FIELDS))
    at, form = _FIELDS[name]
    (old,) = struct.unpack_from(form, raw, at)
    maximum = (1 << (8 * struct.calcsize(form) - 1)) - 1
    extremes = [0, 1, -1, maximum, -maximum - 1, maximum - 1, old + 1, old - 1, old + 2]
    value = draw.choice(extremes)
    if name == "attributes":
        value = old ^ (1 << draw.randrange(15))
    value = max(-maximum - 1, min(maximum, value))
    changed = bytearray(raw)
    struct.pack_into(form, changed, at, value)
    scene.doubtful = True
    new = writing.resealed(bytes(changed))
    _write(path, data[:position] + new + data[position + len(raw) :])
    return f"{name} of the batch at {position} of {_below(scene, path)} is {value}, not {old}"


_FIELDS = {
    "base offset": (0, ">q"),
    "leader epoch": (12, ">i"),
    "attributes": (21, ">h"),
    "last offset delta": (23, ">i"),
    "base timestamp": (27, ">q"),
    "max timestamp": (35, ">q"),
    "producer id": (43, ">q"),
    "producer epoch": (51, ">h"),
    "base sequence": (53, ">i"),
    "count": (57, ">i"),
}


def _a_batch(draw: Random, scene: Scene) -> tuple[Path, bytes, int, bytes]:
    """A sound batch of v2: its file, bytes, position, and the file's bytes."""
    path = draw.choice(scene.segments(scene.target(draw)))
    data = path.read_bytes()
    batches = [(at, batch) for at, batch in scan(int(path.stem), data).batches if batch.magic == 2]
    if not batches:
        raise DoesNotApplyError
    position, _ = draw.choice(batches)
    size = struct.unpack_from(">i", data, position + 8)[0] + 12
    return path, data[position : position + size], position, data


@attack
def forge_horizon(draw: Random, scene: Scene) -> str:
    """A batch is stamped with a delete horizon from anywhere, its timestamps as they were where that can
    be."""
    path, raw, position, data = _a_batch(draw, scene)
    near = [min(max(scene.now_ms + by, -LONG_MAX - 1), LONG_MAX) for by in (0, -1, 1)]
    value = draw.choice([*near, 0, -1, -2, -LONG_MAX - 1, LONG_MAX, -(1 << 62)])
    changed = bytearray(raw)
    (attributes,) = struct.unpack_from(">h", raw, 21)
    struct.pack_into(">h", changed, 21, attributes | HORIZON)
    struct.pack_into(">q", changed, 27, value)
    scene.doubtful = True
    new = writing.resealed(bytes(changed))
    _write(path, data[:position] + new + data[position + len(raw) :])
    return f"the batch at {position} of {_below(scene, path)} has horizon {value}"


@attack
def bomb(draw: Random, scene: Scene) -> str:
    """A small batch that decompresses to some megabytes, behind the others of its segment or alone."""
    partition = scene.target(draw)
    log = read(partition)
    path = scene.segments(partition)[-1]
    size = draw.choice([1 << 16, 1 << 20, 8 << 20])
    codec = draw.choice([twin.GZIP, twin.ZSTD])
    data, offset = path.read_bytes(), max(log.end_offset, int(path.stem))
    for _ in range(draw.choice([1, 3])):
        body = twin.record(0, 0, b"bomb", bytes(size))
        packed = twin.compress(codec, body)
        head = twin.batch([body], codec=codec, body=packed, base_offset=offset, base_timestamp=scene.now_ms)
        data, offset = data + head, offset + 1
    _write(path, data)
    _put(partition / f"{offset:020}.log", b"")
    return f"a bomb of {size} bytes, packed {len(packed)}, in {_below(scene, path)}"


@attack
def lying_bomb(draw: Random, scene: Scene) -> str:
    """A batch whose compressed part is not what its header, or its frame, says."""
    path, raw, position, data = _a_batch(draw, scene)
    (attributes,) = struct.unpack_from(">h", raw, 21)
    changed = bytearray(raw)
    if attributes & CODEC and draw.random() < 0.5:
        for _ in range(draw.randint(1, 4)):
            changed[61 + draw.randrange(max(min(len(raw) - 61, 16), 1)) if len(raw) > 61 else 60] ^= 0xFF
    else:
        struct.pack_into(">h", changed, 21, attributes & ~CODEC | draw.choice([1, 2, 3, 4, 5, 7]))
    scene.doubtful = True
    _write(path, data[:position] + writing.resealed(bytes(changed)) + data[position + len(raw) :])
    return f"the batch at {position} of {_below(scene, path)} is no longer compressed as it says"


# Numbers and times


def _extreme(draw: Random, kind: Kind) -> str:
    if kind is Kind.DOUBLE:
        return draw.choice(["0", "1", "0.5", "-1", "nan", "inf", "1e308", "5e-324", "1_0"])
    return draw.choice(
        [str(extreme) for extreme in EXTREMES] + [str(1 << 70), "1e3", "0x10", " 5 ", "", "+7"]
    )


_SLOW = ("log.cleaner.io.max.bytes.per.second", "log.cleaner.backoff.ms")
NUMBERS = (Kind.INT, Kind.LONG, Kind.DOUBLE)


@attack
def topic_number(draw: Random, scene: Scene) -> str:
    """One of a topic's settings is as large or small as can be."""
    if not scene.base.topics:
        raise DoesNotApplyError
    key = draw.choice([topic_key for topic_key in TOPIC_KEYS if topic_key.kind in NUMBERS])
    text = _extreme(draw, key.kind)
    scene.config[key.name] = text
    scene.extreme_settings = True
    return f"--config {key.name}={text}"


@attack
def broker_number(draw: Random, scene: Scene) -> str:
    """One of the broker's settings is as large or small as can be."""
    keys = [
        broker_key
        for broker_key in BROKER_KEYS
        if broker_key.kind in NUMBERS and broker_key.name not in _SLOW
    ]
    key = draw.choice(keys)
    text = _extreme(draw, key.kind)
    scene.broker_config[key.name] = text
    scene.extreme_settings = True
    return f"broker's {key.name}={text}"


@attack
def clock_jump(draw: Random, scene: Scene) -> str:
    """The clock is somewhere else."""
    year = 365 * 86_400_000
    extremes = [
        0,
        -1,
        1,
        LONG_MAX,
        -LONG_MAX - 1,
        LONG_MAX - 1,
        scene.now_ms - 50 * year,
        scene.now_ms + 50 * year,
    ]
    scene.now_ms = draw.choice(extremes)
    return f"now is {scene.now_ms}"


# Names


@attack
def swap_leftovers(draw: Random, scene: Scene) -> str:
    """What an interrupted swap leaves: copies of a segment's files as .cleaned, .swap, .deleted.

    One .swap at most: what lies between two is taken for replaced, in Kafka too.
    """
    partition = scene.target(draw)
    leftovers: list[str] = []
    for _ in range(draw.randint(1, 2)):
        log = draw.choice(scene.segments(partition))
        suffixes = [".cleaned", ".deleted"] + (
            [] if any(".swap" in name for name in leftovers) else [".swap"]
        )
        suffix = draw.choice(suffixes)
        for path in sorted(partition.glob(f"{log.stem}.*")):
            if regular(path) and path.suffix in (".log", *INDEXED[:3]):
                copy = path.with_name(path.name + suffix)
                if not os.path.lexists(copy):
                    shutil.copy2(path, copy)
        leftovers.append(f"{log.stem}{suffix}")
    if draw.random() < 0.3:
        _put(partition / f"{int(log.stem):020}.log.cleaned", draw.randbytes(30))
        leftovers.append(f"{log.stem}.log.cleaned of garbage")
    return f"leftovers {leftovers}"


@attack
def twice_named(draw: Random, scene: Scene) -> str:
    """A segment is there under a second name, so that offsets overlap."""
    partition = scene.target(draw)
    log = draw.choice(scene.segments(partition))
    base = int(log.stem) + draw.choice([1, 2, 5, -1])
    path = partition / f"{max(base, 0):020}.log"
    if os.path.lexists(path):
        raise DoesNotApplyError
    shutil.copy2(log, path)
    scene.doubtful = True
    return f"{_below(scene, log)} is also {path.name}"


@attack
def strange_names(draw: Random, scene: Scene) -> str:
    """Names in the log directory that nobody expects."""
    directory = scene.target(draw).parent
    base = os.fsencode(scene.target(draw).name.rpartition("-")[0])
    names = [
        b"\xff\xfe-0",
        b"a" * 253 + b"-0",
        base + b"-00",
        base + b"-0.0123456789abcdef0123456789abcdef-delete",
        base + b"-99999999999",
        b"-delete",
        b"..-0",
        b"new\nline-0",
        b"\x1b[31mred-0",
        base + b"-\xd9\xa1",
        b" -0",
    ]
    name = draw.choice(names)
    path = os.path.join(os.fsencode(directory), name)
    if os.path.lexists(path):
        raise DoesNotApplyError
    os.mkdir(path)
    with open(os.path.join(path, b"%020d.log" % 0), "wb") as file:
        file.write(b"not a log")
    return f"a directory {name!r}"


@attack
def strange_files(draw: Random, scene: Scene) -> str:
    """Names in the partition that nobody expects."""
    partition = scene.target(draw)
    names = [
        "9" * 20 + ".log",
        "1.log",
        f"{0:020}.log.bak",
        f"{0:020}.LOG",
        f"{0:020}.log.cleaned.swap",
        "\u0660" * 20 + ".log",
        "-1.log",
        f"{5:020}.snapshot.deleted",
        f"{7:020}.index",
        os.fsdecode(b"\xff.log"),
    ]
    path = partition / draw.choice(names)
    if os.path.lexists(path):
        raise DoesNotApplyError
    _put(path, draw.choice([b"", b"x" * 100, bytes(61)]))
    return f"a file {os.fsencode(path.name)!r}"
