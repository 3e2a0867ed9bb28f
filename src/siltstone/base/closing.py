"""``Closing``: makes every class with a ``close`` method a context manager, which calls it at the end."""

from __future__ import annotations

from typing import Self


class Closing:
    """Base of classes with a ``close`` method, which the end of a ``with`` block calls, also after an
    error."""

    def close(self) -> None:
        """Release what the object holds; a second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
