"""One real broker and ours, side by side, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.broker_twin.pair import Pair, paired


@pytest.fixture(scope="package")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both brokers, with the same settings, empty at first. Topics of a test begin with its own name."""
    with paired(tmp_path_factory.mktemp("beside")) as brokers:
        yield brokers
