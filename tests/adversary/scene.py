"""Where a case happens: the attacked log directories, a tree beside them that must not change, what is asked.

::

    ROOT/data            the base's copy, attacked
    ROOT/bystander       files of somebody else, which links lead to; nothing there may change
    ROOT/twin            where hard links of the log's own files lead to
    ROOT/out, ROOT/kept  what commands are told to write to
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.adversary import bases
from tests.adversary.bases import Base

Facts = tuple[int, int, int, int, bytes | str]
PARTITION = re.compile(r"^([a-zA-Z0-9._-]{1,249})-(\d+)\Z", re.ASCII)
NOTES = re.compile(r"^\.?siltstone-")
"""Files of Siltstone's own in the root of a log directory: what was cleaned, what is uncleanable."""


class DoesNotApplyError(Exception):
    """The attack finds nothing here that it could attack."""


@dataclass(slots=True, kw_only=True)
class Scene:
    """A case's directories and flags, which attacks change.

    ``doubtful``: records of transactions contradict what lies beside them, so that either reading counts.
    ``unreadable``: what the attack did may be answered with any refusal. ``shared``: a file has a second name
    outside, so that what recovery cuts is cut there too.
    """

    base: Base
    root: Path
    directories: list[Path]
    config: dict[str, str]
    broker_config: dict[str, str]
    now_ms: int
    attacked: list[str] = field(default_factory=list)
    doubtful: bool = False
    shared: bool = False
    extreme_settings: bool = False
    snapshots_hold: bool = True

    @property
    def bystander(self) -> Path:
        """The tree that must not change."""
        return self.root / "bystander"

    def partitions(self) -> list[Path]:
        """The partition directories, links left out; whatever the attacks made of them."""
        return [
            path
            for directory in self.directories
            for path in sorted(directory.iterdir())
            if PARTITION.match(path.name) and not path.is_symlink() and path.is_dir()
        ]

    def targets(self) -> list[Path]:
        """Those partitions that are to be cleaned."""
        topics = self.base.topics
        paths = [path for path in self.partitions() if not topics or topic_of(path) in topics]
        return [path for path in paths if topic_of(path) != "__cluster_metadata"]

    def target(self, draw: Random) -> Path:
        """One of them with segments. Raises DoesNotApplyError."""
        paths = [path for path in self.targets() if any(regular(log) for log in path.glob("*.log"))]
        if not paths:
            raise DoesNotApplyError
        return draw.choice(paths)

    def segments(self, partition: Path) -> list[Path]:
        """A partition's ``.log`` files in order, links left out. Raises DoesNotApplyError when there are
        none."""
        logs = [path for path in sorted(partition.glob("*.log")) if regular(path) and path.stem.isdigit()]
        if not logs:
            raise DoesNotApplyError
        return logs


def topic_of(partition: Path) -> str:
    """The topic of a partition directory."""
    return partition.name.rpartition("-")[0]


def regular(path: Path) -> bool:
    """Is it a regular file, and no link?"""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def prepare(base: Base, root: Path) -> Scene:
    """A fresh copy of the base below ``root``, and the tree beside it."""
    root.mkdir(parents=True)
    directories = bases.copy(base, root)
    scene = Scene(
        base=base,
        root=root,
        directories=directories,
        config=dict(base.config),
        broker_config=dict(base.broker_config),
        now_ms=base.now_ms,
    )
    (root / "twin").mkdir()
    folder = scene.bystander / "precious-0"
    folder.mkdir(parents=True)
    for name in (f"{0:020}.log", f"{0:020}.index", "keys", ".hidden"):
        (folder / name).write_bytes(name.encode() * 20)
    (folder / "run-1").mkdir()
    (folder / "run-1" / "letter").write_text("keep me")
    (scene.bystander / "file").write_text("0\n1\nprecious 0 7\n")
    return scene


def file_stat(root: Path, *, times: bool = True) -> dict[str, Facts]:
    """Every name below a directory: kind and mode, owner, group, time, content or target. No link is
    followed, no queue is read."""
    facts_by_name: dict[str, Facts] = {}
    stack = [os.fsencode(root)] if os.path.isdir(root) else []
    while stack:
        folder = stack.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                facts = entry.stat(follow_symlinks=False)
                content: bytes | str = ""
                if entry.is_symlink():
                    content = os.readlink(entry.path)
                elif entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)
                elif stat.S_ISREG(facts.st_mode):
                    with open(entry.path, "rb") as file:
                        content = file.read()
                modified = facts.st_mtime_ns if times else 0
                name = os.fsdecode(os.path.relpath(entry.path, os.fsencode(root)))
                facts_by_name[name] = (facts.st_mode, facts.st_uid, facts.st_gid, modified, content)
    return facts_by_name
