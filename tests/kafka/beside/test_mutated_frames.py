"""Thousands of frames with wrong bytes: we close where Kafka does, else the codes are the same."""

from __future__ import annotations

import os

import pytest

from tests.support.broker_twin.mutations import TOPIC, mutated, outcome
from tests.support.broker_twin.pair import BOTH, Pair
from tests.support.broker_twin.side import Side

pytestmark = [pytest.mark.kafka, pytest.mark.long]

SEED = int(os.environ.get("SILTSTONE_SEED", "26"))
FRAMES = 5000


def test_both_brokers_answer_mutated_frames_alike(pair: Pair) -> None:
    for which in BOTH:
        side = Side(pair.bootstrap[which])
        side.create(TOPIC, 2)
        side.close()
    for sent in mutated(SEED, FRAMES):
        kafka, ours = (outcome(pair.bootstrap[which], sent) for which in BOTH)
        assert ours == kafka, f"seed {SEED}: API {sent.key} version {sent.version}: {sent.frame.hex()}"
