"""``siltstone erase`` and ``siltstone empty``."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

import pytest

from siltstone.cli import erase
from siltstone.cli.main import run
from siltstone.runtime.manager import LogManager
from tests.commands.test_erasing import files_with
from tests.support.command_line import Command, tree

VALUE = b"born-in-ulm"


@pytest.fixture
def filled(siltstone: Command, logs: Path) -> Path:
    """The compacted topic ``users`` with two keys, the second one twice."""
    lines = b"anna:1\nalbert:%s\nalbert:%s2\n" % (VALUE, VALUE)
    assert siltstone("produce", "--dir", logs, "-t", "users", "-K", ":", stdin=lines).status == 0
    return logs


def records(path: Path, topic: str = "users") -> list[tuple[bytes | None, bytes | None]]:
    with LogManager.open([path]) as manager:
        return [(record.key, record.value) for log in manager[topic].logs() for record in log]


def test_a_key_from_the_dry_run_to_the_last_receipt(siltstone: Command, filled: Path) -> None:
    siltstone(
        *("configs", "--dir", filled, "--alter", "--entity-type", "topics", "--entity-name", "users"),
        *("--add-config", "delete.retention.ms=0"),
    )
    named = ("erase", filled, "--topic", "users", "--key", "albert")
    before = tree(filled)
    dry = siltstone(*named, "--dry-run")
    assert (
        dry.status == 0
        and dry.lines[0] == "topic users: 2 values and 0 tombstones of the key found in partition 0"
    )
    assert "nothing was changed" in dry.lines[-1]
    assert tree(filled) == before
    completed = siltstone(*named, "--yes")
    assert completed.status == 0, completed.err
    assert [line.split(":")[0] for line in completed.lines[-3:-1]] == ["receipt", "receipt"]
    assert completed.lines[-1].startswith("the key is in none of the files")
    assert files_with(filled, VALUE) == files_with(filled, b"albert") == []
    assert records(filled) == [(b"anna", b"1")]
    absent = siltstone(*named, "--yes", "--json")
    assert absent.status == 1 and [key["status"] for key in absent.document["keys"]] == ["absent"]


@pytest.mark.parametrize("way", ["flags", "file", "hex"])
def test_many_keys_are_erased_at_once(siltstone: Command, filled: Path, tmp_path: Path, way: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"albert\r\nnobody\r\nanna\r\n" if way == "file" else b"616c62657274\n6e6f\n616e6e61")
    keys = {
        "flags": ("--key", "albert", "--key", "nobody", "--key", "anna"),
        "file": ("--keys-file", path),
        "hex": ("--keys-file", path, "--key-format", "hex"),
    }[way]
    named = ("erase", filled, "--topic", "users", *keys)
    looked = siltstone(*named, "--dry-run", "--json")
    assert looked.status == 1
    assert [(key["status"], key["values"]) for key in looked.document["keys"]] == [
        ("found", 2),
        ("absent", 0),
        ("found", 1),
    ]
    completed = siltstone(*named, "--yes", "--engine", "process")
    assert completed.status == 1, completed.err
    rows = [line.split()[:5] for line in completed.lines if line.strip()[:1].isdigit()][:3]
    assert [row[:3] for row in rows] == [["1", "2", "0"], ["2", "0", "0"], ["3", "1", "0"]]
    assert "2 of 3 keys" in completed.lines[-1] or "2 of 3 keys" in " ".join(completed.lines)
    assert files_with(filled, VALUE) == []


def test_an_unknown_engine_is_refused(siltstone: Command, filled: Path) -> None:
    for command in (("erase", "--key", "a"), ("empty", "--mode", "truncate")):
        completed = siltstone(*command, "--topic", "users", "--engine", "steam", "--yes", filled)
        assert completed.status == 2 and "--engine steam" in completed.err


def test_the_second_step_is_announced(siltstone: Command, filled: Path) -> None:
    completed = siltstone("erase", filled, "--topic", "users", "--key", "albert", "--yes")
    assert completed.status == 0 and "run the command again then" in " ".join(completed.lines)
    assert files_with(filled, VALUE) == []
    assert (b"albert", None) in records(filled)


def test_what_holds_a_key_is_an_exit_status(siltstone: Command, filled: Path) -> None:
    copy = filled / "users-0" / ".siltstone-writes" / "w" / "0-1.batches"
    copy.parent.mkdir(parents=True)
    copy.write_bytes((filled / "users-0" / f"{0:020d}.log").read_bytes())
    completed = siltstone("erase", filled, "--topic", "users", "--key", "albert", "--yes")
    assert completed.status == 1
    assert str(copy) in "".join(completed.lines) and not any(
        line.startswith("receipt") for line in completed.lines
    )


def test_originals_that_a_cleaning_kept_are_found_by_its_history(
    siltstone: Command, filled: Path, tmp_path: Path
) -> None:
    outputs = ("--in-place", "--roll", "--force", "--keep-originals", tmp_path / "keep")
    cleaned = siltstone("clean", filled, "--topic", "users", "--no-spark", *outputs, "--json").document
    kept_originals = Path(cleaned["kept_originals"])
    completed = siltstone("erase", filled, "--topic", "users", "--key", "albert", "--yes", "--json")
    (holder,) = completed.document["keys"][0]["holders"]
    assert (completed.status, holder["kind"]) == (1, "kept") and holder["path"].startswith(
        str(kept_originals)
    )
    shutil.rmtree(kept_originals)
    assert siltstone("erase", filled, "--topic", "users", "--key", "albert", "--yes").status == 0


def test_a_key_of_a_real_brokers_topic(siltstone: Command, stopped_broker: tuple[Path, Path]) -> None:
    """With transactions, several codecs, and all that a broker leaves."""
    named = ("--dir", stopped_broker[0], "--dir", stopped_broker[1], "--topic", "users")
    consumed = ("consume", *named, "-e", "-q", "-f", "%k %S\\n")
    key = siltstone(*consumed).lines[0].split()[0]
    other_lines = [line for line in siltstone(*consumed).lines if not line.startswith(f"{key} ")]
    completed = siltstone("erase", *named, "--key", key, "--yes")
    assert completed.status == 0 and "other replicas" in completed.err, (completed.lines, completed.err)
    remaining = siltstone(*consumed).lines
    assert [line for line in remaining if line.startswith(f"{key} ")] == [f"{key} -1"]
    assert {*other_lines} >= {line for line in remaining if not line.startswith(f"{key} ")}
    assert siltstone("erase", *named, "--key", key, "--dry-run", "--json").document["keys"][0]["values"] == 0


def test_partitions_that_are_elsewhere_are_named(
    siltstone: Command, stopped_broker: tuple[Path, Path]
) -> None:
    named = ("--dir", stopped_broker[0], "--topic", "ledger", "--key", "nobody")
    looked = siltstone("erase", *named, "--dry-run")
    assert looked.status == 1 and "1 of the topic's 2 partitions is here" in looked.err


@pytest.mark.parametrize("written", [b"albert", b"albert\n", b"albert\r\n"])
def test_a_key_from_standard_input(siltstone: Command, filled: Path, written: bytes) -> None:
    named = ("erase", filled, "--topic", "users", "--key-file", "-", "--dry-run", "--json")
    assert siltstone(*named, stdin=written).document["keys"][0]["values"] == 2


@pytest.mark.parametrize(
    ("flag", "written", "says"),
    [
        ("--keys-file", b"albert\n\n", "line 2 is empty"),
        ("--keys-file", b"albert\r\n\r\nanna\r\n", "line 2 is empty"),
        ("--keys-file", b"", "line 1 is empty"),
        ("--key-file", b"\n", "is empty"),
        ("--key-file", b"one key of many bytes", "is over 20 B"),
    ],
)
def test_a_file_never_names_the_empty_key_or_a_part_of_one(
    siltstone: Command,
    filled: Path,
    monkeypatch: pytest.MonkeyPatch,
    flag: str,
    written: bytes,
    says: str,
) -> None:
    """An empty line at the end of a file once erased the records with an empty key."""
    monkeypatch.setattr(erase, "_KEY_BYTES_MAX", 20)
    before = tree(filled)
    completed = siltstone("erase", filled, "--topic", "users", flag, "-", "--yes", stdin=written)
    assert completed.status == 2 and says in completed.err, completed.err
    assert tree(filled) == before


def test_a_key_from_a_file_in_hex(siltstone: Command, filled: Path, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"616c62657274\n")
    named = (
        "erase",
        filled,
        "--topic",
        "users",
        "--key-file",
        path,
        "--key-format",
        "hex",
        "--dry-run",
        "--json",
    )
    assert siltstone(*named).document["keys"][0]["values"] == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("erase", "--topic", "users"), "no key, or two"),
        (("erase", "--topic", "users", "--key", "a", "--key-file", "-"), "no key, or two"),
        (("erase", "--topic", "users", "--keys-file", "-", "--key-file", "-"), "no key, or two"),
        (("erase", "--topic", "users", "--key", "zz", "--key-format", "hex"), "the key is not hex"),
        (("erase", "--topic", "users", "--key", "a", "--key-format", "x"), "no key format"),
        (("erase", "--key", "a"), "no topic"),
        (("erase", "--topic", "users", "--key", "a"), "no terminal"),
        (("empty", "--topic", "users"), "no mode"),
        (("empty", "--topic", "users", "--mode", "burn"), "no mode 'burn'"),
        (("empty", "--topic", "users", "--mode", "truncate"), "no terminal"),
    ],
)
def test_wrong_usage_is_refused(
    siltstone: Command, filled: Path, arguments: tuple[str, ...], says: str
) -> None:
    before = tree(filled)
    completed = siltstone(*arguments, "--dir", filled)
    assert completed.status == 2 and says in completed.err, completed.err
    assert tree(filled) == before


@pytest.mark.parametrize("command", [("erase", "--key", "a"), ("empty", "--mode", "tombstones")])
def test_topics_that_are_missing_or_not_compacted_are_refused(
    siltstone: Command, filled: Path, command: tuple[str, ...]
) -> None:
    for more in (("--yes",), ("--dry-run",)):
        completed = siltstone(*command, "--topic", "orders", *more, filled)
        assert completed.status == 1 and "POLICY_VIOLATION" in completed.err
        assert siltstone(*command, "--topic", "none", *more, filled).status == 1


def test_a_directory_that_another_process_has_is_refused(siltstone: Command, filled: Path) -> None:
    with LogManager.open([filled]):
        completed = siltstone("erase", filled, "--topic", "users", "--key", "albert", "--yes")
        assert completed.status == 1 and "DIRECTORY_LOCKED" in completed.err
        assert siltstone("erase", filled, "--topic", "users", "--key", "albert", "--dry-run").status == 0
    assert len(records(filled)) == 3


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "status", "remaining"), [("y\n", 0, 2), ("\n", 1, 3), ("", 1, 3)])
@pytest.mark.parametrize("command", [("erase", "--key", "albert"), ("empty", "--mode", "tombstones")])
def test_a_terminal_is_asked(
    filled: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    answer: str,
    status: int,
    remaining: int,
) -> None:
    prompt = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", prompt)
    assert run([*command, "--topic", "users", str(filled)]) == status
    assert "[y/N]" in prompt.getvalue()
    assert len(records(filled)) == remaining


@pytest.mark.parametrize("mode", ["tombstones", "truncate"])
def test_a_topic_is_emptied(siltstone: Command, filled: Path, mode: str) -> None:
    named, before = ("empty", filled, "--topic", "users", "--mode", mode), tree(filled)
    dry = siltstone(*named, "--dry-run")
    assert dry.status == 0 and "would be emptied" in dry.lines[-1] and tree(filled) == before
    completed = siltstone(*named, "--yes", "--json")
    (partition,) = completed.document["partitions"]
    assert completed.status == 0 and (partition["records"], partition["held"]) == (3, None)
    expected = [] if mode == "truncate" else [(b"anna", None), (b"albert", None)]
    assert records(filled) == expected and files_with(filled, VALUE) == []
    assert ("no reader learns of it" in completed.err) == (mode == "truncate")


def test_a_topic_that_only_deletes_is_truncated(siltstone: Command, logs: Path) -> None:
    siltstone("produce", "--dir", logs, "-t", "orders", "-p", 0, stdin=b"a\nb\n")
    completed = siltstone("empty", logs, "--topic", "orders", "--mode", "truncate", "--yes")
    assert completed.status == 0 and "is empty (truncate; it had 2 records" in completed.lines[-1]
    assert records(logs, "orders") == []
