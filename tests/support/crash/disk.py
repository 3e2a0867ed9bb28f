"""A model of what a disk may hold after a crash, made from the recorded file operations.

A file has its current and its durable content (as of its last fsync); a name has come or gone for good only
once its directory was synced. ``image`` builds what could be there after the first ``count`` operations:

    keep      everything reached the disk, synced or not
    drop      nothing did that was not synced
    a seed    some of the unsynced changes of names did, in order; unsynced content is as in ``survivors``

Renames are atomic: never under both names, never under none, unless their directory entry was lost whole.
Files are appended to, cut off and made; nothing is ever written over in place.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from siltstone.base import files
from siltstone.base.files import Operation
from tests.support.crash.survivors import Content, surviving

KEEP, DROP = "keep", "drop"
STAGING = ".siltstone"
Variant = str | int
CONTENT_VERBS = ("write", "truncate", "utime", "attributes")
"""Operations after which a file's bytes or times are others."""


class Crash(BaseException):
    """The process is gone: nothing that catches errors may catch this."""


@dataclass(kw_only=True)
class Step:
    """One operation, with what a write left in the file."""

    operation: Operation
    data: bytes = b""
    modified_ns: int = 0
    is_directory: bool = False


@dataclass(kw_only=True)
class Recording:
    """The tree before, and every operation on it.

    ``marks``: (operations done, whatever the workload says of itself at that moment), in order.
    """

    root: Path
    before: dict[str, tuple[int, bytes, int]]
    folders: set[str]
    steps: list[Step] = field(default_factory=list)
    marks: list[tuple[int, Any]] = field(default_factory=list)

    def mark(self, promise: Any) -> None:
        """Note something that holds from now on."""
        self.marks.append((len(self.steps), promise))

    def said_by(self, count: int) -> Any:
        """The newest mark after ``count`` operations."""
        return next(promise for at, promise in reversed(self.marks) if at <= count)


def _scan(root: Path) -> tuple[dict[str, tuple[int, bytes, int]], set[str]]:
    contents, folders = {}, {str(root)}
    for path in sorted(root.rglob("*")):
        if path.is_dir():
            folders.add(str(path))
        else:
            facts = path.stat()
            contents[str(path)] = (facts.st_ino, path.read_bytes(), facts.st_mtime_ns)
    return contents, folders


@contextmanager
def recorded(root: Path) -> Iterator[Recording]:
    """Record every change below ``root`` within the block."""
    before, folders = _scan(root)
    recording = Recording(root=root, before=before, folders=folders)

    def settle() -> None:
        if recording.steps and recording.steps[-1].operation[0] in CONTENT_VERBS:
            step = recording.steps[-1]
            path = Path(step.operation[1])
            # Logs are opened by several threads: the one that renames a file has settled it before.
            with contextlib.suppress(FileNotFoundError):
                step.data, step.modified_ns = path.read_bytes(), path.stat().st_mtime_ns

    def observer(operation: Operation) -> None:
        settle()
        assert operation[1].startswith(str(root)), operation
        step = Step(operation=operation, is_directory=os.path.isdir(operation[1]))
        recording.steps.append(step)

    with files.observe(observer):
        yield recording
    settle()


@dataclass(kw_only=True)
class _Entry:
    """A change of names that waits for a directory's sync."""

    folder: str
    verb: str
    name: str
    other: str
    content: Content | None


