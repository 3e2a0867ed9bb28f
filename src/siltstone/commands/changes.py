"""Writes and reads the audit log: a line for each change that a user asked for, with the values before and
after, and a line for its outcome.

A JSON object a line, in ``siltstone-changes.jsonl`` in the first log directory::

    {"id": "…", "at_ms": …, "stage": "intent", "user": "ada", "address": "127.0.0.1", "way": "http",
     "action": "alter", "target": "users", "before": {…}, "after": {…}}
    {"id": "…", "at_ms": …, "stage": "outcome", "outcome": "done"}

An outcome may have a ``receipt``: what a search found after the change (``commands.erasing``). The intent
is on disk before the change begins, and a change whose intent cannot be written is refused. An intent without
an outcome is of a change that a crash interrupted. Records' keys and values are never written.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from siltstone.base import files
from siltstone.base.clock import Clock
from siltstone.base.errors import StorageError

CHANGES_FILE = "siltstone-changes.jsonl"
INTENT, OUTCOME, DONE, INTERRUPTED, FAILED = "intent", "outcome", "done", "interrupted", "failed"
SETTING_ACTIONS = frozenset(("alter", "alter-broker", "alter-namespace"))
"""The actions that change settings."""
RESTART = "restart"
"""The action whose outcome is written when the directories are open again."""
LOCAL_USER = "-"
READ_BYTES = 4 << 20
"""How many of the file's last bytes are read to show changes. The first line of these may be incomplete, and
is left out then."""
_RECEIPT_ADVICE = "free space or repair the directory, and run the command again: it continues where it was"
_AUDIT_ADVICE = "free space or repair the directory: no change is made that cannot be recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """The user who asks for a change: the name (``-`` without authentication; a Kafka client's id, which it
    chooses itself), the address, and the way (``http``, ``cli`` or ``kafka``)."""

    user: str = LOCAL_USER
    address: str = ""
    way: str = "http"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedChange:
    """One change, with its outcome: None while it runs, or if a crash interrupted it. ``receipt``: of an
    erasure, what a search found afterwards."""

    id: str
    at_ms: int
    actor: Actor
    action: str
    target: str
    before: Mapping[str, object]
    after: Mapping[str, object]
    outcome: str | None = None
    receipt: Mapping[str, object] | None = None

    def to_json(self) -> dict[str, object]:
        """One object."""
        return {
            "id": self.id,
            "at_ms": self.at_ms,
            "user": self.actor.user,
            "address": self.actor.address,
            "way": self.actor.way,
            "action": self.action,
            "target": self.target,
            "before": dict(self.before),
            "after": dict(self.after),
            "outcome": self.outcome,
            "receipt": None if self.receipt is None else dict(self.receipt),
        }


@dataclass(slots=True)
class ChangeInProgress:
    """A change that a block makes. ``outcome``: what is recorded if the block ends without an error; a block
    that has not done all that was asked says so."""

    outcome: str = DONE

    def fail(self, reason: object) -> None:
        """Record that the change has failed, or a part of it. The reason has no key and no value."""
        self.outcome = f"{FAILED}: {reason}"


class _Outcome(NamedTuple):
    """The line that ends a change."""

    change_id: str
    outcome: str
    receipt: Mapping[str, object] | None


class ChangeLog:
    """Appends to the audit log of a log directory, and reads it. Safe in several threads.

    ``setting_changes``: how many changes of settings this process has made, by outcome.
    """

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.path = directory / CHANGES_FILE
        self._clock = clock
        self._lock = threading.Lock()
        self.setting_changes = Counter({DONE: 0, FAILED: 0, INTERRUPTED: 0})

    @contextlib.contextmanager
    def recorded(
        self,
        actor: Actor,
        action: str,
        target: str,
        *,
        before: Mapping[str, object] | None = None,
        after: Mapping[str, object] | None = None,
    ) -> Iterator[ChangeInProgress]:
        """Record the change that the block makes: the intent durably before it, the outcome after it.

        Raises StorageError, before the block begins, if the intent cannot be written; what the block raises.
        """
        change_id = self.begin(actor, action, target, before=before, after=after)
        change, outcome = ChangeInProgress(), INTERRUPTED
        try:
            yield change
            outcome = change.outcome
        except Exception as error:
            outcome = f"{FAILED}: {error}"
            raise
        finally:
            self.end(change_id, outcome)
            if action in SETTING_ACTIONS:
                with self._lock:
                    self.setting_changes[outcome.partition(":")[0]] += 1

    def begin(
        self,
        actor: Actor,
        action: str,
        target: str,
        *,
        before: Mapping[str, object] | None = None,
        after: Mapping[str, object] | None = None,
    ) -> str:
        """Record an intent durably; its id. Raises StorageError."""
        change = AuditedChange(
            id=secrets.token_hex(8),
            at_ms=self._clock.now_ms(),
            actor=actor,
            action=action,
            target=target,
            before=before or {},
            after=after or {},
        )
        of_outcome = ("outcome", "receipt")
        written = {name: value for name, value in change.to_json().items() if name not in of_outcome}
        try:
            self._append({"stage": INTENT, **written})
        except OSError as error:
            reason = f"the change is not recorded, and so not made: {error.strerror or error}"
            raise StorageError(reason, path=self.path, advice=_AUDIT_ADVICE) from error
        return change.id

    def end(self, change_id: str, outcome: str) -> None:
        """Record an outcome. The change is made or has failed: that the outcome cannot be written does not
        alter that."""
        with contextlib.suppress(OSError):
            self._append(
                {"stage": OUTCOME, "id": change_id, "at_ms": self._clock.now_ms(), "outcome": outcome}
            )

    def end_with_receipt(self, change_id: str, receipt: Mapping[str, object]) -> None:
        """Record, durably, that a change is done, and its receipt. Raises StorageError: without this line
        there is no receipt."""
        line = {"stage": OUTCOME, "id": change_id, "at_ms": self._clock.now_ms(), "outcome": DONE}
        try:
            self._append({**line, "receipt": dict(receipt)})
        except OSError as error:
            reason = f"the receipt cannot be written: {error.strerror or error}"
            raise StorageError(reason, path=self.path, advice=_RECEIPT_ADVICE) from error

    def _append(self, line: Mapping[str, object]) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        with self._lock, contextlib.closing(files.Appender(self.path)) as appender:
            if not appender.size:
                files.sync_directory(self.path.parent)  # the file is new: its name has to last, too
            elif not self._ends_with_newline(appender.size):
                data = b"\n" + data  # a crash left an incomplete line
            appender.write(data)
            appender.sync()

    def _ends_with_newline(self, size: int) -> bool:
        with files.Reader(self.path) as reader:
            return reader.read(size - 1, 1) == b"\n"

    def newest(self, count: int = 100) -> list[AuditedChange]:
        """The newest changes, the last one first; lines that are not of a change are left out. Raises
        OSError."""
        try:
            size = files.stat(self.path).size
            with files.Reader(self.path) as reader:
                start = max(size - READ_BYTES, 0)
                lines = reader.read(start, size - start).split(b"\n")
        except FileNotFoundError:
            return []
        changes, outcomes = list[AuditedChange](), dict[str, _Outcome]()
        for line in reversed(lines):
            parsed = _parse(line)
            if isinstance(parsed, AuditedChange):
                changes.append(_ended(parsed, outcomes.get(parsed.id)))
                if len(changes) == count:
                    break
            elif parsed is not None:
                outcomes[parsed.change_id] = parsed
        return changes

    def all_of(self, action: str, target: str) -> list[AuditedChange]:
        """All changes of this kind and target, the oldest first: the whole file is read. Raises OSError."""
        wanted, changes = json.dumps(action).encode(), dict[str, AuditedChange]()
        for line in self._lines():
            if wanted not in line and b'"outcome"' not in line:
                continue
            parsed = _parse(line)
            if isinstance(parsed, AuditedChange):
                if (parsed.action, parsed.target) == (action, target):
                    changes[parsed.id] = parsed
            elif parsed is not None and parsed.change_id in changes:
                changes[parsed.change_id] = _ended(changes[parsed.change_id], parsed)
        return list(changes.values())

    def _lines(self) -> Iterator[bytes]:
        try:
            reader = files.Reader(self.path)
        except FileNotFoundError:
            return
        with reader:
            position, rest = 0, b""
            while block := reader.read(position, READ_BYTES):
                position += len(block)
                *whole, rest = (rest + block).split(b"\n")
                yield from whole
            yield rest


def _ended(change: AuditedChange, end: _Outcome | None) -> AuditedChange:
    """The change with its outcome, if there is one."""
    return change if end is None else replace(change, outcome=end.outcome, receipt=end.receipt)


def _parse(line: bytes) -> AuditedChange | _Outcome | None:
    """An intent, an outcome, or None for any other line."""
    try:
        entry = json.loads(line)
        if entry["stage"] == OUTCOME:
            receipt = entry.get("receipt")
            return _Outcome(
                str(entry["id"]), str(entry["outcome"]), None if receipt is None else dict(receipt)
            )
        return AuditedChange(
            id=str(entry["id"]),
            at_ms=int(entry["at_ms"]),
            actor=Actor(user=str(entry["user"]), address=str(entry["address"]), way=str(entry["way"])),
            action=str(entry["action"]),
            target=str(entry["target"]),
            before=dict(entry["before"]),
            after=dict(entry["after"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
