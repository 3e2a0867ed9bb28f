"""What a run offers as the next ledger, checked before anything of it is moved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from siltstone import files
from siltstone.errors import CheckFailedError, LedgerError
from siltstone.log.ledger.held import check_files, sum_of
from siltstone.log.ledger.manifest import Generation, Ledger, what_is_wrong
from siltstone.log.names import segment_file
from siltstone.records.layout import Int64

KEYS = "keys"
"""The key index of a generation."""


def refuse_foreign(ledger: Ledger, hidden: Mapping[int, Int64], staged: Mapping[int, Path]) -> None:
    """Hidden offsets and directories are of the ledger's generations. Raises CheckFailedError."""
    strange = (set(hidden) | set(staged)) - {each.id for each in ledger.generations}
    if strange:
        raise CheckFailedError(f"ledger {ledger.id} has no generations {sorted(strange)}")


def refuse_unsound(
    folder: Path, ledger: Ledger, hidden: Mapping[int, Int64], staged: Mapping[int, Path]
) -> None:
    """Bounds and counts fit, staged files are what the manifest says. Raises CheckFailedError, OSError."""
    wrong = what_is_wrong(ledger)
    for each in () if wrong else ledger.generations:
        why = _wrong_hidden(each, hidden)
        wrong = wrong or (f"generation {each.id}: {why}" if why else "")
    if wrong:
        raise CheckFailedError(f"{folder}: ledger {ledger.id}: {wrong}; the cursor has not moved")
    for each in ledger.generations:
        if each.id in staged:
            _refuse_others(staged[each.id], each)


def _wrong_hidden(generation: Generation, hidden: Mapping[int, Int64]) -> str:
    offsets = hidden.get(generation.id, np.empty(0, np.int64))
    if len(offsets) != generation.hidden:
        return f"{len(offsets)} offsets are hidden, {generation.hidden} were counted"
    if len(offsets) and (
        (np.diff(offsets) <= 0).any()
        or offsets[0] < generation.base_offset
        or offsets[-1] >= generation.end_offset
    ):
        return "hidden offsets do not ascend within its bounds"
    return ""


def _refuse_others(directory: Path, generation: Generation) -> None:
    """Are the staged files what the manifest says? Raises CheckFailedError, OSError."""
    try:
        for entry in generation.segments:
            check_files(directory, entry)
            log = directory / segment_file(entry.base_offset, "log")
            with files.Reader(log) as reader:
                if sum_of(reader) != entry.crc:
                    raise LedgerError(str(log), "is not what was written")
        if generation.keys_size:
            keys = directory / KEYS
            with files.Reader(keys) as reader:
                if (reader.stat.size, sum_of(reader)) != (generation.keys_size, generation.keys_crc):
                    raise LedgerError(str(keys), "is not what was written")
    except (LedgerError, FileNotFoundError) as error:
        raise CheckFailedError(f"generation {generation.id}: {error}; the cursor has not moved") from error
