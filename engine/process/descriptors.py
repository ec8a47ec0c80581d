"""File descriptors: raises the soft limit of this process, and says how many of them connections may take."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger("tandem.service")

WANTED = 65_536
"""More than the engine and its connections use; some systems allow a billion, which costs tables and gains nothing."""

RESERVE = 256
"""Kept for everything but connections: the model's files, the ledger, the log, compilers, `/proc`."""

MOST_CONNECTIONS = 4096
"""By default. Each costs some 20 KiB here, and up to half a MiB in the kernel while its client does not read."""


def raise_limit() -> None:
    """Raise the soft limit towards the hard one, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        # macOS says "no limit" and takes less.
        log.warning("file descriptors: the soft limit stays at %d, %d is refused (%s)", soft, wanted, error)
        return
    log.info("file descriptors: soft limit raised from %d to %d", soft, wanted)


def soft_limit() -> int:
    """The limit in force; `WANTED` where there is none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft == resource.RLIM_INFINITY else soft


def connections_within(limit: int) -> int:
    """How many connections a process with `limit` descriptors takes: a reserve stays free, half of a small limit."""
    return max(1, min(MOST_CONNECTIONS, limit - min(RESERVE, limit // 2)))
