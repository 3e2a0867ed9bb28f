"""``siltstone serve``: a real process, its port, its end; what it refuses to start with."""

from __future__ import annotations

import contextlib
import http.client
import io
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from siltstone.base.errors import SiltstoneError, UsageError
from siltstone.broker.request_context import ListenerAddress
from siltstone.broker.wire.messages.api_versions import ApiVersionsRequest
from siltstone.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from siltstone.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from siltstone.cli.main import run
from siltstone.commands import broker_settings
from siltstone.commands.changes import Actor
from siltstone.commands.served import Served, ServeOptions, refuse_missing
from siltstone.runtime.manager import LogManager
from siltstone.web import running
from siltstone.web.identity import Role, Users
from siltstone.web.running import WebServer
from tests.support.wire_client import WireClient

ANY_KAFKA_PORT = "PLAINTEXT://127.0.0.1:0"
WAITING_FETCH = FetchRequest(
    max_wait_ms=600_000,
    min_bytes=1,
    topics=(FetchTopic(topic="made", partitions=(FetchPartition(partition_max_bytes=1),)),),
)
NO_BROKER = ("--kafka-listen", "none")


Visit = Callable[[str], None]
Serve = Callable[..., None]


def _command(arguments: Sequence[str]) -> list[str]:
    command = ["serve", *arguments, "--listen", "http://127.0.0.1:0"]
    return command if "--look" in arguments else [*command, "--kafka-listen", ANY_KAFKA_PORT]


@contextmanager
def _serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process and where it listens; it is ended by SIGTERM."""
    command = [sys.executable, "-m", "siltstone", *_command(arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "http" in line, process.stderr.read() if process.stderr else ""
            yield process, line.split()[-1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


# A process takes three seconds; test_a_kafkas_file_… starts one in every run.
@pytest.fixture(params=["here", pytest.param("process", marks=pytest.mark.long)])
def serve(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Serve:
    """Serve with arguments until ``visit``, which is called with the URL, has returned; then the process is
    ended, or here Ctrl-C comes."""

    def in_a_process(visit: Visit, *arguments: str) -> None:
        with _serving(*arguments) as (process, url):
            visit(url)
        assert process.returncode == 143

    def here(visit: Visit, *arguments: str) -> None:
        def visited() -> bool:
            visit(capsys.readouterr().out.splitlines()[0].split()[-1])
            raise KeyboardInterrupt

        def opened(options: ServeOptions) -> Served:
            served = Served(options)
            served.restart_asked = SimpleNamespace(wait=visited)  # type: ignore[assignment]
            return served

        monkeypatch.setattr("siltstone.commands.served.Served", opened)
        assert run(_command(arguments)) == 130

    # What a server sets for all of its process.
    monkeypatch.setattr("siltstone.broker.limits.raise_descriptor_limit", lambda: None)
    for name in ("collect_less_often", "leave_out_of_collections", "collect_all_again"):
        monkeypatch.setattr(f"siltstone.cli.serve.{name}", lambda: None)
    return here if request.param == "here" else in_a_process


def _get(url: str, path: str, **headers: str) -> tuple[int, str, str]:
    """(Status, content type, text)."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


def test_what_is_served_is_locked_and_left_stopped_in_order(tmp_path: Path, serve: Serve) -> None:
    logs = tmp_path / "logs"

    def visit(url: str) -> None:
        assert _get(url, "/healthz")[0] == 200
        status, kind, text = _get(url, "/metrics")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert "kafka_log_logmanager_offlinelogdirectorycount 0.0" in text
        _, kind, text = _get(url, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert text.endswith("# EOF\n")
        assert run(["topics", str(logs), "--create", "--topic", "x"]) == 1  # locked

    serve(visit, str(logs), "--engine", "process", "--create")
    assert (logs / ".kafka_cleanshutdown").exists()


def test_a_look_changes_no_byte(tmp_path: Path, serve: Serve) -> None:
    def visit(url: str) -> None:
        assert _get(url, "/healthz")[0] == 200
        assert "siltstone_catalogue_age_seconds" in _get(url, "/metrics")[2]

    logs = tmp_path / "logs"
    with LogManager.open([logs]) as manager:
        manager.topics.create("users", 2)
        before = {path: path.stat().st_mtime_ns for path in logs.rglob("*")}
        serve(visit, str(logs), "--look")
        assert {path: path.stat().st_mtime_ns for path in logs.rglob("*")} == before


def _serve_and_restart(options: ServeOptions, restart: Callable[[Served], None]) -> bool:
    """Serve until ``restart`` has asked for a restart, or raises."""
    from siltstone.cli.serve import ServeFlags, _serve_until_restart

    started: list[Served] = []

    class Restarting(WebServer):
        def start(self) -> None:
            super().start()
            restart(started[-1])

    def opened(options: ServeOptions) -> Served:
        started.append(Served(options))
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("siltstone.commands.served.Served", opened)
        patch.setattr("siltstone.web.running.WebServer", Restarting)
        flags = ServeFlags(listen=["http://127.0.0.1:0"], kafka_listen=[ANY_KAFKA_PORT])
        return _serve_until_restart(options, flags)


def test_a_restart_opens_the_directories_again(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("", "utf-8")
    options = ServeOptions(paths=(tmp_path / "logs",), properties=path, engine="process")
    assert _serve_and_restart(options, lambda served: broker_settings.restart(served, Actor(user="ada")))
    with Served(options) as again:
        (change,) = again.opened_changes().newest()
        assert (change.action, change.outcome) == ("restart", "done")


@pytest.mark.parametrize(
    "setting",
    ["siltstone.http.auth=basic", "siltstone.http.auth=proxy", "authorizer.class.name=some.Authorizer"],
)
def test_a_restart_that_would_end_the_server_is_refused(tmp_path: Path, setting: str) -> None:
    path = tmp_path / "server.properties"
    path.write_text("", "utf-8")
    options = ServeOptions(paths=(tmp_path / "logs",), properties=path, engine="process")

    def restart(served: Served) -> None:
        path.write_text(f"{setting}\n", "utf-8")
        with pytest.raises(UsageError):
            broker_settings.restart(served, Actor(user="ada"))
        assert served.opened_changes().newest() == []
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _serve_and_restart(options, restart)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--listen", "http://0.0.0.0:0"], "reaches other machines"),
        (["--listen", "nonsense"], "is not an address to listen on"),
        (["--listen", "https://127.0.0.1:0"], "needs a certificate"),
        (["--listen", "http://user:secret@127.0.0.1:0"], "is not an address to listen on"),
        (["--listen", "http://127.0.0.1:0?a=b"], "is not an address to listen on"),
        (["--engine", "steam"], "--engine steam"),
        (["--config", "none.properties"], "--config none.properties"),
    ],
)
def test_what_is_unsafe_or_wrong_does_not_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert run(["serve", str(tmp_path / "logs"), "--create", *NO_BROKER, *arguments]) == 2
    assert reason in capsys.readouterr().err


