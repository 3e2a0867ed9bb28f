"""A session that was started for an engine that then could not be created."""

from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.base.errors import EngineError
from siltstone.spark import embedded
from tests.support.log.managed import opened


@pytest.mark.parametrize("was_started_here", [True, False])
def test_a_session_whose_engine_fails_is_stopped_if_it_was_started_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_started_here: bool
) -> None:
    session, stopped = object(), list[object]()
    monkeypatch.setattr(embedded, "running_session", lambda: None if was_started_here else session)
    monkeypatch.setattr(embedded, "is_alive", lambda _: True)
    monkeypatch.setattr(embedded, "start_session", lambda master, settings: session)
    monkeypatch.setattr(embedded, "stop_session", stopped.append)

    def fail(_: object) -> object:
        raise EngineError("no worker answers")

    with opened(tmp_path) as manager:
        sessions = embedded._Sessions(manager, None)
        with pytest.raises(EngineError):
            sessions.start(fail)  # type: ignore[type-var]
    assert stopped == ([session] if was_started_here else [])
