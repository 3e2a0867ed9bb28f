"""Spark reads every store: executors get what opens it with their tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import siltstone as st
from siltstone.base import files
from siltstone.spark.session import start_session
from tests.support.objects.servers import Server
from tests.support.objects.store import upload

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    session = start_session("local[2]")
    yield session
    session.stop()


@pytest.mark.timeout(300)
def test_a_dataframe_has_the_records_of_a_store(
    session: Any, server: Server, broker: Path, root: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With options of the call only: the environment, which Spark's workers have, says nothing."""
    upload(client, broker, "one")
    for variable in server.environment:
        monkeypatch.delenv(variable)
    files.forget_options()
    with st.open(broker) as logs:
        whole = [(record.offset, record.value) for record in logs["users", 0]]
        latest = st.to_arrow(logs["users", 0], view="latest").num_rows
    options = dict(server.config)
    rows = st.read(session, f"{root}/one", "users", storage_options=options).select("offset", "value")
    records = [(row.offset, None if row.value is None else bytes(row.value)) for row in rows.collect()]
    assert sorted(records, key=lambda row: row[0]) == whole
    assert st.read(session, f"{root}/one", "users", view="latest", storage_options=options).count() == latest
