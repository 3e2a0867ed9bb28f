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

# ruff: noqa: I001 - one import a module, each name once

from __future__ import annotations

from siltstone.base.files.appending import (
    Appender as Appender,
    FileSlice as FileSlice,
)
from siltstone.base.files.locking import (
    Flock as Flock,
    Lock as Lock,
    is_locked as is_locked,
)
from siltstone.base.files.operations import (
    DIRECTORY as DIRECTORY,
    FILE as FILE,
    LINK as LINK,
    Entry as Entry,
    FileMark as FileMark,
    FileStat as FileStat,
    Operation as Operation,
    Reader as Reader,
    Writer as Writer,
    copy as copy,
    copy_attributes as copy_attributes,
    entries as entries,
    exists as exists,
    inherit_owner as inherit_owner,
    is_directory as is_directory,
    is_link as is_link,
    link as link,
    make_directory as make_directory,
    observe as observe,
    read_bytes as read_bytes,
    read_input as read_input,
    remove_directory as remove_directory,
    remove_tree as remove_tree,
    rename as rename,
    replace as replace,
    set_modified as set_modified,
    sha256 as sha256,
    stat as stat,
    sync_directory as sync_directory,
    sync_file as sync_file,
    sync_files as sync_files,
    tree_size as tree_size,
    unlink as unlink,
    why_not_our_folder as why_not_our_folder,
    write_new as write_new,
)
from siltstone.base.files.places import (
    NETWORK_FILE_SYSTEMS as NETWORK_FILE_SYSTEMS,
    Space as Space,
    errors_into as errors_into,
    file_system as file_system,
    find_program as find_program,
    list_all as list_all,
    list_files as list_files,
    mapped as mapped,
    read_slice as read_slice,
    silence_output as silence_output,
    space as space,
    temporary_directory as temporary_directory,
    temporary_file as temporary_file,
    zip_package as zip_package,
)
