"""What HDFS has otherwise than a bucket: a file that is written is seen before it is whole."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from siltstone.base import files
from siltstone.base.files import hdfs as native
from siltstone.base.files.hdfs import HdfsStore
from siltstone.cli.main import run
from tests.stores.conftest import opened_bucket
from tests.support.objects.servers import Server, hdfs


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with hdfs() as server:
        yield server


@pytest.fixture
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from opened_bucket(server, monkeypatch)


class _Killed(BaseException):
    """Ends a put where the process would be killed."""


class _Dying:
    """A client whose process is killed before it renames: nothing is removed either."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def rename(self, *_: object) -> None:
        raise _Killed

    def delete(self, *_: object) -> None:
        raise _Killed


def test_a_put_that_is_killed_shows_nothing_and_stands_in_no_way(
    server: Server, root: str, client: Any, tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(b"x" * (5 << 20))
    files.put_new(f"{root}/one/whole", b"x")
    dying = HdfsStore(server.url)
    dying._client = _Dying(dying._client)
    with pytest.raises(_Killed):
        dying.put(f"{root.rpartition('/')[2]}/one/large", (tmp_path / "large").read_bytes())
    assert len(next(client.list())) == 2  # what was left is there, and no list shows it
    assert [entry.name for entry in files.entries(f"{root}/one")] == ["whole"]
    assert [name for name, _ in files.objects_below(root)] == ["one/whole"]
    files.put_file(tmp_path / "large", f"{root}/one/large")
    assert files.stat(f"{root}/one/large").size == 5 << 20


def test_a_name_node_that_does_not_answer_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And never a directory without files."""
    monkeypatch.setitem(native.RETRIES, "dfs.client.failover.max.attempts", "1")
    monkeypatch.setitem(native.RETRIES, "dfs.client.failover.sleep.max.millis", "10")
    files.forget_options()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        root = f"hdfs://127.0.0.1:{nobody.getsockname()[1]}/one"
    for call in (files.read_bytes, files.entries, files.stat, files.exists, files.Reader):
        with pytest.raises(OSError, match="Connection refused") as caught:
            call(root)
        assert caught.value.errno == errno.EIO
    assert run(["topics", "--list", root]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "Connection refused" in line
