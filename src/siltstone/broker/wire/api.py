"""An API of Kafka's protocol: its key, name and versions, and the classes of its messages, which are imported
at their first use."""

from __future__ import annotations

import importlib
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from siltstone.broker.wire.fields import Message


class Api:
    """An API: its key, Kafka's name, the versions of Kafka 4.3, and the first flexible one (KIP-482)."""

    def __init__(self, key: int, name: str, min_version: int, max_version: int, first_flexible: int) -> None:
        self.key, self.name = key, name
        self.min_version, self.max_version = min_version, max_version
        self.first_flexible = first_flexible

    def has(self, version: int) -> bool:
        """Is there such a version?"""
        return self.min_version <= version <= self.max_version

    @cached_property
    def request(self) -> type[Message]:
        """The class of its requests, the same for all versions."""
        return self._message("Request")

    @cached_property
    def response(self) -> type[Message]:
        """The class of its responses, the same for all versions."""
        return self._message("Response")

    def _message(self, kind: str) -> type[Message]:
        # ``DescribeLogDirs`` is in the module ``describe_log_dirs``.
        words = "".join("_" + letter.lower() if letter.isupper() else letter for letter in self.name)
        module = importlib.import_module(f"siltstone.broker.wire.messages.{words[1:]}")
        message: type[Message] = getattr(module, self.name + kind)
        return message
