"""Steps of a protocol that are left out, for tests of the harness: it has to notice."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.log import replacement


def leave_out_syncs(patch: pytest.MonkeyPatch, skipped: Callable[[str], bool]) -> None:
    """Files and directories whose path is ``skipped`` are not synced any more."""

    def unless(sync: Callable[..., None]) -> Callable[..., None]:
        def maybe(what: object) -> None:
            if not skipped(str(getattr(what, "path", what))):
                sync(what)

        return maybe

    patch.setattr(files.Writer, "sync", unless(files.Writer.sync))
    patch.setattr(files, "sync_directory", unless(files.sync_directory))


def _without_swap_step(monkeypatch: pytest.MonkeyPatch) -> None:
    change = replacement._change_suffix

    def skipping(directory: Path, base: int, before: str, after: str) -> None:
        if after:
            for kind in ("index", "timeindex", "log"):
                path = directory / f"{base:020d}.{kind}{before}"
                os.rename(path, directory / f"{base:020d}.{kind}{after}")
        else:
            change(directory, base, before, after)

    monkeypatch.setattr(replacement, "_change_suffix", skipping)


BROKEN_SWAPS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "no fsync of new files": lambda patch: patch.setattr(files, "sync_files", lambda paths: None),
    "no directory sync": lambda patch: patch.setattr(files, "sync_directory", lambda path: None),
    "the rename to .swap unseen": _without_swap_step,
}
