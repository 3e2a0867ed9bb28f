"""Both ways in which the stages of a job may run: in an exchange stage, or with shuffles."""

import pytest

from siltstone.spark.jobs import EXCHANGE_STAGE_BYTES

WAYS = [pytest.param(EXCHANGE_STAGE_BYTES, id="exchange"), pytest.param(0, id="shuffles")]
