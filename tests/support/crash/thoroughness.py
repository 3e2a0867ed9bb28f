"""How many crash points a run of the tests tries: a share of them in CI, every one with ``make crash``.

What a log's own operations, a clean and a swap leave is tried at every boundary in CI too; a share is for
what repeats the same steps with something besides.
"""

from __future__ import annotations

import os

ALL = os.environ.get("SILTSTONE_CRASH") == "all"


def boundaries(total: int, stride: int = 1) -> range:
    """The operations, of ``total``, before which to crash: all, or every ``stride``-th."""
    return range(0, total, 1 if ALL else stride)
