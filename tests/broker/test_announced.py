"""An API is announced only when the twin compares it with Kafka's, in every version."""

from __future__ import annotations

from siltstone.broker.dispatch import HANDLERS
from siltstone.broker.wire.apis import API_VERSIONS, APIS
from tests.support.broker_twin.scenes import APIS as SCENES


def test_what_is_announced_is_what_the_twin_asks_for() -> None:
    announced = {key: set(range(APIS[key].min_version, APIS[key].max_version + 1)) for key in HANDLERS}
    announced[API_VERSIONS] = set(range(APIS[API_VERSIONS].max_version + 1))
    requested = {scene.key: set(scene.versions) for scene in SCENES}
    assert announced == requested
