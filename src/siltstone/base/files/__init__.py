"""The only door to the file system.

Every read, write, fsync, rename and unlink of Siltstone happens in this package, so that one place shows
what is durable when, and the crash tests can stand in the way of each step: ``observe`` installs a
function that is called before every operation that changes something.

Rules that the callers keep: a new file is written, fsynced, then its directory is synced; a file is
replaced through a temporary file, fsync, rename, directory sync; a pointer is written only after what
it points to is durable. A failed fsync is never tried again.

What is promised about symbolic links, also when root works in a tree whose owner changes it meanwhile:

- Nothing that makes, changes, renames or removes something follows a link of that name. Files are made with
  ``O_EXCL`` and ``O_NOFOLLOW``; owner, mode, times and extended attributes are set on an open file or on the
  name itself; ``remove_tree`` removes links and refuses a tree that is one.
- On the way there a link is followed only when root or the user who runs us made it (``base.files.parents``):
the
  directory is opened first, then the operation done in it, so nothing can be swapped between the two.
- A file that is given away to another owner has one name only: it is the one that we made.
- Readers follow links, for paths that people name; what is in a log directory is listed without them.
"""

from __future__ import annotations

from siltstone.base.files.appending import Appender, FileSlice
from siltstone.base.files.locking import Flock, Lock, is_locked
from siltstone.base.files.operations import (
    DIRECTORY,
    FILE,
    LINK,
    Entry,
    FileMark,
    FileStat,
    Operation,
    Reader,
    Writer,
    copy,
    copy_attributes,
    entries,
    exists,
    inherit_owner,
    is_directory,
    is_link,
    link,
    make_directory,
    observe,
    read_bytes,
    read_input,
    remove_directory,
    remove_tree,
    rename,
    replace,
    set_modified,
    sha256,
    stat,
    sync_directory,
    sync_file,
    sync_files,
    tree_size,
    unlink,
    why_not_our_folder,
    write_new,
)
from siltstone.base.files.places import (
    NETWORK_FILE_SYSTEMS,
    Space,
    errors_into,
    file_system,
    find_program,
    list_all,
    list_files,
    mapped,
    read_slice,
    silence_output,
    space,
    temporary_directory,
    temporary_file,
    zip_package,
)

__all__ = [
    "DIRECTORY",
    "FILE",
    "LINK",
    "NETWORK_FILE_SYSTEMS",
    "Appender",
    "Entry",
    "FileMark",
    "FileSlice",
    "FileStat",
    "Flock",
    "Lock",
    "Operation",
    "Reader",
    "Space",
    "Writer",
    "copy",
    "copy_attributes",
    "entries",
    "errors_into",
    "exists",
    "file_system",
    "find_program",
    "inherit_owner",
    "is_directory",
    "is_link",
    "is_locked",
    "link",
    "list_all",
    "list_files",
    "make_directory",
    "mapped",
    "observe",
    "read_bytes",
    "read_input",
    "read_slice",
    "remove_directory",
    "remove_tree",
    "rename",
    "replace",
    "set_modified",
    "sha256",
    "silence_output",
    "space",
    "stat",
    "sync_directory",
    "sync_file",
    "sync_files",
    "temporary_directory",
    "temporary_file",
    "tree_size",
    "unlink",
    "why_not_our_folder",
    "write_new",
    "zip_package",
]
