"""Options of object stores that a Spark session has: Hadoop's of S3, ``fs.s3a.*`` (``S3AFileSystem``).

They are used where neither ``files.configure`` nor the environment says anything, key and secret only
together. Spark's own settings are only read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from siltstone.base import files
from siltstone.spark.internals import java_context, running_session

_CREDENTIAL_SETTINGS = {
    "aws_access_key_id": "fs.s3a.access.key",
    "aws_secret_access_key": "fs.s3a.secret.key",
    "aws_session_token": "fs.s3a.session.token",
}
_ENDPOINT_SETTINGS = {"aws_endpoint": "fs.s3a.endpoint", "aws_region": "fs.s3a.endpoint.region"}
_ENDPOINT_VARIABLES = {"aws_endpoint": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"), "aws_region": ("AWS_REGION",)}
_SSL = "fs.s3a.connection.ssl.enabled"
_of_sessions: dict[str, str] = {}
"""The options in use that came from a session. A later value of a session replaces them, since temporary
credentials expire."""


def use_options(session: SparkSession, options: Mapping[str, str] | None) -> None:
    """Use options of object stores, and those of the session. Raises UsageError."""
    files.configure(options or {})
    use_session_options(session)


def use_session_options(session: SparkSession | None = None) -> None:
    """Use a session's options of S3; by default those of the program's own session, if it has one."""
    session = session or running_session()
    if session is None:
        return
    with contextlib.suppress(Py4JError, PySparkException, AttributeError, OSError):  # Java is gone, or remote
        options = session_options(java_context(session).hadoopConfiguration().get)
        files.configure(options)
        _of_sessions.update(options)


def session_options(setting: Callable[[str], str | None]) -> dict[str, str]:
    """The options that a session has and nothing else says, by obstore's names. ``setting``: returns the
    value of a setting of Hadoop, None if it is not set."""
    in_use = files.configured().values.items()
    configured = {name for name, value in in_use if _of_sessions.get(name) != value}  # not by a session
    options: dict[str, str] = {}
    credentials = {name: value for name, hadoop in _CREDENTIAL_SETTINGS.items() if (value := setting(hadoop))}
    has_pair = {"aws_access_key_id", "aws_secret_access_key"} <= credentials.keys()
    if has_pair and "aws_access_key_id" not in configured and "AWS_ACCESS_KEY_ID" not in os.environ:
        options |= credentials
    for name, hadoop in _ENDPOINT_SETTINGS.items():
        has_variable = any(variable in os.environ for variable in _ENDPOINT_VARIABLES[name])
        if name not in configured and not has_variable and (value := setting(hadoop)):
            options[name] = value
    endpoint = options.get("aws_endpoint", "")
    if endpoint and "://" not in endpoint:
        scheme = "http" if setting(_SSL) == "false" else "https"
        options["aws_endpoint"] = f"{scheme}://{endpoint}"
    return options
