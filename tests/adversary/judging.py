"""One case from its text to its verdict.

A case is ``BASE~ATTACKS~COMMANDS~SEED``: ``life/3~flip_log,clock_jump~clean,recover~17``. Everything that is
drawn comes from the seed, so the same text is the same case anywhere. ``flip=PATH:BIT`` is an attack too.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.adversary import attacks, commands, oracle, plain
from tests.adversary.attacks import ATTACKS
from tests.adversary.bases import Bases
from tests.adversary.commands import CLEANS, COMMANDS, COMPACTS, COPIES, LOOKS, OPENS, RECOVERS, Execution
from tests.adversary.oracle import Rules, Verdict
from tests.adversary.plain import Log
from tests.adversary.scene import NOTES, DoesNotApplyError, Facts, Scene, file_stat, prepare, topic_of

HELD, REFUSED, FAILED, NOT_APPLIED = "done and whole", "unchanged and refused", "failed", "did not apply"
OUTCOMES = (REFUSED, HELD, NOT_APPLIED, FAILED)
PRODUCER_EXPIRATION_MS = 86_400_000
_ENTRY = re.compile(r"^(\S+) ([+-]?\d+) ([+-]?\d{1,19})\Z", re.ASCII)
_LEFTOVER = (".cleaned", ".swap", ".deleted")


@dataclass(frozen=True, slots=True)
class Case:
    """What is done to what, and in which order."""

    base: str
    attacks: tuple[str, ...]
    commands: tuple[str, ...]
    seed: int

    @classmethod
    def of(cls, text: str) -> Case:
        """The case of its text. Raises ValueError."""
        base, attacked, run, seed = text.split("~")
        return cls(base, tuple(filter(None, attacked.split(","))), tuple(run.split(",")), int(seed))

    def __str__(self) -> str:
        return f"{self.base}~{','.join(self.attacks)}~{','.join(self.commands)}~{self.seed}"


LAST = ("swap_leftovers",)


def run_case(case: Case, bases: Bases, root: Path) -> Verdict:
    """Carry it out below ``root``, which is made, and removed again unless something is wrong."""
    shutil.rmtree(root, ignore_errors=True)
    draw = Random(str(case))
    scene = prepare(bases[case.base], root)
    try:
        # Leftovers of a swap come last: what they are copies of is what they take the place of.
        for name in sorted(case.attacks, key=LAST.__contains__):
            if name.startswith("flip="):
                scene.attacked.append(attacks.flip_exactly(scene, name.removeprefix("flip=")))
            else:
                scene.attacked.append(ATTACKS[name](draw, scene))
    except (DoesNotApplyError, OSError, struct.error):
        # A queue is where another attack wants a file, or the log ends at the largest offset by now.
        shutil.rmtree(root)
        return Verdict(outcome=NOT_APPLIED)
    problems_of_case, refused, summary = [], False, [*scene.attacked]
    for name in case.commands:
        problems, execution = _execute(name, draw, scene)
        summary.append(_line(execution))
        problems_of_case += [f"{execution.description}: {problem}" for problem in problems]
        refused |= execution.status not in (0, None)
        if problems_of_case:
            break
    if not problems_of_case:
        shutil.rmtree(root, ignore_errors=True)
    outcome = FAILED if problems_of_case else REFUSED if refused else HELD
    return Verdict(outcome=outcome, problems=problems_of_case, summary="; ".join(summary))


def _line(execution: Execution) -> str:
    results = "; ".join(
        f"{Path(path).name} {result['status']}: {result['reason']}"
        for path, result in execution.results.items()
    )
    return f"{execution.description}: exit {execution.status} {results or execution.stderr.strip()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The directories at one moment: logs by path, every file's facts, the checkpoints.

    ``settled``: what logs whose offsets do not ascend become by the swaps that lie there.
    """

    logs: dict[str, Log]
    settled: dict[str, Log]
    facts: dict[str, dict[str, Facts]]
    bystander: dict[str, Facts]
    twin: dict[str, Facts]
    checkpoints: dict[str, dict[str, dict[tuple[str, int], int] | None]]


def _look(scene: Scene) -> Sight:
    logs = {str(path): plain.read(path) for path in scene.partitions()}
    settled = {path: plain.with_finished_swaps(log) for path, log in logs.items() if not log.ascends}
    return Sight(
        logs=logs,
        settled=settled,
        facts={str(path): file_stat(path) for path in scene.directories},
        bystander=file_stat(scene.bystander),
        twin=file_stat(scene.root / "twin"),
        checkpoints={
            str(path): {name: read_checkpoint(path / name) for name in attacks.CHECKPOINTS}
            for path in scene.directories
        },
    )


