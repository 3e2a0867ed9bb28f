"""Fixtures that every test may use."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support.golden_sets import unpack_broker, unpack_cleaned, unpack_golden
from tests.support.in_memory import FOLDER
from tests.support.thoroughness import THOROUGH, examples

# A process that a shell started in the background ignores Ctrl-C, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Trees of files take half of the time in memory; make test-long has them on the disk. (tempfile asks once.)
if FOLDER is not None and not THOROUGH:
    os.environ.setdefault("TMPDIR", FOLDER)
    tempfile.tempdir = None

# No test has a deadline by the clock: beside a load one would fail now and then.
hypothesis.settings.register_profile(
    "siltstone", hypothesis.settings(), deadline=None, max_examples=examples(100)
)
hypothesis.settings.load_profile("siltstone")

LONGEST = "spark property broker crash objects web kafka operator runtime compaction log".split()
"""Folders whose files take longest, longest first: begun last, one would keep a single worker busy."""
EXPENSIVE = {"spark": "session", "cleaning": "writer", "beside": "pair"}
"""The fixtures of a folder that one worker makes for all tests that use them: Java starts once."""


# pytest collects a million objects that stay. The collector would look through them again and again.
gc.disable()


def pytest_collection_finish() -> None:
    """Leave what pytest has collected out of garbage collections, and of the pages that forks copy."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests, and say which of them run in one worker (``--dist loadgroup``) and which are random.

    A file is a group, but for the tests that share an expensive fixture, which come first. Long files are
    next; the order within a folder stays (and needs xdist's ``--no-loadscope-reorder``).
    """
    relative = {path: path.relative_to(Path(__file__).parent) for path in {item.path for item in items}}

    def place(item: pytest.Item) -> tuple[bool, int]:
        folder = relative[item.path].parts[0]
        return not shares(item), LONGEST.index(folder) if folder in LONGEST else len(LONGEST)

    for item in items:
        group = relative[item.path].parent if shares(item) else relative[item.path]
        item.add_marker(pytest.mark.xdist_group(str(group)))
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.random)
    items.sort(key=place)


def shares(item: pytest.Item) -> bool:
    """Does a test use the expensive fixture of its folder?"""
    return EXPENSIVE.get(item.path.parent.name) in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session", autouse=True)
def disk_need_not_sync() -> Iterator[None]:
    """An fsync of this process asks only whether there is such a file.

    On a machine that stays up nothing else can be seen of it, and a cleaning waits for dozens. What is
    synced, and when, ``files.observe`` tells the crash tests.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: os.fstat(descriptor) and None)
        yield


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of the golden sets, unpacked once; read only: stage a round to change it."""
    return unpack_golden(tmp_path_factory.mktemp("golden-sets"))


@pytest.fixture(scope="session")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of the sets that Kafka 4.3 cleaned, by kind; read only, as ``golden``."""
    return unpack_cleaned(tmp_path_factory.mktemp("cleaned-sets"))


@pytest.fixture(scope="session")
def unpacked_broker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log directories of a stopped Kafka 4.3 broker, data0 and data1, unpacked once; read only."""
    return unpack_broker(tmp_path_factory.mktemp("broker"))[0].parent


@pytest.fixture
def stopped_broker(unpacked_broker: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The two log directories of a stopped Kafka 4.3 broker, fresh for each test: (data0, data1)."""
    path = shutil.copytree(unpacked_broker, tmp_path / "broker")
    return path / "data0", path / "data1"
