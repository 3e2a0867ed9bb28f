"""``siltstone dump``: placeholder until the command lands."""
from pathlib import Path


def dump(files: list[Path]) -> int:
    """Dump files."""
    return 2