def read_checkpoint(path: Path) -> dict[tuple[str, int], int] | None:
    """Its entries, links followed; None where it makes no sense to a strict reader."""
    try:
        if not path.is_file():
            return {} if not path.exists() else None
        version, count, *rows = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return {} if path.is_file() and path.stat().st_size == 0 else None
    entries = {}
    for row in (line.strip() for line in rows if line.strip()):
        entry = _ENTRY.match(re.sub(r"\s+", " ", row))
        if entry is None:
            return None
        entries[entry[1], int(entry[2])] = int(entry[3])
    return (
        entries
        if version.strip() == "0" and count.strip() == str(len([r for r in rows if r.strip()]))
        else None
    )


def _execute(name: str, draw: Random, scene: Scene) -> tuple[list[str], Execution]:
    before = _look(scene)
    execution = COMMANDS[name](draw, scene)
    after = _look(scene)
    for path, log in before.settled.items():
        now = after.logs[path].logs() if path in after.logs else before.logs[path].logs()
        if now != before.logs[path].logs() and (log.ascends or now == log.logs()):
            before.logs[path] = log
    problems = list(execution.contract)
    if execution.error is not None:
        problems.append(execution.error.strip())
    if before.bystander != after.bystander:
        problems.append(f"the bystander changed: {_difference(before.bystander, after.bystander)}")
    if before.twin != after.twin and execution.kind not in (RECOVERS, OPENS):
        problems.append(f"what has a second name changed: {_difference(before.twin, after.twin)}")
    problems += _JUDGES[execution.kind](scene, execution, before, after)
    return problems, execution


def _difference(earlier: dict[str, Facts], later: dict[str, Facts]) -> str:
    names = [name for name in sorted({*earlier, *later}) if earlier.get(name) != later.get(name)]
    shown = []
    for name in names[:4]:
        if name not in earlier or name not in later:
            shown.append(f"{name!r} {'came' if name in later else 'is gone'}")
            continue
        kinds = ("mode", "owner", "group", "time", "content")
        parts = [kind for kind, was, now in zip(kinds, earlier[name], later[name], strict=True) if was != now]
        shown.append(f"{name!r}: {', '.join(parts)}")
    return ", ".join(shown) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _lasting(facts: dict[str, Facts], *, below: str = "") -> dict[str, tuple[int, bytes | str]]:
    """What must stay of files: kind and content, without our own notes, the lock and our folders."""
    return {
        name: (file_facts[0], file_facts[4])
        for name, file_facts in facts.items()
        if name.startswith(below)
        and not (NOTES.match(name) or name == ".lock")
        and not {".siltstone", ".compacted"} & set(name.split("/"))
    }


# Judges, by what a command may do


def _topic_partition(path: str) -> tuple[str, int]:
    topic, _, number = Path(path).name.rpartition("-")
    return topic, int(number)


def _entry(sight: Sight, path: str, name: str) -> int | None:
    entries = sight.checkpoints[str(Path(path).parent)][name]
    return None if entries is None else entries.get(_topic_partition(path))


def _number(settings: Any, name: str, default: int) -> int:
    try:
        return int(settings[name]["value"])
    except (KeyError, TypeError, ValueError):
        return default


def _cleaning_rules(scene: Scene, execution: Execution, before: Sight, path: str, result: Any) -> Rules:
    settings = result.get("settings") or {}
    policy = settings.get("cleanup.policy", {}).get("value", [])
    committed = _entry(before, path, "replication-offset-checkpoint")
    cleans = result["status"] in ("cleaned", "failed")
    if committed is None and not execution.to_the_end:
        cleans = False
    deletes = "delete" in policy
    start = _entry(before, path, "log-start-offset-checkpoint") or 0
    return Rules(
        now_ms=scene.now_ms,
        cleans=cleans,
        expires=cleans and (deletes or start > 0),
        committed=committed,
        active=before.logs[path].active,
        drop_keyless=execution.drop_keyless,
        retention_ms=_number(settings, "retention.ms", -1) if deletes else -1,
        retention_bytes=_number(settings, "retention.bytes", -1) if deletes else -1,
        delete_retention_ms=_number(settings, "delete.retention.ms", 86_400_000),
        log_start=start,
        doubtful=scene.doubtful,
        snapshots_hold=scene.snapshots_hold,
    )


