"""A real S3 server for tests: moto's, in a process of its own, and what is uploaded to it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import certifi
from obstore.store import S3Store

BUCKET = "backup"
START_S = 60.0


def one_certificate(folder: Path) -> dict[str, str]:
    """Variables of the environment with which clients load one certificate, not all of the machine's.

    Each new client loads them anew, also for a server without TLS: 8 ms, more than a request takes.
    """
    path, end = folder / "certificate.pem", "-----END CERTIFICATE-----\n"
    path.write_text(Path(certifi.where()).read_text(encoding="utf-8").partition(end)[0] + end)
    return {"SSL_CERT_FILE": str(path), "SSL_CERT_DIR": str(folder / "none")}


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """The server's URL. It keeps everything in memory."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.support.objects.moto_s3", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, "moto's server ended; pip install 'moto[server]'"
                assert time.monotonic() < end, "moto's server does not answer"
                time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def bucket_of(url: str, name: str = BUCKET) -> Any:
    """A store for the test itself."""
    return S3Store(
        name,
        endpoint=url,
        access_key_id="test",
        secret_access_key="test",
        region="us-east-1",
        client_options={"allow_http": "true"},
    )


def upload(store: Any, directory: Path, prefix: str) -> None:
    """Put all files of a directory below a prefix."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            store.put(f"{prefix}/{path.relative_to(directory)}", path.read_bytes())
