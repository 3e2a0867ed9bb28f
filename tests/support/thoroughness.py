"""How often a run of the tests repeats what is random or the same step again.

``make test`` tries a share, ``make test-long`` (``SILTSTONE_TESTS=thorough``) all examples and images, and
``make crash`` (``SILTSTONE_CRASH=all``) every crash point with many more images. What a log's own operations,
a clean and a swap leave is tried at every operation by ``make test`` too; a share is for random images, and
for what repeats the same steps with something besides.
"""

from __future__ import annotations

import os

ALL = os.environ.get("SILTSTONE_CRASH") == "all"
THOROUGH = ALL or os.environ.get("SILTSTONE_TESTS") == "thorough"

SEEDS = range(3 if THOROUGH else 1)
"""Of the random images of a disk after a crash, beside those that keep or drop all that was not synced."""


def boundaries(total: int, stride: int = 1) -> range:
    """The operations, of ``total``, before which to crash: all, or every ``stride``-th."""
    return range(0, total, 1 if ALL else stride)


def examples(count: int) -> int:
    """How many examples a random test tries, of the ``count`` that it tries when it is thorough."""
    return count if THOROUGH else max(count // 4, 5)
