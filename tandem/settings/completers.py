"""Candidates for the values of settings, for completion in a shell.

A completer takes the text typed so far and returns candidates, each with a line of help. Typer keeps those that fit. A
completer never fails: where names cannot be read it returns none.
"""

from __future__ import annotations

from collections.abc import Callable

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
    from tandem.settings.origins import profiles as names

    return [(name, "") for name in names()]
