"""What HDFS has otherwise than a bucket: a file that is written is seen before it is whole."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from siltstone.base import files
from siltstone.base.files import hdfs as native
from siltstone.base.files.hdfs import HdfsStore
from siltstone.cli.main import run
from tests.stores.conftest import opened_bucket
from tests.support.objects.cutting import ANSWER, REQUEST, CuttingTcpProxy
from tests.support.objects.servers import Server, hdfs
from tests.support.thoroughness import THOROUGH


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
    """It is never taken for a directory without files."""
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


@dataclass(frozen=True, kw_only=True)
class Proxies:
    """Proxies before the NameNode and the DataNode; ``root``: the bucket's URL through them."""

    name_node: CuttingTcpProxy
    data_node: CuttingTcpProxy
    root: str


@pytest.fixture
def proxies(server: Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxies]:
    monkeypatch.setitem(native.RETRIES, "dfs.client.use.datanode.hostname", "true")
    monkeypatch.setitem(native.RETRIES, "dfs.client.failover.max.attempts", "3")
    monkeypatch.setitem(native.RETRIES, "dfs.client.failover.sleep.max.millis", "100")
    port = int(server.url.rpartition(":")[2])
    name_node, data_node = ("127.0.0.1", port), ("127.0.0.1", server.data_port)
    with (
        CuttingTcpProxy(("127.0.0.1", 0), name_node) as before_name_node,
        CuttingTcpProxy(("127.0.0.2", server.data_port), data_node) as before_data_node,
    ):
        yield Proxies(
            name_node=before_name_node,
            data_node=before_data_node,
            root=f"hdfs://127.0.0.1:{before_name_node.port}/{bucket}",
        )


LARGE = bytes(range(256)) * (3 << 12)
_SLOW = [  # the client waits 15 s for blocks that no DataNode has
    ("data_node", REQUEST, 1),
    ("data_node", REQUEST, 100),
    ("data_node", ANSWER, 1),
    ("name_node", ANSWER, 200),
]
_CUTS = [
    ("data_node", REQUEST, 300),
    ("data_node", REQUEST, 1 << 20),
    ("data_node", ANSWER, 100),
    *(("name_node", way, after) for way in (REQUEST, ANSWER) for after in (1, 600, 900, 1_200)),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("node", "direction", "after"), [*_CUTS, *_SLOW] if THOROUGH else _CUTS[1::2])
def test_a_put_whose_connection_is_cut_is_whole_or_not_at_all(
    node: str, direction: str, after: int, proxies: Proxies, root: str
) -> None:
    """The next put succeeds."""
    proxy = getattr(proxies, node)
    data, name = (LARGE if node == "data_node" else b"small"), "cut/one"
    proxy.cut(direction, after)
    try:
        files.put_new(f"{proxies.root}/{name}", data)
        is_put = True
    except OSError as error:
        assert error.errno == errno.EIO and "\n" not in str(error), error
        is_put = False
    assert proxy.met == 1
    proxy.heal()
    if is_put or files.exists(f"{root}/{name}"):
        assert files.read_bytes(f"{root}/{name}") == data
    else:
        with pytest.raises(FileNotFoundError):
            files.entries(f"{root}/cut")  # nor a part of it
    files.put_new(f"{proxies.root}/{name}", data)
    assert files.read_bytes(f"{root}/{name}") == data
    assert [entry.name for entry in files.entries(f"{root}/cut")] == ["one"]


def test_a_read_whose_connection_is_cut_gives_all_bytes_or_an_error(proxies: Proxies, root: str) -> None:
    files.put_new(f"{root}/one/large", LARGE)
    for direction, after in ((ANSWER, 1), (ANSWER, 1_000), (ANSWER, 1 << 20), (REQUEST, 1)):
        for proxy in (proxies.data_node, proxies.name_node):
            proxy.cut(direction, after if proxy is proxies.data_node else min(after, 300))
            read = None
            with contextlib.suppress(OSError):
                read = files.read_bytes(f"{proxies.root}/one/large")
            assert proxy.met == 1
            assert read in (None, LARGE)
            proxy.heal()
            assert files.read_bytes(f"{proxies.root}/one/large") == LARGE
    proxies.data_node.is_dead = True
    files.forget_options()
    with pytest.raises(OSError) as caught:
        files.read_bytes(f"{proxies.root}/one/large")
    assert caught.value.errno == errno.EIO and "large" in str(caught.value)
