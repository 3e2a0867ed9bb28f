"""``siltstone serve``: a real process, its port, its end; what it refuses to start with."""

from __future__ import annotations

import http.client
import io
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from siltstone.cli.main import run
from siltstone.commands import broker_settings
from siltstone.commands.changes import Actor
from siltstone.commands.served import Served, ServeOptions, refuse_missing
from siltstone.runtime.manager import LogManager
from siltstone.web import running
from siltstone.web.identity import Role, Users
from siltstone.web.running import WebServer


@contextmanager
def _serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process and where it listens; it is ended by SIGTERM."""
    command = [sys.executable, "-m", "siltstone", "serve", *arguments, "--listen", "http://127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "http" in line, process.stderr.read() if process.stderr else ""
            yield process, line.split()[-1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def _get(url: str, path: str, **headers: str) -> tuple[int, str, str]:
    """(Status, content type, text)."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


def test_a_process_serves_and_leaves_the_directory_stopped_in_order(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    with _serving(str(logs), "--engine", "process", "--create") as (process, url):
        assert _get(url, "/healthz")[0] == 200
        status, kind, text = _get(url, "/metrics")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert "kafka_log_logmanager_offlinelogdirectorycount 0.0" in text
        _, kind, text = _get(url, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert text.endswith("# EOF\n")
        assert run(["topics", str(logs), "--create", "--topic", "x"]) == 1  # locked
    assert process.returncode == 143
    assert (logs / ".kafka_cleanshutdown").exists()


def test_a_look_changes_no_byte(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    with LogManager.open([logs]) as manager:
        manager.topics.create("users", 2)
        before = {path: path.stat().st_mtime_ns for path in logs.rglob("*")}
        with _serving(str(logs), "--look") as (process, url):
            assert _get(url, "/healthz")[0] == 200
            assert "siltstone_catalogue_age_seconds" in _get(url, "/metrics")[2]
        assert process.returncode == 143
        assert {path: path.stat().st_mtime_ns for path in logs.rglob("*")} == before


def test_a_restart_opens_the_directories_again(tmp_path: Path) -> None:
    from siltstone.cli.serve import _serve_until_restart

    path = tmp_path / "server.properties"
    path.write_text("", "utf-8")
    options = ServeOptions(paths=(tmp_path / "logs",), properties=path, engine="process")
    started: list[Served] = []

    class Restarting(WebServer):
        def start(self) -> None:
            super().start()
            broker_settings.restart(started[-1], Actor(user="ada"))

    def opened(options: ServeOptions) -> Served:
        started.append(Served(options))
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("siltstone.commands.served.Served", opened)
        patch.setattr("siltstone.web.running.WebServer", Restarting)
        assert _serve_until_restart(options, ["http://127.0.0.1:0"])
    with Served(options) as again:
        (change,) = again.opened_changes().newest()
        assert (change.action, change.outcome) == ("restart", "done")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--listen", "http://0.0.0.0:0"], "reaches other machines"),
        (["--listen", "nonsense"], "is not an address to listen on"),
        (["--listen", "https://127.0.0.1:0"], "needs a certificate"),
        (["--engine", "steam"], "--engine steam"),
        (["--config", "none.properties"], "--config none.properties"),
    ],
)
def test_what_is_unsafe_or_wrong_does_not_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert run(["serve", str(tmp_path / "logs"), "--create", *arguments]) == 2
    assert reason in capsys.readouterr().err


def test_a_port_in_use_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Served(ServeOptions(paths=(tmp_path / "one",))) as served:
        server = WebServer(served, ["http://127.0.0.1:0"])
        assert run(["serve", str(tmp_path / "two"), "--create", "--listen", server.urls[0]]) == 2
        assert "cannot listen on" in capsys.readouterr().err
        server.stop()


def test_a_password_is_hashed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("s3cret\n"))
    assert run(["serve", "--hash-password"]) == 0
    users = Users(f"ada:editor:{capsys.readouterr().out}", "users")
    assert users.with_password("ada", "s3cret") is Role.EDITOR
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert run(["serve", "--hash-password"]) == 2
    assert "no password" in capsys.readouterr().err


@pytest.mark.parametrize("listen", ["http://0.0.0.0:8082", "ftp://127.0.0.1:1", "nonsense"])
def test_a_refused_listener_makes_no_directory(tmp_path: Path, listen: str) -> None:
    assert run(["serve", str(tmp_path / "new"), "--create", "--listen", listen]) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flags", [[], ["--look"], ["--look", "--create"], ["--config", "named"]])
def test_a_mistyped_directory_is_refused_and_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    named = tmp_path / "server.properties"
    named.write_text(f"log.dirs={tmp_path / 'logs'}, {tmp_path / 'more'}\n", "utf-8")
    flags = [str(named) if flag == "named" else flag for flag in flags]
    assert run(["serve", str(tmp_path / "lgos"), "--listen", "http://127.0.0.1:0", *flags]) != 0
    assert "no such directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [named]


def test_a_directory_of_log_dirs_is_made_as_a_broker_makes_it(tmp_path: Path) -> None:
    named = tmp_path / "server.properties"
    named.write_text(f"log.dirs={tmp_path / 'logs'},{tmp_path / 'more'}\n", "utf-8")
    missing = (tmp_path / "more",)
    assert refuse_missing(ServeOptions(paths=missing, properties=named)) == [*missing]
    assert refuse_missing(ServeOptions(paths=missing, creates=True)) == [*missing]
    missing[0].mkdir()
    assert refuse_missing(ServeOptions(paths=missing)) == []


def test_a_connection_that_asks_for_nothing_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "KEEP_ALIVE_SECONDS", 0.05)
    with Served(ServeOptions(paths=(tmp_path / "logs",), engine="process")) as served:
        server = WebServer(served, ["http://127.0.0.1:0"])
        server.start()
        try:
            with socket.create_connection(
                urlsplit(server.urls[0]).netloc.split(":"), timeout=20
            ) as connection:
                connection.sendall(b"GET /healthz HTTP/1.1\r\n")  # and never the rest
                assert connection.recv(100) == b""
        finally:
            server.stop()
