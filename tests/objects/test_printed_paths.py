"""What is printed of a store is what was named, with both slashes, whatever command prints it."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import siltstone as st
from siltstone.base import files
from siltstone.base.errors import SiltstoneError, shown_path
from siltstone.base.files.objects import StorePath
from siltstone.cli.main import run
from siltstone.commands.backup import BackupRequest, backup
from tests.support.objects.store import upload
from tests.support.thoroughness import share

_ONE_SLASH = re.compile(r"s3:/(?!/)")
JSON = "--engine process --json"
COMMANDS = [
    "topics --list URL",
    "topics --describe URL",
    "topics --describe URL --json",
    "configs --entity-type topics --entity-name users --describe URL --json",
    "log-dirs --describe URL",
    "log-dirs --describe URL --json",
    "get-offsets URL",
    "get-offsets URL --json",
    "groups URL --json",
    "consume URL --topic users -e",
    "explain URL --engine process",
    "explain URL --engine process --verbose --html HTML",
    f"explain URL {JSON}",
    "clean --dry-run URL --engine process --verbose",
    f"clean --dry-run URL {JSON}",
    f"clean URL --out URL-copy {JSON}",
    "clean URL --out URL-copy --engine process",
    f"clean URL --out DISK {JSON}",
    "verify URL OTHER --engine process",
    f"verify URL OTHER {JSON}",
    "dump URL",
    "dump URL --json",
    "dump URL/users-0 --print-data-log",
    "dump URL/users-0/00000000000000000000.log --json",
    "dump URL/users-0/00000000000000000000.index --index-sanity-check --json",
    # what fails
    "dump URL/nothing",
    "dump URL-copies",
    "explain URL/nothing --engine process",
    "verify URL/nothing OTHER --engine process",
    "clean --in-place URL --all-topics",
    "recover URL",
    "produce --dir URL --topic users",
    "consume URL --topic nothing -e",
    "restore URL/nothing DISK",
]
FAILING = COMMANDS.index("dump URL/nothing")
ALSO_SHOWN = (
    "topics --describe",
    "log-dirs",
    "explain URL --engine process --json",
    "clean --dry-run URL --engine",
    "dump URL",
)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory with what a cleaning passes over, and a damaged index."""
    path = tmp_path_factory.mktemp("broker") / "logs"
    with st.open(path, mode="a") as opened:
        opened.topics.create("users", 1, {"cleanup.policy": "compact", "segment.bytes": "7000"})
        for number in range(210):
            opened.send("users", b"value %d" % number, key=b"%d" % (number % 41))
    (path / "no-partition").mkdir()
    (path / "no-partition" / "file").write_bytes(b"x")
    index = path / "users-0" / f"{0:020d}.timeindex"
    index.write_bytes(index.read_bytes()[:-1])
    return path


@pytest.fixture(params=["objects", pytest.param("restore point", marks=pytest.mark.long)])
def url(request: pytest.FixtureRequest, logs: Path, store: Any, bucket: str) -> str:
    """The address of the directory in a bucket; ``other`` beside it is the same."""
    upload(store, logs, "other")
    if request.param == "objects":
        upload(store, logs, "one")
        return f"s3://{bucket}/one"
    target = Path(f"s3://{bucket}/points")
    return f"{target}/@{backup(BackupRequest(directories=[logs], target=target)).backup_id}".replace(
        "s3:/", "s3://"
    )


@pytest.mark.random
def test_commands_print_what_was_named(
    url: str, bucket: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for number, command in share(list(enumerate(COMMANDS)), 5):
        copy, page = f"s3://{bucket}/copy", tmp_path / f"page{number}.html"
        words = command.replace("URL-copy", copy).replace("URL", url).replace("HTML", str(page))
        words = words.replace("OTHER", f"s3://{bucket}/other").replace("DISK", str(tmp_path / str(number)))
        status = run(words.split())
        printed = capfd.readouterr()
        text = printed.out + printed.err + (page.read_text() if page.exists() else "")
        assert text, command
        assert _ONE_SLASH.search(text) is None, f"{command}: {text}"
        if number >= FAILING:
            assert status != 0, command
            assert "s3://" in text or "consume" in command, f"{command}: {text}"
        elif any(words in command for words in ALSO_SHOWN):
            assert url in "".join(text.split()), f"{command}: {text}"


def test_the_library_says_what_was_named(url: str, tmp_path: Path) -> None:
    with st.open(url) as opened:
        log = opened["users", 0]
        texts = [repr(opened), repr(log), str(log.directory), *log.damage]
    explained = st.explain(url, engine="process")
    cleaned = st.clean(url, out=tmp_path / "disk", engine="process", force=True)
    texts += [str(explained.to_json()), str([result.directory for result in cleaned.results])]
    with pytest.raises(SiltstoneError) as caught:
        st.open(f"{url}/nothing")
    texts.append(str(caught.value))
    for text in texts:
        assert _ONE_SLASH.search(text) is None, text
    assert f"{url}/users-0" in texts[2] and f"{url}/users-0" in str(explained.to_json())


def test_a_path_of_a_store_is_the_one_that_pathlib_writes_with_one_slash() -> None:
    of_pathlib, named = Path("s3://bucket/one/users-0"), files.as_named(Path("s3://bucket/one")) / "users-0"
    assert (str(of_pathlib), str(named)) == ("s3:/bucket/one/users-0", "s3://bucket/one/users-0")
    assert (named, of_pathlib) == (of_pathlib, named)
    assert hash(named) == hash(of_pathlib)
    assert {of_pathlib: 1}[named] == 1
    assert named != Path("/bucket/one/users-0")
    assert isinstance(named.parent, StorePath)
    assert str(named.relative_to(of_pathlib.parent)) == "users-0"
    assert str(pickle.loads(pickle.dumps(named))) == str(named)
    assert sorted([named, named.parent]) == [named.parent, named]
    assert files.as_named(named) is named
    assert files.as_named(Path("s3/one")) == Path("s3/one")
    assert files.is_object(str(named)) and files.is_object(str(of_pathlib))


@pytest.mark.parametrize("scheme", "s3 s3a gs abfs abfss az hdfs".split())
def test_errors_and_paths_have_both_slashes_whatever_the_store(scheme: str) -> None:
    of_pathlib = Path(f"{scheme}://place/one")
    assert files.is_object(of_pathlib)
    assert str(files.as_named(of_pathlib)) == shown_path(of_pathlib) == f"{scheme}://place/one"
    assert SiltstoneError("reason", path=of_pathlib).path == f"{scheme}://place/one"
