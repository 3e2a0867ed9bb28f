"""``Closing``: makes every class with a ``close`` method a context manager, which calls it at the end."""

from __future__ import annotations

from typing import Self


class Closing:
    """Base of classes with a ``close``. ``with`` gives the object itself, and closes it in any case."""

    def close(self) -> None:
        """Release what the object holds; a second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
