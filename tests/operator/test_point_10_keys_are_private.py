"""10. Keys are private: no byte of a key or a value in anything that people read."""

import itertools
import json
from pathlib import Path

import pytest

from siltstone.cli.main import run
from siltstone.commands import clean as app
from siltstone.log.segments import list_segments
from tests.support.operator.staged import Staged, in_process, records, stage
from tests.support.thoroughness import few

SHORTEST = 4


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.clean, "__kwdefaults__", {**app.clean.__kwdefaults__, "engine": in_process})


def secrets_of(staged: Staged) -> list[str]:
    """Keys and values, and pieces of values, as they would show in a text."""
    secrets = set()
    for _, key, value in records(staged.partition):
        for field in (key, value):
            if field is not None and len(field) >= SHORTEST:
                text = field[:24].decode("latin-1")
                secrets |= {text, field[:24].hex(), repr(field[:24])[2:-1]}
    assert len(secrets) > 20
    return sorted(secrets)


def nothing_shown(secrets: list[str], *texts: str) -> None:
    for text in texts:
        assert not [secret for secret in secrets if secret in text]


@pytest.mark.parametrize(
    ("name", "damaged"),
    few(itertools.product(["basic", "tombstones", "codec_zstd", "keyless"], [False, True]), 0, 3, 5, 6),
)
def test_neither_reports_nor_errors_show_keys(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, damaged: bool
) -> None:
    staged = stage(golden, name, tmp_path / "data")
    secrets = secrets_of(staged)
    if damaged:
        path = Path(list_segments(staged.partition)[0].path)
        data = bytearray(path.read_bytes())
        data[-5] ^= 0xFF
        path.write_bytes(data)
    settings = [part for setting in staged.request.config for part in ("--config", setting)]
    common = [
        "clean",
        str(staged.directory),
        "--topic",
        staged.case.topic,
        *settings,
        "--now-ms",
        str(staged.request.now_ms),
    ]
    status = run([*common, "--dry-run"])
    table = capsys.readouterr()
    report = tmp_path / "report.json"
    assert run([*common, "--in-place", "--json", "--report", str(report)]) == status == int(damaged)
    document = capsys.readouterr()
    assert json.loads(document.out)["logs"][0]["topic"] == staged.case.topic
    nothing_shown(secrets, table.out, table.err, document.out, document.err, report.read_text())
