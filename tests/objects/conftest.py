"""One S3 server for all tests of this folder; each has a bucket of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from siltstone.base import files
from tests.support.objects.store import bucket_of, one_certificate, s3_server

_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return one_certificate(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def bucket(s3_url: str, certificates: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a new bucket, which the environment's credentials open."""
    name = f"bucket{next(_numbers)}"
    httpx.put(f"{s3_url}/{name}", verify=False).raise_for_status()  # else it reads all certificates
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    for variable, value in {"AWS_ENDPOINT_URL": s3_url, **keys, **certificates}.items():
        monkeypatch.setenv(variable, value)
    files.forget_options()  # and what was opened with another environment
    yield name
    files.forget_options()


@pytest.fixture
def store(s3_url: str, bucket: str) -> Any:
    return bucket_of(s3_url, bucket)
