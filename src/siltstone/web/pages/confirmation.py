"""What may delete data is confirmed by typing."""

from __future__ import annotations

from siltstone.base.errors import UsageError


def refuse_unconfirmed(typed: str, expected: str, deed: str = "this may delete data") -> None:
    """Raises UsageError unless ``expected`` was typed."""
    if typed.strip() != expected:
        raise UsageError(f"{deed}, and was not confirmed", advice=f"type {expected}")
