"""Where tests that make thousands of small trees put them."""

import shutil
from pathlib import Path

_MEMORY = Path("/dev/shm")
_ROOM = 1 << 30

FOLDER = str(_MEMORY) if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM else None
"""A file system in memory where there is one with room, else None: the usual place for temporary files."""