def _judge_cleaning(scene: Scene, execution: Execution, before: Sight, after: Sight) -> list[str]:
    problems = []
    for path, log in before.logs.items():
        result = execution.results.get(path)
        now = after.logs.get(path) or Log(path=Path(path), segments={}, odd=[])
        name = Path(path).name
        if result is None:
            if execution.interrupted and scene.base.from_metadata:
                continue  # its settings are known to the run only
            if execution.interrupted:
                result = {"status": "failed", "settings": {}}
            else:
                problems += _unchanged(before, after, path, f"{name}: nothing was reported of it, but")
                continue
        rules = _cleaning_rules(scene, execution, before, path, result)
        if _swap_is_under_way(scene, before, path):
            continue
        if execution.interrupted and topic_of(Path(path)) in scene.base.topics:
            rules = _interrupted(scene, execution, before, path, rules)
        problems += [f"{name}: {problem}" for problem in oracle.problems(log, now, rules)]
        expires = "producer.id.expiration.ms" in scene.broker_config
        if rules.cleans and scene.snapshots_hold and not (scene.doubtful or expires) and log.ascends:
            live = oracle.live_batches(log, now, rules, PRODUCER_EXPIRATION_MS)
            problems += [f"{name}: {problem}" for problem in live] if not rules.expires else []
        # A segment that is too wide is split, and a swap finished, before it is looked whether to clean.
        put_in_order = _has_leftovers(before, path) or scene.base.name == "made/wide"
        if not rules.cleans and not put_in_order:
            problems += _unchanged(before, after, path, f"{name}: {result['status']}, but")
    return problems


def _swap_is_under_way(scene: Scene, sight: Sight, path: str) -> bool:
    """Of a real broker: what is not in its place yet counts, too, which the tests of golden swaps look at."""
    return scene.base.name.startswith("recovery/") and _has_leftovers(sight, path)


def _interrupted(scene: Scene, execution: Execution, before: Sight, path: str, rules: Rules) -> Rules:
    """The first run may have done anything that cleaning may do; its settings are those of the scene."""
    policy = scene.config.get("cleanup.policy", "")
    deletes = "delete" in policy
    return Rules(
        now_ms=rules.now_ms,
        cleans=rules.committed is not None or execution.to_the_end,
        expires=deletes or rules.log_start > 0,
        committed=rules.committed,
        active=rules.active,
        drop_keyless=rules.drop_keyless,
        retention_ms=_text_number(scene, "retention.ms") if deletes else -1,
        retention_bytes=_text_number(scene, "retention.bytes") if deletes else -1,
        delete_retention_ms=_text_number(scene, "delete.retention.ms", 86_400_000),
        log_start=rules.log_start,
        doubtful=rules.doubtful,
        settings_known=not scene.extreme_settings,
        twice=True,
    )


def _text_number(scene: Scene, name: str, default: int = -1) -> int:
    try:
        return int(scene.config[name])
    except (KeyError, ValueError):
        return default


def _has_leftovers(sight: Sight, path: str) -> bool:
    folder = sight.facts[str(Path(path).parent)]
    name = Path(path).name
    return any(file.startswith(f"{name}/") and file.endswith(_LEFTOVER) for file in folder)


def _unchanged(before: Sight, after: Sight, path: str, why: str) -> list[str]:
    folder, below = str(Path(path).parent), f"{Path(path).name}/"
    earlier, later = _lasting(before.facts[folder], below=below), _lasting(after.facts[folder], below=below)
    if earlier == later:
        return []
    return [f"{why} it changed: {_difference(_padded(earlier), _padded(later))}"]


def _padded(lasting: dict[str, tuple[int, bytes | str]]) -> dict[str, Facts]:
    return {name: (mode, 0, 0, 0, content) for name, (mode, content) in lasting.items()}


def _judge_copy(scene: Scene, execution: Execution, before: Sight, after: Sight) -> list[str]:
    problems = _judge_looking(scene, execution, before, after)
    if execution.out is None or not execution.out.is_dir():
        return problems
    for path, result in execution.results.items():
        if path not in before.logs:
            continue
        name = Path(path).name
        if result.get("status") == "failed" and "left out of the copy" in str(result.get("reason")):
            if (execution.out / name).exists():
                problems.append(f"copy of {name}: is there, though it was left out")
            continue
        rules = _cleaning_rules(scene, execution, before, path, result)
        copied = plain.read(execution.out / name)
        if not copied.segments and not before.logs[path].segments:
            continue
        problems += [
            f"copy of {name}: {problem}" for problem in oracle.problems(before.logs[path], copied, rules)
        ]
    return problems


def _judge_undone(scene: Scene, execution: Execution, before: Sight, after: Sight) -> list[str]:
    problems = []
    for path, log in before.logs.items():
        now = after.logs.get(path)
        if _has_leftovers(before, path) or scene.base.name == "made/wide":
            continue
        status = execution.results.get(path, {}).get("status")
        expired = execution.results.get(path, {}).get("removed", {}).get("expired")
        if status == "cleaned" and not expired and (now is None or now.logs() != log.logs()):
            problems.append(f"{Path(path).name}: undo did not bring back what was there")
    return problems


