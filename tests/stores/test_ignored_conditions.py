"""A store that ignores If-None-Match (S3Proxy 2.6 over its own stores) is read, and never written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import siltstone as st
from siltstone.cli.main import run
from siltstone.commands.backup import BackupRequest, backup
from tests.stores.conftest import opened_bucket
from tests.support.objects.servers import OLD_S3PROXY, Server, s3proxy
from tests.support.objects.store import upload

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with s3proxy(OLD_S3PROXY) as server:
        yield server


@pytest.fixture
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from opened_bucket(server, monkeypatch)


WRITES: dict[str, Callable[[Path, str], Any]] = {
    "backup": lambda broker, root: backup(BackupRequest(directories=[broker], target=Path(f"{root}/new"))),
    "clean": lambda broker, root: st.clean(
        broker, out=Path(f"{root}/new"), engine="process", force=True, all_topics=True
    ),
    **{
        f"export of {form}": lambda broker, root, form=form: st.export(broker, f"{root}/new", form, "users")
        for form in ("parquet", "delta", "iceberg")
    },
}


@pytest.mark.parametrize("write", WRITES)
def test_nothing_is_written_to_a_store_that_ignores_conditions(
    write: str, broker: Path, root: str, client: Any
) -> None:
    with pytest.raises(OSError, match="ignores If-None-Match"):
        WRITES[write](broker, root)
    assert [row for chunk in client.list() for row in chunk] == []


def test_a_store_that_ignores_conditions_is_read(
    broker: Path, root: str, client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    upload(client, broker, "one")
    outputs = []
    for place in (f"{root}/one", str(broker)):
        assert run(["get-offsets", "--dir", place]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
