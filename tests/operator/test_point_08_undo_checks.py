"""8. Undo of several logs: all are checked before one is changed; a failure half-way says what was done."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.errors import DirectoryRefusedError, SiltstoneError, UndoStoppedError
from siltstone.base.files import FreeSpace, Operation
from siltstone.cli.main import run
from siltstone.commands import clean as app
from tests.support.in_memory import FOLDER
from tests.support.operator.staged import Listing, in_process, listing, names_in, stage_several
from tests.support.thoroughness import THOROUGH, in_turn, share

FIRST, SECOND = "basic-0", "tombstones-0"


@pytest.fixture
def before(golden: Path, tmp_path: Path) -> tuple[Path, Path, Listing]:
    """A directory whose two logs were cleaned, the run's folder, and what the logs were before."""
    directory, request = stage_several(golden, ["basic", "tombstones"], tmp_path)
    was = logs_of(directory)
    report = app.clean(
        app.CleanRequest(
            directories=[directory],
            in_place=True,
            config_file=request.config_file,
            now_ms=request.now_ms,
            keep_originals=tmp_path / "keep",
        ),
        engine=in_process,
    )
    assert [result.status for result in report.results] == ["cleaned", "cleaned"] and report.kept is not None
    assert logs_of(directory) != was
    return directory, report.kept, was


def logs_of(directory: Path) -> Listing:
    return {name: facts for name, facts in listing(directory).items() if "/" in name}


def first_log(folder: Path) -> Path:
    return min(folder.glob("*.log"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.unlink()
    path.write_bytes(data)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-1])


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


SPOILED: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "log appended to": (lambda log, originals: grow(max(log.glob("*.log"))), "appended to"),
    "cleaned segment changed": (
        lambda log, originals: grow(first_log(log)),
        "not what the run left",
    ),
    "log gone": (lambda log, originals: shutil.rmtree(log), "not there any more"),
    "kept log flipped": (lambda log, originals: flip(first_log(originals)), "byte"),
    "kept log cut": (lambda log, originals: cut(first_log(originals)), "bytes, but"),
    "kept log missing": (lambda log, originals: first_log(originals).unlink(), "missing"),
    "kept log a link": (lambda log, originals: linked(first_log(originals)), "missing"),
    "kept index flipped": (
        lambda log, originals: flip(min(originals.glob("*.timeindex"))),
        "not what was kept",
    ),
    "kept index missing": (lambda log, originals: min(originals.glob("*.index")).unlink(), "missing"),
}