def _judge_recovery(scene: Scene, execution: Execution, before: Sight, after: Sight) -> list[str]:
    problems = []
    for path, log in before.logs.items():
        result = execution.results.get(path, {})
        now = after.logs.get(path) or Log(path=Path(path), segments={}, odd=[])
        cut = bool(result.get("truncated_bytes") or result.get("removed_files") or result.get("reason"))
        refused = result.get("status") in ("refused", "skipped") or not result
        point = _entry(before, path, "recovery-point-offset-checkpoint") or 0
        rules = Rules(
            now_ms=scene.now_ms,
            cuts=not refused,
            reported_cut=cut,
            recovery_point=point,
            log_start=_entry(before, path, "log-start-offset-checkpoint") or 0,
            doubtful=scene.doubtful,
        )
        if _swap_is_under_way(scene, before, path):
            continue
        problems += [f"{Path(path).name}: {problem}" for problem in oracle.problems(log, now, rules)]
    return problems


def _judge_opened(scene: Scene, execution: Execution, before: Sight, after: Sight) -> list[str]:
    problems = []
    for path, log in before.logs.items():
        now = after.logs.get(path) or Log(path=Path(path), segments={}, odd=[])
        if _swap_is_under_way(scene, before, path):
            continue
        cleans = execution.to_the_end
        rules = Rules(
            now_ms=scene.now_ms + commands.LATER_MS,
            cleans=cleans,
            cuts=True,
            reported_cut=True,
            expires=True,
            appends=True,
            drop_keyless=True,
            log_start=_entry(before, path, "log-start-offset-checkpoint") or 0,
            recovery_point=_entry(before, path, "recovery-point-offset-checkpoint") or 0,
            doubtful=scene.doubtful or scene.base.from_metadata,
            settings_known=False,
        )
        if scene.base.from_metadata and cleans:
            continue
        problems += [f"{Path(path).name}: {problem}" for problem in oracle.problems(log, now, rules)]
    return problems


def _judge_compaction(scene: Scene, execution: Execution, before: Sight, after: Sight) -> list[str]:
    """Only recovery, and what lies beside the originals."""
    return [
        f"{Path(path).name}: the originals changed"
        for path, log in before.logs.items()
        if path not in after.logs or after.logs[path].logs() != log.logs()
    ]


def _judge_looking(scene: Scene, execution: Execution, before: Sight, after: Sight) -> list[str]:
    problems = []
    for folder, facts in before.facts.items():
        if facts != after.facts[folder] and _changed_but_the_lock(facts, after.facts[folder], execution):
            problems.append(f"it only looks, but changed: {_difference(facts, after.facts[folder])}")
    for name, rows in execution.rows.items():
        for path, log in before.logs.items():
            if Path(path).name == name:
                problems += [f"{name}: {problem}" for problem in _read_problems(scene, log, rows)]
    return problems


def _changed_but_the_lock(earlier: dict[str, Facts], later: dict[str, Facts], execution: Execution) -> bool:
    """A copy's source is locked while it is read."""
    if execution.kind != COPIES:
        return True
    names = {name for name in {*earlier, *later} if earlier.get(name) != later.get(name)}
    return bool(names - {".lock"})


def _read_problems(scene: Scene, log: Log, rows: list[dict[str, Any]]) -> list[str]:
    """Every row is a record as it is stored; no row is of an aborted transaction, unless what a reader goes
    by was attacked: as in Kafka that is the ``.txnindex``."""
    touched = any("txnindex" in text for text in (scene.base.name, *scene.attacked))
    trusted = not touched and scene.snapshots_hold and not scene.doubtful and log.ascends
    problems: list[str] = []
    for row in rows if log.ascends else ():
        record = log.records.get(row["offset"])
        if record is None:
            problems.append(f"row of offset {row['offset']}, which is not there")
        elif (record.key, record.value) != (row["key"], row["value"]):
            problems.append(f"offset {row['offset']} reads as {row['key']!r}, {str(row['value'])[:40]!r}")
        elif trusted and log.states.get(row["offset"]) in (plain.ABORTED, plain.OPEN):
            problems.append(
                f"offset {row['offset']} of a transaction that is {log.states[row['offset']]} was read"
            )
        if len(problems) > oracle.MAX_LISTED:
            break
    return problems


_JUDGES = {
    CLEANS: _judge_cleaning,
    COPIES: _judge_copy,
    "undone": _judge_undone,
    RECOVERS: _judge_recovery,
    OPENS: _judge_opened,
    COMPACTS: _judge_compaction,
    LOOKS: _judge_looking,
}


def describe(verdict: Verdict, case: Case) -> str:
    """A case that failed, for people: its text first."""
    lines = [f"CASE='{case}'", f"  {verdict.summary}"]
    for problem in verdict.problems:
        lines += [f"    {line}" for line in problem.splitlines()]
    return "\n".join(lines)


def as_json(value: object) -> str:
    """One line for the pipe between a worker and the room."""
    return json.dumps(value)