def test_a_port_in_use_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Served(ServeOptions(paths=(tmp_path / "one",))) as served:
        server = WebServer(served, ["http://127.0.0.1:0"])
        assert run(["serve", str(tmp_path / "two"), "--create", *NO_BROKER, "--listen", server.urls[0]]) == 2
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


def _write_certificate(folder: Path, password: bytes | None = None) -> tuple[Path, Path]:
    """The files of a certificate of this machine and of its key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    certificate = builder.sign(key, hashes.SHA256())
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, form, encryption))
    return folder / "certificate.pem", folder / "key.pem"


@pytest.mark.parametrize("spoilt", ["nothing", "certificate", "key", "no key", "password"])
def test_a_certificate_that_cannot_be_used_opens_and_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoilt: str
) -> None:
    certificate, key = _write_certificate(tmp_path, b"secret" if spoilt == "password" else None)
    if spoilt in ("certificate", "key"):
        (certificate if spoilt == "certificate" else key).write_text("nonsense")
    elif spoilt == "no key":
        key.unlink()
    settings = tmp_path / "server.properties"
    settings.write_text(f"siltstone.http.tls.certificate={certificate}\nsiltstone.http.tls.key={key}\n")
    logs, flags = tmp_path / "logs", ["--listen", "https://127.0.0.1:0"]
    if spoilt != "nothing":
        assert run(["serve", str(logs), "--create", *NO_BROKER, "--config", str(settings), *flags]) == 2
        assert "cannot be loaded" in capsys.readouterr().err
        assert not logs.exists()
        return
    with Served(ServeOptions(paths=(logs,), properties=settings, engine="process")) as served:
        server = WebServer(served, flags[1:])
        server.start()
        try:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with urllib.request.urlopen(f"{server.urls[0]}/healthz", context=context) as answer:
                assert answer.status == 200
        finally:
            server.stop()


def test_a_server_that_ends_at_its_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Served(ServeOptions(paths=(tmp_path / "logs",), engine="process")) as served:
        server = WebServer(served, ["http://127.0.0.1:0"])
        monkeypatch.setattr(server._server, "run", lambda sockets: None)
        with pytest.raises(SiltstoneError, match="has ended at its start"):
            server.start()
        server.stop()


def test_no_socket_stays_open_where_a_second_one_cannot_be_had(tmp_path: Path) -> None:
    settings = tmp_path / "server.properties"
    settings.write_text("siltstone.http.insecure=true\n")
    logs = (tmp_path / "logs",)
    with Served(ServeOptions(paths=logs, properties=settings, engine="process")) as served:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for other in ("http://192.0.2.1:0", "http://a..b:0"):
            with pytest.raises(UsageError, match=f"cannot listen on {other}"):
                WebServer(served, [f"http://127.0.0.1:{port}", other])
        socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize("listen", ["http://0.0.0.0:8082", "ftp://127.0.0.1:1", "nonsense"])
def test_a_refused_listener_makes_no_directory(tmp_path: Path, listen: str) -> None:
    assert run(["serve", str(tmp_path / "new"), "--create", *NO_BROKER, "--listen", listen]) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "flags", [NO_BROKER, ["--look"], ["--look", "--create"], [*NO_BROKER, "--config", "named"]]
)
def test_a_mistyped_directory_is_refused_and_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: Sequence[str]
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


def test_a_request_that_stays_unfinished_is_closed_also_after_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that follows two whole ones goes on byte after byte and never ends."""
    monkeypatch.setattr(running, "KEEP_ALIVE_SECONDS", 0.5)
    with Served(ServeOptions(paths=(tmp_path / "logs",), engine="process")) as served:
        server = WebServer(served, ["http://127.0.0.1:0"])
        server.start()
        try:
            where = urlsplit(server.urls[0]).netloc
            with socket.create_connection(where.split(":"), timeout=20) as connection:
                for _ in range(2):
                    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: %s\r\n\r\n" % where.encode())
                    answer = b""
                    while not answer.endswith(b"}"):
                        answer += connection.recv(10_000)
                    assert answer.startswith(b"HTTP/1.1 200")
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: ")
                connection.settimeout(0.05)
                until, last = time.monotonic() + 20, None
                while last is None and time.monotonic() < until:
                    with contextlib.suppress(TimeoutError):
                        last = connection.recv(100)
                    with contextlib.suppress(OSError):
                        connection.sendall(b"x")
                assert last == b""
        except ConnectionResetError:  # it was closed while a byte was on its way
            pass
        finally:
            server.stop()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--kafka-listen", "SSL://127.0.0.1:0"], "speaks SSL, and this broker only PLAINTEXT"),
        (["--kafka-listen", "127.0.0.1:9092"], "--kafka-listen: '127.0.0.1:9092' is no listener"),
        (["--kafka-listen", "PLAINTEXT://192.0.2.1:0"], "cannot listen on PLAINTEXT://192.0.2.1:0"),
        (["--kafka-listen", "none", "--look"], "--look with --kafka-listen"),
    ],
)
def test_an_impossible_kafka_listener_opens_and_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    flags = ["--create", "--listen", "http://127.0.0.1:0", *arguments]
    assert run(["serve", str(tmp_path / "logs"), *flags]) == 2
    assert reason in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_port_of_another_broker_is_a_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        listener = f"PLAINTEXT://127.0.0.1:{other.getsockname()[1]}"
        flags = ["--create", "--listen", "http://127.0.0.1:0", "--kafka-listen", listener]
        assert run(["serve", str(tmp_path / "logs"), *flags]) == 2
    error = capsys.readouterr().err
    assert f"cannot listen on {listener}: Address already in use" in error
    assert "--kafka-listen" in error
    assert list(tmp_path.iterdir()) == []


