"""Both ways in which the stages of a job may run: together while logs are small enough, or never."""

import pytest

from siltstone.spark.jobs import TOGETHER_BYTES

WAYS = [pytest.param(TOGETHER_BYTES, id="together"), pytest.param(0, id="apart")]