@pytest.mark.parametrize(("what", "which"), in_turn(list(SPOILED), (FIRST, SECOND)))
def test_nothing_of_any_log_is_changed_when_one_cannot_be_undone(
    before: tuple[Path, Path, Listing], which: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, originals, _ = before
    spoil, words = SPOILED[what]
    spoil(directory / which, originals / which)
    now, names = listing(directory), names_in(directory)
    assert run(["undo", str(originals)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert which in captured.err and words in captured.err and "; nothing was changed; " in captured.err
    assert listing(directory) == now and names_in(directory).keys() == names.keys()


def test_a_run_kept_on_another_file_system_is_refused(before: tuple[Path, Path, Listing]) -> None:
    directory, originals, _ = before
    device = os.stat(directory).st_dev
    folders = [path for path in (FOLDER, "/tmp", "/var/tmp") if path and os.path.isdir(path)]
    elsewhere_root = next((path for path in folders if os.stat(path).st_dev != device), None)
    if elsewhere_root is None:
        pytest.skip("no second file system")
    elsewhere = Path(elsewhere_root) / f"siltstone-test-{os.getpid()}"
    shutil.copytree(originals, elsewhere)
    now = listing(directory)
    try:
        with pytest.raises(DirectoryRefusedError, match=r"not on the file system .* nothing was changed"):
            app.undo(elsewhere)
    finally:
        shutil.rmtree(elsewhere)
    assert listing(directory) == now


def test_undo_is_refused_without_free_space(
    before: tuple[Path, Path, Listing], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, originals, was = before
    now = listing(directory)
    with monkeypatch.context() as patched:
        patched.setattr(files, "free_space", lambda path: FreeSpace(free_bytes=4096, free_inodes=10))
        with pytest.raises(DirectoryRefusedError, match=r"only 4096 bytes are free .* nothing was changed"):
            app.undo(originals)
    assert listing(directory) == now
    app.undo(originals)
    assert logs_of(directory) == was


def test_undo_is_refused_without_a_free_inode(
    before: tuple[Path, Path, Listing], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, originals, _ = before
    now = listing(directory)
    monkeypatch.setattr(files, "free_space", lambda path: FreeSpace(free_bytes=1 << 40, free_inodes=0))
    with pytest.raises(DirectoryRefusedError, match=r"no inode is free .* nothing was changed") as refusal:
        app.undo(originals)
    assert "bytes" not in str(refusal.value)
    assert listing(directory) == now


@pytest.mark.random
def test_an_undo_that_fails_half_way_names_the_restored_logs(before: tuple[Path, Path, Listing]) -> None:
    """At each step: the message names what was put back and what not, and to undo again goes on."""
    directory, originals, was = before
    now, kept_now = listing(directory), listing(originals)
    cleaned = directory.with_name("cleaned")
    shutil.copytree(directory, cleaned, copy_function=os.link)
    steps_done, reported = 0, set()
    while True:
        steps = iter(range(steps_done + 1))

        def fail(operation: Operation, steps: object = steps) -> None:
            if operation[1].endswith(".lock"):
                return
            if next(steps, None) is None:  # type: ignore[call-overload]
                raise OSError(errno.EIO, os.strerror(errno.EIO), operation[1])

        try:
            with files.observe(fail):
                app.undo(originals)
            break
        except UndoStoppedError as error:
            reported.add(judge(str(error), directory, was, now))
        assert set(app.undo(originals)) == {str(directory / FIRST), str(directory / SECOND)}
        assert logs_of(directory) == was
        shutil.rmtree(directory)
        shutil.copytree(cleaned, directory, copy_function=os.link)
        steps_done += 5 if THOROUGH else 13
    assert logs_of(directory) == was and listing(originals) == kept_now
    assert reported == {(FIRST, False), (SECOND, True)}


def judge(message: str, directory: Path, was: Listing, now: Listing) -> tuple[str, bool]:
    """At which log the undo stopped, and whether the first log was put back; the message must be true."""
    assert "nothing was changed" not in message and "run the command again" in message and "\n" not in message
    reason, stopped, back, rest, _ = message.split("; ")
    assert "Input/output error" in reason
    at = FIRST if str(directory / FIRST) in stopped else SECOND
    is_back = {name: facts for name, facts in logs_of(directory).items() if name.startswith(FIRST)} == {
        name: facts for name, facts in was.items() if name.startswith(FIRST)
    }
    if at == FIRST:
        assert back == "restored: no other log" and rest == f"not begun: {directory / SECOND}"
        second = {name: facts for name, facts in now.items() if name.startswith(SECOND)}
        assert {n: f for n, f in logs_of(directory).items() if n.startswith(SECOND)} == second
        return at, False
    assert is_back and str(directory / FIRST) in back and "3 of 3 segments" in back
    assert rest == "not begun: no other log"
    return at, True


def test_an_interrupted_swap_that_undo_completed_is_reported(
    before: tuple[Path, Path, Listing],
) -> None:
    """A kill amid an undo; then something of the same log is spoiled. The other logs are as they were."""
    directory, originals, _ = before

    class Killed(BaseException):
        pass

    def kill(operation: Operation) -> None:
        if operation[0] == "rename" and operation[2].endswith(".deleted") and SECOND in operation[1]:
            raise Killed

    with files.observe(kill), pytest.raises(Killed):
        app.undo(originals)
    flip(first_log(originals / SECOND))
    first = {name: facts for name, facts in logs_of(directory).items() if name.startswith(FIRST)}
    with pytest.raises(
        SiltstoneError, match="nothing was restored, but an interrupted swap was finished"
    ) as caught:
        app.undo(originals)
    assert str(directory / SECOND) in str(caught.value) and "nothing was changed" not in str(caught.value)
    assert {name: facts for name, facts in logs_of(directory).items() if name.startswith(FIRST)} == first


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("names", ["../../precious"]),
        ("names", ["00000000000000000000.log.deleted"]),
        ("originals", []),
        ("originals", ["0"]),
        ("originals", [0, 501]),
        ("base_offset", 1),
        ("names", []),
        ("crc32c", 0),
        ("path", "topic-0"),
        ("path", "/etc"),
    ],
)
def test_an_undo_file_that_names_anything_else_is_refused(
    before: tuple[Path, Path, Listing], key: str, value: object
) -> None:
    directory, originals, _ = before
    path = originals / SECOND / "undo.json"
    document = json.loads(path.read_text())
    if key != "crc32c":
        del document["crc32c"]  # as in folders of older versions
    (document if key in ("path", "crc32c") else document["groups"][0])[key] = value
    path.write_text(json.dumps(document))
    now = listing(directory)
    with pytest.raises(DirectoryRefusedError, match=r"undo\.json: not what .* nothing was changed"):
        app.undo(originals)
    assert listing(directory) == now


def test_one_changed_digit_of_an_undo_file_is_found_before_anything_is_changed(
    before: tuple[Path, Path, Listing],
) -> None:
    """Each digit after the log's path, but for those in the checksum's name."""
    directory, originals, _ = before
    path = originals / SECOND / "undo.json"
    text, now = path.read_text(), listing(directory)
    start = text.index('"checkpoint"')
    digits = [place for place in range(start, len(text)) if text[place].isdigit()]
    name = text.index("crc32c")
    for place in share([place for place in digits if not name <= place < name + 6], 15):
        path.write_text(text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :])
        with pytest.raises(DirectoryRefusedError, match="nothing was changed"):
            app.undo(originals)
        assert listing(directory) == now, place


DEEP = "[" * 5000


@pytest.mark.parametrize("path", ["/a\0b/tombstones-0", "/a\ud800/tombstones-0", None], ids=ascii)
def test_an_undo_file_with_no_path_of_this_system_or_nested_too_deeply_is_refused(
    before: tuple[Path, Path, Listing], path: str | None
) -> None:
    _, originals, _ = before
    file = originals / SECOND / "undo.json"
    file.write_text(DEEP if path is None else json.dumps(json.loads(file.read_text()) | {"path": path}))
    with pytest.raises(DirectoryRefusedError, match=r"undo\.json: not what .* nothing was changed"):
        app.undo(originals)


def test_a_damaged_undo_file_of_another_run_does_not_hide_why_an_undo_is_refused(
    before: tuple[Path, Path, Listing], capsys: pytest.CaptureFixture[str]
) -> None:
    directory, originals, _ = before
    other = originals.parent / "20200101T000000Z-000000" / FIRST / "undo.json"
    other.parent.mkdir(parents=True)
    other.write_text(DEEP)
    (directory / "siltstone-cleanings.jsonl").write_text(DEEP + "\n")
    grow(max((directory / FIRST).glob("*.log")))
    with pytest.raises(DirectoryRefusedError, match="appended to"):
        app.undo(originals)


@pytest.mark.parametrize("place", ["partition", "directory"])
@pytest.mark.parametrize("is_circle", [False, True])
def test_a_link_where_the_log_was_is_refused_with_an_error(
    before: tuple[Path, Path, Listing], place: str, is_circle: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, originals, _ = before
    path = directory / FIRST if place == "partition" else directory
    elsewhere = directory.with_name("elsewhere")
    elsewhere.mkdir()
    moved = path.rename(elsewhere / path.name)
    path.symlink_to(path if is_circle else moved)
    status = run(["undo", str(originals), "--topic", "basic"])
    captured = capsys.readouterr()
    if place == "directory" and not is_circle:
        assert status == 0 and captured.err == ""  # a log directory that moved, with a link to it
    else:
        assert status == 1 and captured.out == "" and captured.err.count("\n") == 1
        assert "not there any more" in captured.err or place == "directory"


@pytest.mark.parametrize("flag", ["--out", "--report", "--keep-originals"])
def test_an_output_below_links_in_a_circle_is_refused_with_an_error(
    before: tuple[Path, Path, Listing], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, originals, _ = before
    circle = originals.with_name("circle")
    circle.symlink_to(circle)
    in_place = [] if flag == "--out" else ["--in-place"]
    topic = ["--topic", "basic", "--no-spark", *in_place]
    assert run(["clean", str(directory), flag, str(circle / "new"), *topic]) in (1, 2)
    captured = capsys.readouterr()
    assert "circle" in captured.err and captured.err.count("\n") == 1


def test_kept_originals_without_sizes_are_restored(
    before: tuple[Path, Path, Listing],
) -> None:
    directory, originals, was = before
    for path in originals.glob("*/undo.json"):
        document = json.loads(path.read_text())
        del document["crc32c"]  # older than the sizes
        for group in document["groups"]:
            del group["sizes"], group["checksums"]
        path.write_text(json.dumps(document))
    app.undo(originals)
    assert logs_of(directory) == was