KAFKAS_FILE = """
process.roles=broker,controller
node.id=7
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.partitons=3
num.partitions=3
retention.ms=1000
log.cleaner.enable=false
replica.fetch.max.bytes=1
listener.name.plaintext.ssl.keystore.type=JKS
"""


def test_a_kafkas_file_is_served_and_what_has_no_effect_is_named(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(KAFKAS_FILE + f"log.dirs={tmp_path / 'a'}, {tmp_path / 'b'}\n", "utf-8")
    command = [sys.executable, "-m", "siltstone", "serve", "--config", str(path)]
    command += ["--listen", "http://127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        console, kafka = (process.stdout.readline().split()[-1] for _ in range(2))
        name, _, place = kafka.partition("://")
        host, _, port = place.rpartition(":")
        client = WireClient(ListenerAddress(name=name, host=host, port=int(port)))
        parked = WireClient(ListenerAddress(name=name, host=host, port=int(port)))
        request = MetadataRequest(topics=(MetadataRequestTopic(name="made"),))
        assert [topic.error_code for topic in client.ask(request, 9).topics] == [3]  # it is being made
        (topic,) = client.ask(request, 9).topics
        assert (topic.error_code, len(topic.partitions)) == (0, 3)
        (broker,) = client.ask(request, 9).brokers
        assert (broker.node_id, broker.host, broker.port) == (7, "127.0.0.1", int(port))
        assert _get(console, "/healthz")[0] == 200
        parked.send(WAITING_FETCH, 12)
        assert client.ask(ApiVersionsRequest(), 0).error_code == 0
        process.send_signal(signal.SIGTERM)
        assert parked.receive(WAITING_FETCH, 12).responses[0].partitions[0].error_code == 0
        for connection in (client, parked):
            assert connection.is_closed()
            connection.close()
        _, error = process.communicate(timeout=60)
    assert process.returncode == 143
    assert f"ignored: {path}:8: unknown setting 'num.partitons'; did you mean 'num.partitions'?" in error
    assert "'retention.ms' is a topic's setting, not a broker's; set 'log.retention.ms' instead" in error
    unused = "process.roles, controller.quorum.bootstrap.servers, replica.fetch.max.bytes, listener.name."
    assert f"not used here: {unused}" in error
    assert all((tmp_path / name / ".kafka_cleanshutdown").exists() for name in "ab")


def test_without_a_directory_anywhere_nothing_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "server.properties"
    path.write_text("node.id=1\n", "utf-8")
    for flags in ([], ["--config", str(path)]):
        assert run(["serve", *flags]) == 2
        assert "no log directory; pass DIR, or --config" in capsys.readouterr().err
