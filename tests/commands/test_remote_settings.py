"""Settings of a running broker that are shown a moment after its answer to a change."""

from __future__ import annotations

import pytest

from siltstone.commands import remote
from siltstone.commands.remote import RemoteBroker

OLD, NEW = {"flush.ms": "5"}, {"flush.ms": "6"}


class LateBroker(RemoteBroker):
    """A broker whose settings are ``shown`` in turn, the last of them again and again."""

    def __init__(self, *shown: dict[str, str]) -> None:
        self.shown, self.altered = list(shown), 0

    def own_settings(self, names: object) -> dict[str, dict[str, str]]:
        return {"t": self.shown.pop(0) if len(self.shown) > 1 else self.shown[0]}

    def _set_at_run_time(self, number: str) -> dict[str, str]:
        return self.own_settings(None)["t"]

    def _alter(self, *_: object, **__: object) -> None:
        self.altered += 1


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_CHECK_SECONDS", 0)


def test_the_settings_after_a_change_are_waited_for() -> None:
    change = LateBroker(OLD, OLD, OLD, NEW).alter_topic_settings("t", ["flush.ms=6"], [])
    assert (change.before, change.after) == (OLD, NEW)
    change = LateBroker(OLD, OLD, {}).alter_topic_settings("t", [], ["flush.ms"])
    assert (change.before, change.after) == (OLD, {})
    change = LateBroker(OLD, OLD, NEW).alter_broker_settings("1", NEW, [])
    assert (change.before, change.after) == (OLD, NEW)


def test_a_broker_that_shows_no_change_and_one_that_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "CHANGED_SECONDS", 0)
    assert LateBroker(OLD).alter_topic_settings("t", ["flush.ms=6"], []).after == OLD
    same = LateBroker(OLD)
    assert same.alter_topic_settings("t", ["flush.ms=5"], []).after == OLD
    assert same.altered == 1
    dry = LateBroker(OLD).alter_topic_settings("t", ["flush.ms=6"], [], dry_run=True)
    assert dry.after == NEW
