"""The confirmation of an action that may delete data: the user types a text."""

from __future__ import annotations

from siltstone.base.errors import UsageError


def is_confirmed(typed: str, expected: str) -> bool:
    """Was ``expected`` typed?"""
    return typed.strip() == expected


def refuse_unconfirmed(typed: str, expected: str, action: str = "this may delete data") -> None:
    """Raises UsageError unless ``expected`` was typed."""
    if not is_confirmed(typed, expected):
        raise UsageError(f"{action}, and was not confirmed", advice=f"type {expected}")
