"""Prepares types for msgspec, so that two threads can decode them at the same time.

msgspec (0.22) looks at the fields of a dataclass or ``Struct`` when the type is first decoded. It caches its
description of the type before it has filled in the types of the fields, which may be dataclasses too. A
second thread that decodes the same type at that moment uses the unfinished description, and the process dies
of SIGSEGV. A module is imported by one thread, so a type that threads decode is prepared where it is
defined::

    @decoded_in_threads
    @dataclass(frozen=True)
    class Report: ...
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

_Type = TypeVar("_Type", bound=type)

PREPARED: set[type] = set()
"""All types that were prepared: a test compares them with the types that the package decodes."""


def decoded_in_threads(decoded: _Type) -> _Type:
    """A class decorator: lets msgspec fill in its description of the type now. Returns the type. The types of
    its fields must be defined before it."""
    msgspec.msgpack.Decoder(decoded)
    PREPARED.add(decoded)
    return decoded
