"""What may stand in the place of a flag's or an argument's value, for completion in a shell.

Each function takes the text typed so far and returns candidates with a line of help; typer keeps those that fit. Names
that cannot be read complete nothing: a shell at a prompt is no place for an error.
"""

from __future__ import annotations

from collections.abc import Callable

from tandem.exits import CommandError

Candidates = list[tuple[str, str]]
Completer = Callable[[str], Candidates]


def words_of(metavar: str) -> Completer:
    """The words that a placeholder such as `on|off` or `auto|cpu|cuda[:N]` allows; none for one such as `N`."""
    words = [part for part in metavar.replace("[:N]", "").split("|") if part.isalnum() and part.islower()]

    def complete(incomplete: str) -> Candidates:
        return [(word, "") for word in words]

    return complete


def models(incomplete: str) -> Candidates:
    from engine.models.catalog import BUILT_IN

    return [(model.name, model.title) for model in BUILT_IN.values()]


def profiles(incomplete: str) -> Candidates:
    from tandem.origins import profiles as names

    return [(name, "") for name in names()]


def roles(incomplete: str) -> Candidates:
    from engine.roles.residency import ResidencyFileError, read_residency
    from tandem.configure import residency_file
    from tandem.origins import resolve

    try:
        return [(role.name, role.kind) for role in read_residency(residency_file(resolve().settings)).roles]
    except (CommandError, ResidencyFileError, OSError):
        return []


def secret_labels(incomplete: str) -> Candidates:
    from engine.process.keyring import TOKENS, SecretsUnusable, read_secrets
    from tandem.configure import secrets_file
    from tandem.origins import resolve

    try:
        held = {secret.label for secret in read_secrets(secrets_file(resolve().settings))}
    except (CommandError, SecretsUnusable, OSError):
        held = set()
    return [(label, "") for label in sorted(held | set(TOKENS))]


def engine_urls(incomplete: str) -> Candidates:
    from tandem.register import running

    return [(engine.record.url, "") for engine in running() if engine.record is not None]


def bench_words(incomplete: str) -> Candidates:
    return [("c1", ""), ("c2", ""), ("c4", ""), ("c8", ""), ("exact", "texts alone"), ("shape", "a model's sizes")]
