"""Ways to break the product on purpose, so that the room can be seen to find it: one function each.

A spoiler runs within a worker, before its cases. It changes what a name in the product stands for, no file.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from siltstone.base import files
from siltstone.base.errors import CorruptFileError
from siltstone.compaction import work
from siltstone.compaction.inplace import planning
from siltstone.log import directory, replacement
from siltstone.log.names import STAGING

YEARS_MS = 10 * 365 * 86_400_000
LONG_MAX = (1 << 63) - 1


def the_high_watermark_is_no_bound() -> None:
    """As if all of the log were committed."""
    real = planning.log_facts

    @functools.wraps(real)
    def spoiled(*arguments: Any) -> Any:
        return real(*arguments[:-1], LONG_MAX)

    planning.log_facts = spoiled


def horizons_pass_early() -> None:
    """As if it were ten years later for tombstones."""
    _change_rules(lambda rules: replace(rules, now_ms=min(rules.now_ms + YEARS_MS, LONG_MAX)))


def tombstones_are_stamped_with_the_past() -> None:
    """As if they need not stay at all."""
    _change_rules(lambda rules: replace(rules, delete_retention_ms=min(-1, -abs(rules.delete_retention_ms))))


def keyless_records_always_go() -> None:
    """As if ``--drop-keyless`` had been said."""
    _change_rules(lambda rules: replace(rules, drop_keyless=True))


def producers_are_forgotten() -> None:
    """As if all of them had been silent too long."""
    _change_rules(lambda rules: replace(rules, producers=rules.producers[:0]))


def _change_rules(change: Callable[[Any], Any]) -> None:
    _change_work(lambda plan: replace(plan, rules=change(plan.rules)))


def _change_work(change: Callable[[Any], Any]) -> None:
    real = planning._log_work
    planning._log_work = lambda *arguments: change(real(*arguments))


def contradictions_of_transactions_pass() -> None:
    """What a ``.txnindex`` says holds, whatever the markers say."""
    transactions = importlib.import_module(work.TransactionScan.__module__)
    real_follow, real_add = transactions._follow, transactions._apply_summary

    def follow(*columns: Any) -> Any:
        outcome = real_follow(*columns)
        return (-1, 0) if isinstance(outcome, tuple) else -1

    def add_split(*arguments: Any) -> None:
        with contextlib.suppress(CorruptFileError):
            real_add(*arguments)

    spoiled = {"_follow": follow, "_apply_summary": add_split}
    nothing = ("_refuse_impossible_entries", "refuse_unexpected_markers", "refuse_missing_markers")
    for module in (transactions, work, transactions.TransactionScan):
        for name in (*spoiled, *nothing):
            if hasattr(module, name):
                setattr(module, name, spoiled.get(name, _passes))


def _passes(*arguments: object, **more: object) -> None:
    """A check that finds nothing."""


def links_are_followed_when_trees_are_removed() -> None:
    """The tree that a link leads to goes, and nobody looks at folders of ours before."""

    def spoiled(path: str | os.PathLike[str]) -> None:
        real = os.path.realpath(path)
        if os.path.isdir(real):
            shutil.rmtree(real)

    def is_there(partition: Path, name: str = STAGING) -> bool:
        return os.path.lexists(partition / name)

    files.remove_tree = spoiled
    directory._FOLDERS = ()
    for module in list(_modules().values()):
        if hasattr(module, "has_siltstone_folder"):
            module.has_siltstone_folder = is_there
        if hasattr(module, "refuse_foreign_folder"):
            module.refuse_foreign_folder = _passes


def bad_metadata_is_a_bug() -> None:
    """What is no error of ours comes out of a file that makes no sense."""
    real = planning.read_topic_id

    def spoiled(partition: Path) -> str | None:
        try:
            return real(partition)
        except CorruptFileError as error:
            raise ValueError(str(error)) from error

    planning.read_topic_id = spoiled


def an_interrupted_swap_is_thrown_away() -> None:
    """``.swap`` files go, as if their originals were still there."""
    real = replacement.finish_replacement

    @functools.wraps(real)
    def spoiled(partition: Path, *rest: Any, **more: Any) -> Any:
        for path in sorted(Path(partition).glob("*.swap")):
            path.unlink()
        return real(partition, *rest, **more)

    for name, module in list(_modules().items()):
        if name.startswith("siltstone") and getattr(module, "finish_replacement", None) is real:
            module.finish_replacement = spoiled


def _modules() -> dict[str, Any]:
    import sys

    import siltstone.commands.clean
    import siltstone.runtime.manager  # noqa: F401 - both have names of their own for it

    return sys.modules


def the_process_dies() -> None:
    """Before its second operation on a file."""
    remaining = [2]

    def count(operation: object) -> None:
        remaining[0] -= 1
        if not remaining[0]:
            os._exit(9)

    files.opening._observer = count  # type: ignore[attr-defined]


def memory_is_taken() -> None:
    """Eight gigabytes of it."""
    _change_work(lambda plan: bytearray(8 << 30) and plan)


def a_cleaning_waits_for_ever() -> None:
    """As for a queue that nobody writes to."""
    _change_work(lambda plan: threading.Event().wait())
