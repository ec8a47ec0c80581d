"""Folders and files that are their owner's alone: mode 700 and 600, links inside never followed."""

from __future__ import annotations

import errno
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("tandem.service")

FOLDER_MODE, FILE_MODE = 0o700, 0o600
OTHERS = 0o077


def make_private(folder: Path) -> None:
    """Make the folder where it is absent, with mode 700; narrow a wider one, and say so in the log. One of another user
    is left as it is: that user can read and replace what is in it whatever its mode. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=FOLDER_MODE)
    found = folder.stat()
    mode = stat.S_IMODE(found.st_mode)
    if not mode & OTHERS:
        return
    if found.st_uid != os.geteuid():
        log.warning("the folder %s belongs to user %d and has mode %o", folder, found.st_uid, mode)
        return
    folder.chmod(FOLDER_MODE)
    log.warning("the folder %s had mode %o and let other users in; it has 700 now", folder, mode)


def open_private(path: Path, flags: int) -> int:
    """A descriptor of the file at `path`, made with mode 600 where `flags` make it; a wider one that is opened for
    writing is narrowed. Raises OSError, also for a link and for what is no regular file."""
    try:
        # Without waiting: a named pipe in the file's place would hold up whoever opens it.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, FILE_MODE)
    except OSError as why:
        if why.errno == errno.ELOOP:
            raise link_refused(path) from None
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file; move it away", str(path))
        if flags & (os.O_WRONLY | os.O_RDWR) and found.st_mode & OTHERS and found.st_uid == os.geteuid():
            os.fchmod(descriptor, FILE_MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_private(path: Path) -> bytes:
    """What is in the file. Raises OSError, also for a link."""
    with os.fdopen(open_private(path, os.O_RDONLY), "rb") as file:
        return file.read()


def write_private(path: Path, body: bytes) -> None:
    """Write the file whole or not at all; a link in its place is replaced, not followed. Raises OSError."""
    draft = path.with_name(path.name + ".new")
    try:
        draft.unlink(missing_ok=True)
        with os.fdopen(open_private(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(body)
        draft.replace(path)
    except OSError:
        # A full disk may have taken a part of it.
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def narrow(path: Path) -> None:
    """Give an existing file mode 600. Raises OSError."""
    os.close(open_private(path, os.O_WRONLY))


def refuse_links(folder: Path, names: tuple[str, ...]) -> None:
    """Raises OSError where a file of the folder whose name begins with one of `names` is a link: what others then find
    in its place would be read or overwritten as ours."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.startswith(names) and entry.is_symlink():
                raise link_refused(Path(entry.path))


def link_refused(path: Path) -> OSError:
    return OSError(errno.ELOOP, f"{path.name} is a symbolic link, which is not followed; move it away", str(path))
