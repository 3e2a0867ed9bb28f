"""Fetches what the tests against real servers and browsers need: ``python -m tests.support.downloads``.

Each test fetches what is missing itself. CI does it before, while the tests that need no server keep the
processors busy: the registries are waited for, minutes where nothing is cached. What cannot be fetched is one
line on standard error, and the tests that need it fail with theirs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from tests.support.kafka import jars
from tests.support.objects import packages, servers

FETCHES: tuple[Callable[[], object], ...] = (
    jars.programs,
    jars.tiered_storage_libs,
    jars.pulsar_libs,
    packages.axe_script,
    servers.s3proxy_classes,
    servers.azurite_program,
    servers.fake_gcs_program,
    servers.hdfs_classes,
)


def main() -> None:
    for fetch in FETCHES:
        try:
            fetch()
        except jars.KafkaSetupError as error:
            sys.stderr.write(f"{fetch.__module__}.{fetch.__name__}: {error}\n")


if __name__ == "__main__":
    main()
