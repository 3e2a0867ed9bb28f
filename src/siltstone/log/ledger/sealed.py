"""Small JSON files with a version and a checksum of their own.

The file is exactly what ``seal`` makes of its fields, so every byte is covered: those of the fields by the
SHA-256, the others by being what they must be.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from siltstone.errors import LedgerError

VERSION = 1


def seal(fields: Mapping[str, Any]) -> bytes:
    """The file's bytes: ``version``, the fields in their order, ``sha256`` of both."""
    body = {"version": VERSION, **fields}
    return _text({**body, "sha256": _digest(body)})


def unseal(path: Path, data: bytes) -> dict[str, Any]:
    """The fields of a sealed file, without version and checksum.

    Raises LedgerError for bytes that ``seal`` did not make, or whose version is a later one.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise LedgerError(str(path), "damaged: no JSON") from None
    if not isinstance(found, dict) or not isinstance(found.get("version"), int):
        raise LedgerError(str(path), "damaged: no version")
    if found["version"] != VERSION:
        raise LedgerError(
            str(path), f"version {found['version']}; only {VERSION} is known, a newer Siltstone wrote it"
        )
    digest = found.pop("sha256", None)
    if digest != _digest(found) or data != _text({**found, "sha256": digest}):
        raise LedgerError(str(path), "damaged: the checksum does not match")
    del found["version"]
    return found


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(body)).hexdigest()


def _text(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, indent=1).encode() + b"\n"
