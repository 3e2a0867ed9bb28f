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

from siltstone.base.files.appending import (
    Appender as Appender,
)
from siltstone.base.files.appending import (
    FileSlice as FileSlice,
)
from siltstone.base.files.locking import (
    Flock as Flock,
)
from siltstone.base.files.locking import (
    Lock as Lock,
)
from siltstone.base.files.locking import (
    is_locked as is_locked,
)
from siltstone.base.files.operations import (
    DIRECTORY as DIRECTORY,
)
from siltstone.base.files.operations import (
    FILE as FILE,
)
from siltstone.base.files.operations import (
    LINK as LINK,
)
from siltstone.base.files.operations import (
    Entry as Entry,
)
from siltstone.base.files.operations import (
    FileMark as FileMark,
)
from siltstone.base.files.operations import (
    FileStat as FileStat,
)
from siltstone.base.files.operations import (
    Operation as Operation,
)
from siltstone.base.files.operations import (
    Reader as Reader,
)
from siltstone.base.files.operations import (
    Writer as Writer,
)
from siltstone.base.files.operations import (
    copy as copy,
)
from siltstone.base.files.operations import (
    copy_attributes as copy_attributes,
)
from siltstone.base.files.operations import (
    entries as entries,
)
from siltstone.base.files.operations import (
    exists as exists,
)
from siltstone.base.files.operations import (
    inherit_owner as inherit_owner,
)
from siltstone.base.files.operations import (
    is_directory as is_directory,
)
from siltstone.base.files.operations import (
    is_link as is_link,
)
from siltstone.base.files.operations import (
    link as link,
)
from siltstone.base.files.operations import (
    make_directory as make_directory,
)
from siltstone.base.files.operations import (
    observe as observe,
)
from siltstone.base.files.operations import (
    read_bytes as read_bytes,
)
from siltstone.base.files.operations import (
    read_input as read_input,
)
from siltstone.base.files.operations import (
    remove_directory as remove_directory,
)
from siltstone.base.files.operations import (
    remove_tree as remove_tree,
)
from siltstone.base.files.operations import (
    rename as rename,
)
from siltstone.base.files.operations import (
    replace as replace,
)
from siltstone.base.files.operations import (
    set_modified as set_modified,
)
from siltstone.base.files.operations import (
    sha256 as sha256,
)
from siltstone.base.files.operations import (
    stat as stat,
)
from siltstone.base.files.operations import (
    sync_directory as sync_directory,
)
from siltstone.base.files.operations import (
    sync_file as sync_file,
)
from siltstone.base.files.operations import (
    sync_files as sync_files,
)
from siltstone.base.files.operations import (
    tree_size as tree_size,
)
from siltstone.base.files.operations import (
    unlink as unlink,
)
from siltstone.base.files.operations import (
    why_not_our_folder as why_not_our_folder,
)
from siltstone.base.files.operations import (
    write_new as write_new,
)
from siltstone.base.files.places import (
    NETWORK_FILE_SYSTEMS as NETWORK_FILE_SYSTEMS,
)
from siltstone.base.files.places import (
    Space as Space,
)
from siltstone.base.files.places import (
    errors_into as errors_into,
)
from siltstone.base.files.places import (
    file_system as file_system,
)
from siltstone.base.files.places import (
    find_program as find_program,
)
from siltstone.base.files.places import (
    list_all as list_all,
)
from siltstone.base.files.places import (
    list_files as list_files,
)
from siltstone.base.files.places import (
    mapped as mapped,
)
from siltstone.base.files.places import (
    read_slice as read_slice,
)
from siltstone.base.files.places import (
    silence_output as silence_output,
)
from siltstone.base.files.places import (
    space as space,
)
from siltstone.base.files.places import (
    temporary_directory as temporary_directory,
)
from siltstone.base.files.places import (
    temporary_file as temporary_file,
)
from siltstone.base.files.places import (
    zip_package as zip_package,
)
