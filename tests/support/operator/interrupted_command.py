"""``siltstone`` that stops at a stage until a signal comes; a script, run by ``interrupting``.

Arguments: the stage, a file that is made when it is reached, then the command's own. Tasks that are to hold
do their work first, so that what they stage is there, and wait then.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HELD_SECONDS = 120


def held(task: Callable[..., Any], marker: str) -> Callable[..., Any]:
    """A task that does its work and then lasts; handed to workers by value."""

    def holding(*arguments: Any) -> Iterator[Any]:
        rows = list(task(*arguments))
        if rows:
            Path(marker).touch()
            time.sleep(HELD_SECONDS)
        yield from rows

    return holding


def while_java_starts(marker: str) -> None:
    """Java has been started."""
    from siltstone.spark import java

    start: Any = java.start

    def started(*arguments: Any, **keywords: Any) -> Any:
        process = start(*arguments, **keywords)
        Path(marker).touch()
        return process

    java.start = started  # type: ignore[assignment]


def while_spark_starts(marker: str) -> None:
    """Java runs, its SparkContext is about to be made."""
    from pyspark import SparkContext

    begin: Any = SparkContext._do_init  # type: ignore[attr-defined]

    def beginning(*arguments: Any, **keywords: Any) -> Any:
        Path(marker).touch()
        return begin(*arguments, **keywords)

    SparkContext._do_init = beginning  # type: ignore[attr-defined]


def while_kernels_compile(marker: str) -> None:
    """numba is at work."""
    from numba.core import compiler

    compile_extra: Any = compiler.compile_extra

    def compiling(*arguments: Any, **keywords: Any) -> Any:
        Path(marker).touch()
        return compile_extra(*arguments, **keywords)

    compiler.compile_extra = compiling


def while_swapping(marker: str) -> None:
    """A log's new segments are about to be swapped in, which lasts a while."""
    from siltstone.compaction.inplace import destination

    replace: Any = destination.replace_segments

    def replacing(*arguments: Any, **keywords: Any) -> Any:
        Path(marker).touch()
        time.sleep(0.7)
        return replace(*arguments, **keywords)

    destination.replace_segments = replacing


def spread() -> None:
    """All logs go over all workers, as if they were large."""
    from siltstone.commands import clean as app
    from siltstone.compaction import explain as explaining

    app.RunLimits = functools.partial(app.RunLimits, whole_log_bytes=0)  # type: ignore[assignment, misc]
    explaining.WHOLE_LOG_BYTES = 0


def hold(module: Any, name: str, marker: str) -> None:
    """Let a task of a module last."""
    setattr(module, name, held(getattr(module, name), marker))


def at_task(stage: str, marker: str) -> None:
    """``extract_task``, …: of the cleaner, which ``explain`` runs as well, or of the compaction."""
    from siltstone.spark import clean, compact

    module = compact if stage == "compact_whole_task" else clean
    if stage != "clean_whole_task":
        spread()
    hold(module, stage, marker)


def while_recovering(marker: str) -> None:
    """A log's recovery lasts a while, in a thread of its own."""
    from siltstone.log.recovery import directories

    recover: Any = directories.recover_partition

    def recovering(*arguments: Any, **keywords: Any) -> Any:
        Path(marker).touch()
        time.sleep(1.0)
        return recover(*arguments, **keywords)

    directories.recover_partition = recovering


STAGES = {
    "java": while_java_starts,
    "spark": while_spark_starts,
    "kernels": while_kernels_compile,
    "swap": while_swapping,
    "recovery": while_recovering,
}


def main() -> None:
    from siltstone.cli import main as cli
    from siltstone.commands import engines

    engines.SPARK_BYTES = 0  # the logs are small; Spark is what is interrupted
    stage, marker = sys.argv[1:3]
    del sys.argv[1:3]
    if stage in STAGES:
        STAGES[stage](marker)
    elif stage == "started":
        Path(marker).touch()
    else:
        at_task(stage, marker)
    cli.main()


if __name__ == "__main__":
    main()
