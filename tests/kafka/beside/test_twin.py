"""Every API in every version, asked of a real Kafka and of us: the answers are the same, field by field.

What differs on purpose stands in ``differences.toml`` beside this file, with its reason.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.support.broker_twin.comparing import Difference, deliberate_differences, differences
from tests.support.broker_twin.pair import BOTH, Pair
from tests.support.broker_twin.scenes import APIS, GARBAGE, SESSIONS, THROTTLING
from tests.support.broker_twin.scenes.scene import Scene
from tests.support.broker_twin.side import Side

pytestmark = pytest.mark.kafka

SCENES = (*APIS, SESSIONS, GARBAGE, THROTTLING)
DELIBERATE = deliberate_differences(Path(__file__).with_name("differences.toml"))


@cache
def differences_of(pair: Pair, scene: Scene) -> list[Difference]:
    """What differs in a scene, which runs once on each side."""
    kafka, ours = (Side(pair.bootstrap[which]) for which in BOTH)
    for side in (kafka, ours):
        scene.run(side, scene.versions)
        side.close()
        versions = {version for key, version in side.asked if key == scene.key}
        assert scene is GARBAGE or versions >= set(scene.versions), (
            f"{side.bootstrap} did not answer all versions"
        )
    return differences(kafka, ours)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_both_brokers_answer_alike(scene: Scene, pair: Pair) -> None:
    entries = [entry for entry in DELIBERATE if entry.is_of(scene.name)]
    others = [
        difference
        for difference in differences_of(pair, scene)
        if not any(entry.covers(difference) for entry in entries)
    ]
    assert not others, f"{len(others)} differences:\n" + "\n".join(map(str, others[:40]))


def test_every_deliberate_difference_shows(pair: Pair) -> None:
    """An entry that explains nothing any more has to go."""
    idle = [
        entry
        for entry in DELIBERATE
        if not any(
            entry.covers(difference)
            for scene in SCENES
            if entry.is_of(scene.name)
            for difference in differences_of(pair, scene)
        )
    ]
    assert not idle, f"differences.toml: these do not differ: {idle}"
