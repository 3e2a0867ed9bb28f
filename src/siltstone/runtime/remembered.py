"""What a cleaning of stopped directories leaves for the next one to know: who is uncleanable, what was done.

The embedded cleaner keeps the same two files through its ``LogManager``; ``clean --watch`` shows them. Here
they are gone on with in directories that have files of Siltstone's; to a broker's nothing is added. A log
that is listed as uncleanable is tried all the same: whoever calls ``siltstone clean`` asks for it. It leaves
the list when it was cleaned, or when nothing is dirty any more. Nothing is decided by these files here, so a
disk that does not take them is warned of.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from siltstone.base import files
from siltstone.base.clock import time_text
from siltstone.base.errors import CorruptFileError
from siltstone.compaction.inplace.facts import LogState
from siltstone.compaction.report import (
    CLEANED,
    CLEANINGS_FILE,
    FAILED,
    NOTHING_TO_DO,
    UNCLEANABLE,
    Cleaning,
    History,
    LogResult,
)
from siltstone.log.names import TopicPartition
from siltstone.runtime.served_directory import (
    UNCLEANABLE_FILE,
    Uncleanable,
    clear_uncleanable,
    mark_uncleanable,
    read_uncleanable,
)
from siltstone.runtime.topics import TOPICS_FILE

_logger = logging.getLogger("siltstone.cleaner")
_SOLVED = (CLEANED, NOTHING_TO_DO)


def note_listed(states: Sequence[LogState], results: Sequence[LogResult]) -> None:
    """Say of each result (one a state, in order) that its log is listed as uncleanable, and why."""
    listed = {path: _listed(path) for path in {state.directory.path for state in states}}
    for state, result in zip(states, results, strict=True):
        found = listed[state.directory.path].get(state.where)
        if found is not None:
            since = time_text(found.since_ms)
            result.notes.append(f"listed as uncleanable since {since}: {found.reason}")


def remember(states: Sequence[LogState], results: Sequence[LogResult], began_ms: int) -> None:
    """Keep what came of a cleaning in place that began at ``began_ms``; one result a state, in order. A log
    that was stopped half-way is kept with what was done of it."""
    history = History()
    ours = {path for path in {state.directory.path for state in states} if _has_files_of_ours(path)}
    for state, result in zip(states, results, strict=True):
        if state.directory.path not in ours:
            continue
        try:
            _list(state, result, began_ms)
        except OSError as error:
            _logger.warning("%s: the list of uncleanable logs was not written: %s", state.where, error)
        if result.status in (CLEANED, UNCLEANABLE, FAILED) or result.is_partly_cleaned:
            history.keep(state.directory.path, [Cleaning(began_ms=began_ms, result=result)])


def _has_files_of_ours(directory: Path) -> bool:
    return any(files.exists(directory / name) for name in (TOPICS_FILE, CLEANINGS_FILE, UNCLEANABLE_FILE))


def _list(state: LogState, result: LogResult, now_ms: int) -> None:
    if result.status == UNCLEANABLE:
        mark_uncleanable(state.directory.path, state.where, result.reason, now_ms)
    elif result.status in _SOLVED and state.where in _listed(state.directory.path):
        clear_uncleanable(state.directory.path, state.where)
        result.notes.append("taken off the list of uncleanable logs")


def _listed(directory: Path) -> Mapping[TopicPartition, Uncleanable]:
    try:
        return read_uncleanable(directory)
    except (CorruptFileError, OSError) as error:
        _logger.warning("the list of uncleanable logs cannot be read: %s", error)
        return {}
