"""Whether this user's services outlive the login: systemd ends them with the last session unless the user lingers."""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from pathlib import Path

SYSTEMD = Path("/run/systemd/system")
LINGERING = Path("/var/lib/systemd/linger")


@dataclass(frozen=True, slots=True)
class Linger:
    """`lingers` is None where systemd does not run this box."""

    user: str
    lingers: bool | None

    @property
    def fix(self) -> str:
        return f"sudo loginctl enable-linger {self.user}"


def linger(*, systemd: Path = SYSTEMD, lingering: Path = LINGERING) -> Linger:
    """What holds for this process's user."""
    user = getpass.getuser()
    return Linger(user, (lingering / user).exists() if systemd.is_dir() else None)
