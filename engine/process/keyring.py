"""The secrets that open an engine: labelled API keys and two tokens, held as digests in one file of mode 600.

The file is JSON that `tandem secrets` writes. A running engine reads it again as soon as it changes, so a new key or a
rotation holds from the next request on. A digest is SHA-256: the keys are random, so nothing slower is needed.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.process.listening import HostNotAllowed, is_loopback

log = logging.getLogger("tandem.keys")

ADMIN, METRICS = "admin", "metrics"
TOKENS = (ADMIN, METRICS)
"""Labels that are no API keys: the token for the engine's controls, and the one for what it tells about itself."""

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SAFE_MODE = 0o600

LAST = 253402300799.0
"""The last second of the year 9999 in Unix time: beyond it a moment has no date."""

Signature = tuple[int, int, int]


class SecretsUnusable(Exception):
    """The file of secrets cannot be used. The message names it, and the fix; never what is in it."""


class Secret(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One secret: whose it is, its digest in hex, when it was made and until when it holds (Unix seconds)."""

    label: str
    sha256: str
    made: float
    until: float | None = None

    def __post_init__(self) -> None:
        if not LABEL.fullmatch(self.label):
            raise ValueError("a label has 1 to 64 letters, digits, dots, dashes and underscores")
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise ValueError("a digest has 64 hex digits")
        if not all(0 <= moment <= LAST for moment in (self.made, self.until or 0.0)):
            raise ValueError("`made` and `until` are Unix seconds from 1970 to 9999")

    def holds(self, now: float) -> bool:
        return self.until is None or now < self.until


class SecretsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    secrets: tuple[Secret, ...] = ()


def digest(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()


def read_secrets(path: Path) -> tuple[Secret, ...]:
    """The secrets of `path`, none where there is no such file. Raises SecretsUnusable."""
    return _read(path)[0]


def write_secrets(path: Path, secrets: tuple[Secret, ...]) -> None:
    """Write the file whole or not at all, with mode 600 from its first byte on."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, SAFE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(SecretsFile(secrets)), indent=2) + b"\n")
        file.flush()
        os.fsync(descriptor)
    draft.replace(path)


def _read(path: Path) -> tuple[tuple[Secret, ...], Signature | None]:
    """What is in the file, and which version of it that is; None for no file."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            body = file.read()
    except FileNotFoundError:
        return (), None
    except OSError as why:
        raise SecretsUnusable(f"{path} cannot be read: {why.strerror}") from why
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise SecretsUnusable(
            f"{path} has mode {mode:o}, which lets other users read or change it; allowed: 600 (chmod 600 {path})"
        )
    try:
        return msgspec.json.decode(body, type=SecretsFile).secrets, _signature(status)
    except msgspec.MsgspecError as why:
        raise SecretsUnusable(f"{path} is no file of secrets: {why}") from why


def _signature(status: os.stat_result) -> Signature:
    return status.st_mtime_ns, status.st_ino, status.st_mode


class Keyring:
    """The secrets of one engine. `path` None is an engine without any.

    A file that becomes unusable or goes away while the engine runs changes nothing, since that must not open what a key
    closed; the log says so once.
    """

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        """Raises SecretsUnusable."""
        self._path = path
        self._clock = clock
        self._secrets: tuple[Secret, ...] = ()
        self._seen: Signature | None = None
        if path is not None:
            self._secrets, self._seen = _read(path)

    @property
    def has_api_keys(self) -> bool:
        """Whether clients need a key. One that no longer holds still counts: time alone opens nothing."""
        return any(secret.label not in TOKENS for secret in self._fresh())

    @property
    def has_any(self) -> bool:
        """Whether there is a key or a token, also one that no longer holds."""
        return bool(self._fresh())

    def label_of(self, given: bytes) -> str | None:
        """Whose secret `given` is, compared with each in the same time whichever it is; None for nobody's."""
        asked = digest(given)
        now = self._clock()
        found = None
        for secret in self._fresh():
            if hmac.compare_digest(secret.sha256, asked) and secret.holds(now):
                found = secret.label
        return found

    def _fresh(self) -> tuple[Secret, ...]:
        if self._path is None:
            return ()
        try:
            now = _signature(self._path.stat())
        except OSError:
            now = None
        if now != self._seen:
            self._reread(self._path, now)
        return self._secrets

    def _reread(self, path: Path, now: Signature | None) -> None:
        self._seen = now
        if now is None:
            log.error("%s is gone; its secrets hold until the engine ends", path)
            return
        try:
            self._secrets, self._seen = _read(path)
        except SecretsUnusable as why:
            log.error("%s; what it held before still holds", why)
        else:
            labels = sorted({secret.label for secret in self._secrets})
            log.info("%s changed: %s", path, ", ".join(labels) or "no secrets")


def require_keys(host: str, secrets_file: Path | None) -> None:
    """Raises HostNotAllowed where other machines reach `host` and no API key keeps strangers out; SecretsUnusable."""
    if not Keyring(secrets_file).has_api_keys and not is_loopback(host):
        raise HostNotAllowed(host)