class Disk:
    """The model after some of a recording's operations."""

    def __init__(self, recording: Recording, count: int) -> None:
        self.root = recording.root
        self._numbers = 0
        by_inode: dict[int, Content] = {}
        for inode, data, modified in recording.before.values():
            if inode not in by_inode:
                by_inode[inode] = self._content(data, modified)
        self.names = {path: by_inode[inode] for path, (inode, _, _) in recording.before.items()}
        self.folders = set(recording.folders)
        self.durable_names, self.durable_folders = dict(self.names), set(self.folders)
        self.waiting: list[_Entry] = []
        self._steps, self._applied = recording.steps, 0
        self.advance(count)

    def advance(self, count: int) -> None:
        """Go on to after the first ``count`` operations."""
        for step in self._steps[self._applied : count]:
            self._apply(step)
        self._applied = max(self._applied, count)

    def _content(self, data: bytes = b"", modified_ns: int = 0) -> Content:
        self._numbers += 1
        content = Content(number=self._numbers, data=data, modified_ns=modified_ns)
        content.sync()
        return content

    def _apply(self, step: Step) -> None:
        verb, path, other = step.operation
        if verb in CONTENT_VERBS:
            if path in self.names:
                self.names[path].change(step.data, step.modified_ns)
        elif verb == "fsync":
            self._sync(path, step.is_directory)
        else:
            content = self._content() if verb == "create" else self.names.get(path)
            entry = _Entry(
                folder=str(Path(other or path).parent), verb=verb, name=path, other=other, content=content
            )
            _change(entry, self.names, self.folders)
            self.waiting.append(entry)

    def _sync(self, path: str, is_directory: bool) -> None:
        if not is_directory:
            if path in self.names:
                self.names[path].sync()
            return
        for entry in [waiting for waiting in self.waiting if waiting.folder == path]:
            _change(entry, self.durable_names, self.durable_folders, strict=False)
        self.waiting = [waiting for waiting in self.waiting if waiting.folder != path]

    def build(self, variant: Variant, fingerprints: set[int] | None = None) -> bool:
        """Make the tree anew as it may be after the crash; False when ``fingerprints`` has its like."""
        rng = random.Random(variant) if isinstance(variant, int) else None
        names, folders = dict(self.durable_names), set(self.durable_folders)
        if variant == KEEP:
            names, folders = dict(self.names), set(self.folders)
        elif rng is not None:
            for entry in self.waiting:
                if rng.random() < 0.5:
                    _change(entry, names, folders)
        contents = {path: self._bytes(content, variant, rng) for path, content in sorted(names.items())}
        fingerprint = hash(tuple((path, data) for path, (data, _) in contents.items() if STAGING not in path))
        if fingerprints is not None and fingerprint in fingerprints:
            return False
        if fingerprints is not None:
            fingerprints.add(fingerprint)
        self._write(names, folders, contents)
        return True

    @staticmethod
    def _bytes(content: Content, variant: Variant, rng: random.Random | None) -> tuple[bytes, int]:
        if variant == KEEP:
            return content.data, content.modified_ns
        if rng is None:
            return content.durable, content.durable_modified_ns
        return surviving(content, rng)

    def _write(
        self, names: dict[str, Content], folders: set[str], contents: dict[str, tuple[bytes, int]]
    ) -> None:
        shutil.rmtree(self.root)
        for folder in sorted(folders):
            if str(Path(folder).parent) in folders or folder == str(self.root):
                os.makedirs(folder, exist_ok=True)
        path_by_number: dict[int, str] = {}
        for path, content in sorted(names.items()):
            if not os.path.isdir(os.path.dirname(path)):
                continue
            if content.number in path_by_number:
                os.link(path_by_number[content.number], path)
                continue
            data, modified = contents[path]
            Path(path).write_bytes(data)
            os.utime(path, ns=(modified, modified))
            path_by_number[content.number] = path


def _change(entry: _Entry, names: dict[str, Content], folders: set[str], *, strict: bool = True) -> None:
    """Apply a change of names; with ``strict`` only when the name is what the change was made on."""
    if entry.verb == "mkdir":
        folders.add(entry.name)
    elif entry.verb == "rmdir":
        folders.discard(entry.name)
    elif entry.verb == "create" and entry.content is not None:
        names[entry.name] = entry.content
    elif entry.verb == "unlink":
        if not strict or names.get(entry.name) is entry.content:
            names.pop(entry.name, None)
    elif entry.content is not None:
        _rename_or_link(entry, entry.content, names, folders, strict)
    elif entry.verb == "rename" and entry.name in folders:
        _rename_folder(entry.name, entry.other, names, folders)


def _rename_folder(old: str, new: str, names: dict[str, Content], folders: set[str]) -> None:
    """A directory goes with all that is in it."""
    for path in [path for path in names if path.startswith(f"{old}/")]:
        names[new + path[len(old) :]] = names.pop(path)
    for folder in [folder for folder in folders if f"{folder}/".startswith(f"{old}/")]:
        folders.discard(folder)
        folders.add(new + folder[len(old) :])


def _rename_or_link(
    entry: _Entry, content: Content, names: dict[str, Content], folders: set[str], strict: bool
) -> None:
    same_folder = os.path.dirname(entry.name) == entry.folder
    if strict and same_folder and names.get(entry.name) is not content:
        return
    if entry.verb == "rename" and names.get(entry.name) is content:
        del names[entry.name]
    names[entry.other] = content
    folders.add(entry.folder)


class Raising:
    """Lets ``count`` operations happen; then the process is gone. The lock is the system's to drop."""

    def __init__(self, count: int) -> None:
        self.remaining = count

    def __call__(self, operation: Operation) -> None:
        if operation[1].endswith("/.lock"):
            return
        if self.remaining <= 0:
            raise Crash
        self.remaining -= 1


def crash_after(count: int, act: Callable[[], Any]) -> bool:
    """Do it, gone after ``count`` operations; did it come to that?"""
    try:
        with files.observe(Raising(count)):
            act()
    except Crash:
        return True
    return False
