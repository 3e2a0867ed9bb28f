"""Unpacks the project's data archives with file times kept to the nanosecond.

The cleaner decides by file times, and the standard library restores them through a float, which loses the
last digits; here they come from the archive's own text. Only plain files and directories are accepted.
"""

import os
import tarfile
from pathlib import Path, PurePosixPath


def mtime_ns(member: tarfile.TarInfo) -> int:
    """The modification time of an archive member in nanoseconds, exactly as the archive states it."""
    text = member.pax_headers.get("mtime", str(int(member.mtime)))
    seconds, _, fraction = text.partition(".")
    return int(seconds) * 1_000_000_000 + int(fraction[:9].ljust(9, "0"))


def target_path(destination: Path, name: str) -> Path:
    """Where a member goes; refuses a name that would leave the destination."""
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        raise ValueError(f"{name}: leaves the directory it is unpacked to")
    return destination.joinpath(relative)


def unpack(archive: Path, destination: Path) -> None:
    """Unpack a compressed tar archive into a directory, which is made where it is missing."""
    destination.mkdir(parents=True, exist_ok=True)
    directories: list[tuple[Path, int]] = []
    with tarfile.open(archive) as members:
        for member in members:
            path = target_path(destination, member.name)
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
                directories.append((path, mtime_ns(member)))
            elif member.isfile():
                write_member(members, member, path)
            else:
                raise ValueError(f"{archive}: {member.name} is neither a file nor a directory")
    for path, time_ns in reversed(directories):
        os.utime(path, ns=(time_ns, time_ns))


def write_member(members: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """Write one file of the archive with its mode and its time."""
    content = members.extractfile(member)
    assert content is not None, member.name
    path.write_bytes(content.read())
    path.chmod(member.mode & 0o777)
    os.utime(path, ns=(mtime_ns(member), mtime_ns(member)))
