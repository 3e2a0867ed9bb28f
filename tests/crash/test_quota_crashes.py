"""A crash at every step of changes of quotas: what was acknowledged is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.runtime.quotas import Quotas
from tests.support.crash.disk import DROP, KEEP, Disk, Variant, recorded
from tests.support.log.managed import opened

pytestmark = pytest.mark.random
VARIANTS: tuple[Variant, ...] = (KEEP, DROP, 1, 2, 3)
STATES: tuple[Quotas, ...] = (
    {},
    {(("user", "ada"),): {"producer_byte_rate": 1.0}},
    {(("user", "ada"),): {"producer_byte_rate": 2.0}, (("ip", None),): {"connection_creation_rate": 3.0}},
    {(("ip", None),): {"connection_creation_rate": 3.0}},
    {},
)


def test_quotas_are_those_of_the_last_change_or_of_the_one_before_it(tmp_path: Path) -> None:
    directories = [tmp_path / name for name in ("a", "b")]
    opened(*directories).close()
    acknowledged = [0]
    with recorded(tmp_path) as recording, opened(*directories) as logs:
        for quotas in STATES[1:]:
            logs.topics.replace_quotas(quotas)
            acknowledged.append(len(recording.steps))
    alike, tried, reached = set[int](), 0, set[int]()
    for count in range(len(recording.steps) + 1):
        last = max(number for number, steps in enumerate(acknowledged) if steps <= count)
        for variant in VARIANTS:
            if Disk(recording, count).build(variant, alike):
                tried += 1
                with opened(*directories) as logs:
                    quotas = logs.topics.quotas
                assert quotas in STATES[last : last + 2], (count, variant)
                reached.add(STATES.index(quotas))
    assert tried > 10 and reached >= {0, 1, 2, 3}
