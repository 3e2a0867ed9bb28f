"""Both ways in which the stages of a job may run: in a barrier stage, or with shuffles."""

import pytest

from siltstone.spark.jobs import BARRIER_BYTES

WAYS = [pytest.param(BARRIER_BYTES, id="barrier"), pytest.param(0, id="shuffles")]
