"""The directories of some brokers below one root, cleaned as a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from siltstone.commands.clean import CleanRequest
from siltstone.commands.fleet import BrokerResult, Fleet, FleetOptions
from tests.support.operator.staged import Staged, in_process, stage

NAMES = ("broker1", "broker2", "broker3")


class Root:
    """The directories of some brokers, each with the same golden log, and a run over all of them."""

    def __init__(self, golden: Path, folder: Path, names: Sequence[str] = NAMES, log: str = "basic") -> None:
        self.folder = folder
        self.staged: dict[str, Staged] = {name: stage(golden, log, folder / name) for name in names}

    @property
    def pattern(self) -> str:
        return f"{self.folder}/*/"

    def request(self, **changes: Any) -> CleanRequest:
        return next(iter(self.staged.values())).asking(directories=(), **changes)

    def fleet(self, at_once: int | None = 2, engine: Any = in_process, **changes: Any) -> Fleet:
        options = FleetOptions(fleet=[self.pattern], brokers_at_once=at_once)
        return Fleet(self.request(**changes), options, engine=engine)

    def clean(self, **changes: Any) -> dict[str, BrokerResult]:
        return by_name(self.fleet(**changes).clean())


def by_name(results: Sequence[BrokerResult]) -> dict[str, BrokerResult]:
    return {result.broker: result for result in results}


def statuses(results: dict[str, BrokerResult]) -> dict[str, str]:
    return {name: result.status for name, result in sorted(results.items())}
