"""A real Kafka and our broker, side by side; ours is another thread of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.support.broker_twin.ours import SETTINGS, bootstrap_of, our_broker
from tests.support.kafka.broker import HostedBroker

Which = Literal["kafka", "ours"]
BOTH: tuple[Which, Which] = ("kafka", "ours")


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """``bootstrap`` and ``log_dir`` of both."""

    bootstrap: dict[Which, str]
    log_dir: dict[Which, Path]


@contextmanager
def paired(root: Path) -> Iterator[Pair]:
    """Start both over new directories below ``root``."""
    directories: dict[Which, Path] = {"kafka": root / "kafka", "ours": root / "ours"}
    settings = {name.replace(".", "_"): value for name, value in SETTINGS.items()}
    with HostedBroker(directories["kafka"], **settings) as kafka, our_broker(directories["ours"]) as ours:
        yield Pair(bootstrap={"kafka": kafka.bootstrap, "ours": bootstrap_of(ours)}, log_dir=directories)
