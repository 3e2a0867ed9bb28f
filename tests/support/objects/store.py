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

from obstore.store import S3Store

BUCKET = "backup"
START_S = 60.0


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """The server's URL. It keeps everything in memory."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
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
