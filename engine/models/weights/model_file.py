"""A model file that is open for loading: reads into memory of the process's own, and says when the file changed.

Nothing maps the file. A mapping would show what others write into it while the engine serves, and a file that is cut
short would end the process with SIGBUS; a read comes back short instead, which is an error with a name.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.models.weights.errors import DamagedModel

READ_AT_ONCE = 1 << 30
"""Bytes asked of one system call; Linux gives up to 2 GiB."""


class ModelFile:
    """The file behind `path` as it was when it was opened; closed by `close`, or with the last reference.

    A file that is replaced by rename is another file, which this one never sees. Raises OSError where the file cannot
    be opened or read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._finalizer = weakref.finalize(self, os.close, self._fd)
        stat = os.fstat(self._fd)
        self.bytes = stat.st_size
        self.modified = stat.st_mtime
        self._opened = (stat.st_size, stat.st_mtime_ns)

    def read(self, offset: int, size: int) -> NDArray[np.uint8]:
        """`size` bytes from `offset`. Raises DamagedModel where the file ends before."""
        out = np.empty(size, np.uint8)
        view, done = out.data, 0
        while done < size:
            got = os.preadv(self._fd, [view[done : done + READ_AT_ONCE]], offset + done)
            if not got:
                self.check_unchanged()
                raise DamagedModel(
                    f"{self.path}: the file ends at byte {offset + done}, {size - done} more were expected"
                )
            done += got
        return out

    def check_unchanged(self) -> None:
        """Raises DamagedModel where the file was written to since it was opened."""
        stat = os.fstat(self._fd)
        if (stat.st_size, stat.st_mtime_ns) == self._opened:
            return
        sizes = f"{self.bytes} bytes before, {stat.st_size} now" if stat.st_size != self.bytes else "of the same size"
        raise DamagedModel(f"{self.path}: the file changed while it was loaded ({sizes}); start again once it is whole")

    def close(self) -> None:
        """Close the file now, whoever still refers to it: a later read raises OSError."""
        self._fd = -1
        self._finalizer()

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Whatever is read inside came from one state of the file. Raises DamagedModel, also in place of another error,
        where the file changed meanwhile."""
        try:
            yield
        finally:
            self.check_unchanged()
