"""Syncs that are left out, for tests of the harness: it has to notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from siltstone.base import files


def leave_out_syncs(patch: pytest.MonkeyPatch, skipped: Callable[[str], bool]) -> None:
    """Files and directories whose path is ``skipped`` are not synced any more."""

    def unless(sync: Callable[..., None]) -> Callable[..., None]:
        def maybe(what: object) -> None:
            if not skipped(str(getattr(what, "path", what))):
                sync(what)

        return maybe

    patch.setattr(files.Writer, "sync", unless(files.Writer.sync))
    patch.setattr(files, "sync_directory", unless(files.sync_directory))
