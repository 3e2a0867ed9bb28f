"""What is cleaned ahead, so that a first cleaning finds its kernels: all that a second pass calls, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
from pathlib import Path
from siltstone.compaction import broadcast, keys, rewrite
from siltstone.base.records import hashing
from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.engine import clean_warm_up_log
from siltstone.base.records import decode

clean_warm_up_log(Path(sys.argv[1]), InProcessEngine(), InProcessEngine(2))
kernels = (
    keys.put_into_shards, keys.close_gaps_between_shards, keys._merge, keys._dedupe_shards,
    keys.fill_hash_table,
    hashing.siphash128_each,
    rewrite.decide_retention, rewrite.write_batches, rewrite.check_offsets, decode._decode_batches,
    broadcast._set_bits, broadcast._find_suspects, broadcast._look_up,
)
print(*(kernel.py_func.__name__ for kernel in kernels if not kernel.signatures))
"""


def test_every_kernel_that_a_cleaning_calls_is_loaded(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    assert completed.stdout.split() == []
