"""What a task's function does in a Python process of Spark, without Spark."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest

from siltstone.base import files
from siltstone.base.errors import SourceChangedError
from siltstone.spark.tasks import in_worker, worker_task


def failing_task(error: Exception, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise error


@pytest.mark.parametrize("is_worker", [True, False])
@pytest.mark.parametrize(
    ("error", "is_expected"),
    [
        (SourceChangedError("it grew", path="users-0"), True),
        (FileNotFoundError(2, "No such file", "0.log"), True),
        (AssertionError("a bug"), False),
    ],
)
def test_only_an_expected_error_of_a_worker_loses_its_traceback(
    error: Exception, is_expected: bool, is_worker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER" if is_worker else "")
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    batch = pa.RecordBatch.from_pydict({"id": [1]})
    rows = in_worker(files.configured(), failing_task, error, [batch])
    assert next(rows) is batch and not os.environ["SPARK_HIDE_TRACEBACK"]
    with pytest.raises(type(error)) as raised:
        next(rows)
    assert raised.value is error
    assert bool(os.environ["SPARK_HIDE_TRACEBACK"]) == (is_worker and is_expected)
    code = ["code: SOURCE_CHANGED"] if isinstance(error, SourceChangedError) else []
    assert getattr(error, "__notes__", []) == code
    error.__notes__ = []


def test_a_task_has_the_name_that_a_plan_shows() -> None:
    partial = functools.partial(failing_task, AssertionError())
    names = [worker_task(task).__name__ for task in (failing_task, partial)]
    assert names == ["failing_task", "failing_task"]
    assert worker_task(failing_task, name="siltstone /data users").__name__ == "siltstone /data users"
