"""``Closing``: the base class of objects with a ``close`` method that are used in a ``with`` block."""

from __future__ import annotations

from typing import Self


class Closing:
    """A context manager that calls ``close`` at the end of the block, also after an error. Subclasses
    override ``close``."""

    def close(self) -> None:
        """Release what the object holds; a second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
