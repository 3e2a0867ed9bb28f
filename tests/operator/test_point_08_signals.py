"""8. Ctrl-C and SIGTERM at each stage of each long command, on a terminal: 130 or 143 within five seconds,
the logs whole, nothing running any more. A few of them always, all of them with ``make test-long``."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from siltstone.cli import main
from siltstone.commands import clean as app
from siltstone.log.directory import LogDirectory
from tests.support.operator.interrupting import Interrupted, interrupt
from tests.support.operator.staged import in_process, last_values, log_bytes, stage_several

SETS = ("basic_zipf_ts", "codec_mixed", "grouping")
SOON_SECONDS = 15
"""Five are promised; a machine that does much else may take longer."""
INT, TERM = (signal.SIGINT,), (signal.SIGTERM,)
TWICE = (signal.SIGINT, signal.SIGINT)
AT = "siltstone: interrupted"


class Brokers:
    """A log directory with several logs, and its commands."""

    def __init__(self, golden: Path, folder: Path) -> None:
        self.folder = folder
        self.directory, self.request = stage_several(golden, SETS, folder / "broker")
        self.values = self.values_by_log()

    def partitions(self) -> list[Path]:
        return sorted(LogDirectory.open(self.directory, lock=False).partitions.values())

    def values_by_log(self) -> dict[str, object]:
        """Each key's last value, log by log; a tombstone may go."""
        return {
            path.name: {key: last for key, last in last_values(path).items() if last[1] is not None}
            for path in self.partitions()
        }

    def clean(self, *flags: str) -> list[str]:
        assert self.request.config_file is not None
        settings = ["--config-file", str(self.request.config_file), "--now-ms", str(self.request.now_ms)]
        return [
            "clean",
            str(self.directory),
            *settings,
            *(flags or ("--in-place", "--all-topics")),
            "--master",
            "local[2]",
        ]

    def assert_whole(self) -> None:
        """No value is missing; the next run ends as an uninterrupted run would, and leaves no staged file."""
        assert self.values_by_log() == self.values
        assert self.assert_next_run() == self.assert_next_run()

    def assert_next_run(self) -> dict[str, bytes]:
        report = app.clean(self.request, engine=in_process)
        assert {result.status for result in report.results} <= {"cleaned", "nothing_to_do"}, report.results
        assert self.values_by_log() == self.values
        assert not list(self.directory.rglob(".siltstone/*"))
        return {path.name: log_bytes(path) for path in self.partitions()}


@pytest.fixture
def brokers(golden: Path, tmp_path: Path) -> Brokers:
    return Brokers(golden, tmp_path)


def assert_ended(ended: Interrupted, status: int) -> None:
    assert ended.status == status, ended
    assert ended.seconds < SOON_SECONDS and ended.left_seconds < SOON_SECONDS, ended
    assert AT in ended.output and "Traceback" not in ended.output, ended.output


CLEANING = [
    ("java", INT, 0.0),
    ("java", TERM, 0.5),
    ("java", INT, 1.5),
    ("spark", TERM, 0.0),
    ("spark", INT, 1.0),
    ("clean_whole_task", INT, 0.0),
    ("clean_whole_task", TERM, 0.0),
    ("extract_task", INT, 0.0),
    ("extract_task", TERM, 0.0),
    ("merge_task", TWICE, 0.0),
    ("rewrite_task", INT, 0.0),
    ("rewrite_task", TERM, 1.0),
    ("swap", INT, 0.0),
    ("swap", TERM, 0.0),
]
FEW = [CLEANING[6]]
"""In a task of Spark's whose files are staged; the shuffles of the later stages take as long again."""


def case_id(case: tuple[str, Sequence[signal.Signals], float]) -> str:
    stage, send, later = case
    return f"{stage}-{'-'.join(signal_sent.name for signal_sent in send)}-{later}"


@pytest.mark.spark
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            interruption, marks=() if interruption in FEW else pytest.mark.long, id=case_id(interruption)
        )
        for interruption in CLEANING
    ],
)
def test_a_signal_ends_clean_and_every_log_is_whole(
    brokers: Brokers, case: tuple[str, Sequence[signal.Signals], float]
) -> None:
    stage, send, later = case
    ended = interrupt(stage, brokers.clean(), brokers.folder / "run", send, later=later)
    assert_ended(ended, 128 + send[0])
    brokers.assert_whole()


OTHERS = [
    ("--out", "rewrite_task", INT),
    ("--out", "clean_whole_task", TERM),
    ("explain", "merge_task", INT),
    ("explain", "java", TERM),
    ("recover", "recovery", INT),
    ("recover", "recovery", TERM),
    ("--no-spark", "kernels", INT),
    ("--no-spark", "kernels", TERM),
    ("--no-spark", "swap", INT),
]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("what", "stage", "send"),
    [
        pytest.param(
            *other,
            marks=() if (other[0], other[2]) == ("recover", TERM) else pytest.mark.long,
            id=f"{other[0]}-{other[1]}-{other[2][0].name}",
        )
        for other in OTHERS
    ],
)
def test_a_signal_ends_the_other_commands(
    brokers: Brokers, what: str, stage: str, send: Sequence[signal.Signals]
) -> None:
    out, environment = brokers.folder / "out", {}
    command = brokers.clean("--out", str(out))
    if what == "explain":
        command = ["explain", *brokers.clean()[1:6], "--master", "local[2]"]
    elif what == "recover":
        (brokers.directory / ".kafka_cleanshutdown").unlink()
        command = ["recover", str(brokers.directory)]
    elif what == "--no-spark":
        command = [*brokers.clean()[:-2], "--no-spark"]
        environment["NUMBA_CACHE_DIR"] = str(brokers.folder / "kernels") if stage == "kernels" else ""
        environment = {name: value for name, value in environment.items() if value}
    ended = interrupt(stage, command, brokers.folder / "run", send, environment=environment)
    assert_ended(ended, 128 + send[0])
    assert not [path for path in brokers.folder.iterdir() if "out" in path.name], "a copy, or a part of one"
    if what == "recover":
        assert not (brokers.directory / ".kafka_cleanshutdown").exists(), "not all of it was recovered"
        assert not any(recovery.needs_attention for recovery in app.recover([brokers.directory]))
    brokers.assert_whole()


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("send", [INT, TERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_a_compaction(tmp_path: Path, send: Sequence[signal.Signals]) -> None:
    logs, lines = str(tmp_path / "logs"), tmp_path / "lines"
    lines.write_text("".join(f"{number % 7}:{number}\n" for number in range(100)))
    assert main.run(["topics", "--dir", logs, "--create", "--topic", "users"]) == 0
    assert main.run(["produce", "--dir", logs, "-t", "users", "-K", ":", "--lines", str(lines)]) == 0
    command = ["compact-topic", "--dir", logs, "--topic", "users"]
    before = {path: path.read_bytes() for path in Path(logs).rglob("*.log")}
    ended = interrupt("compact_whole_task", [*command, "--master", "local[2]"], tmp_path / "run", send)
    assert_ended(ended, 128 + send[0])
    assert {path: path.read_bytes() for path in Path(logs).rglob("*.log")} == before
    assert main.run(command) == 0
