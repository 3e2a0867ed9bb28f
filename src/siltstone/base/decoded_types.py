"""Prepares types for msgspec before two threads decode them at one time.

msgspec (0.22) looks at the fields of a dataclass or ``Struct`` when the type is first decoded. It keeps what
it found before it has looked at the types of those fields, which may be dataclasses too. A second thread that
decodes the same type at that moment reads what is not there yet, and the process dies of SIGSEGV. A module is
imported by one thread, so each type that is decoded is prepared where it is defined::

    @decoded_in_threads
    @dataclass(frozen=True)
    class Report: ...
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

_Type = TypeVar("_Type", bound=type)

PREPARED: set[type] = set()
"""All types that were prepared."""


def decoded_in_threads(decoded: _Type) -> _Type:
    """The same type, whose fields msgspec has looked at; their types must be defined above it."""
    msgspec.msgpack.Decoder(decoded)
    PREPARED.add(decoded)
    return decoded
