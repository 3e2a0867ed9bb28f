"""Masks parts of records (``siltstone.http.mask``): the keys, values and members of JSON values that every
response of the HTTP server leaves out, whether it has records as text, as JSON or as bytes.

::

    siltstone.http.mask=users.*:key,payments:/card/number,payments:/iban,secrets:value

A rule is a regular expression for the whole name of a topic, a colon, and ``key``, ``value`` or a JSON
pointer (RFC 6901) into the value; ``*`` stands for every member or element at that place. Rules are separated
by commas, so an expression has none; the part follows the last colon. If a pointer's rule applies to a value
that is no JSON object or array, all of it is masked, since it has no parts. A masked value is
written anew: of a name that occurs twice in an object only the last value is left.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from siltstone.base.errors import UsageError

MASK = "•••"
SETTING = "siltstone.http.mask"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedParts:
    """The masked parts of the records of one topic. ``pointers``: the steps of each JSON pointer."""

    key: bool = False
    value: bool = False
    pointers: tuple[tuple[str, ...], ...] = ()

    @property
    def masks_value(self) -> bool:
        """Is the value masked, or a part of it?"""
        return self.value or bool(self.pointers)

    def masked_value(self, value: bytes | None) -> bytes | None:
        """The value without its masked parts; None if all of it is masked, or if it is null."""
        if value is None or self.value:
            return None
        if not self.pointers:
            return value
        try:
            document = json.loads(value)
            if not isinstance(document, dict | list):
                return None  # perhaps JSON within a text
            for steps in self.pointers:
                document = _masked(document, steps)
            return json.dumps(document, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            return None


NOTHING_MASKED = MaskedParts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """The rules: (expression for a topic's name, the part: ``key``, ``value`` or a JSON pointer) each."""

    rules: tuple[tuple[re.Pattern[str], str], ...] = ()

    @classmethod
    def parse(cls, setting: Iterable[str]) -> Masking:
        """The rules of the setting's value, a text or a list of its parts. Raises UsageError."""
        parts = setting.split(",") if isinstance(setting, str) else setting
        return cls(rules=tuple(_rule(part.strip()) for part in parts if part.strip()))

    def of_topic(self, topic: str) -> MaskedParts:
        """The masked parts of the records of ``topic``."""
        parts = [part for expression, part in self.rules if expression.fullmatch(topic)]
        return MaskedParts(
            key="key" in parts,
            value="value" in parts,
            pointers=tuple(_steps(part) for part in parts if part.startswith("/")),
        )


def _rule(text: str) -> tuple[re.Pattern[str], str]:
    expression, colon, part = text.rpartition(":")
    advice = "write REGEX:key, REGEX:value or REGEX:/json/pointer, separated by commas"
    if not colon or not expression or not (part in ("key", "value") or part.startswith("/")):
        raise UsageError(f"{text!r} is no rule of masking", path=SETTING, advice=advice)
    try:
        return re.compile(expression), part
    except re.error as error:
        reason = f"{expression!r} is no regular expression: {error}"
        raise UsageError(reason, path=SETTING, advice=advice) from error


def _steps(pointer: str) -> tuple[str, ...]:
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/"))


def _masked(document: Any, steps: tuple[str, ...]) -> Any:
    """The document with the mask in place of what the steps lead to; unchanged where they lead nowhere."""
    if not steps:
        return MASK
    step, rest = steps[0], steps[1:]
    if isinstance(document, dict):
        return {
            name: _masked(value, rest) if step in (name, "*") else value for name, value in document.items()
        }
    if isinstance(document, list):
        return [
            _masked(value, rest) if step in (str(number), "*") else value
            for number, value in enumerate(document)
        ]
    return document
