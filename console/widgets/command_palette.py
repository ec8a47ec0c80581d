"""The command palette: the actions of the registry, then a command for each theme and each engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider

from console.draw.theme import ThemeName
from console.keys.actions import ACTIONS
from console.keys.views import ViewName
from console.text.spans import literal


@dataclass(frozen=True)
class Command:
    """One line of the palette: its name, what it does, and the app's action."""

    label: str
    help: str
    action: str


def commands(view: ViewName, engines: Sequence[tuple[str, str]]) -> Iterator[Command]:
    """Everything the palette offers in that view, in the order in which it lists it; `engines` are names and states."""
    for action in ACTIONS:
        if action.in_palette and (not action.views or view in action.views):
            yield Command(action.label, f"{action.shown_key}: {action.help}", action.name)
    for theme in ThemeName:
        yield Command(f"theme {theme.value}", "Show everything in these colours and signs.", f"theme('{theme.value}')")
    if len(engines) > 1:
        for index, (name, summary) in enumerate(engines):
            yield Command(f"engine {literal(name)}", literal(summary), f"engine({index})")


@runtime_checkable
class OffersCommands(Protocol):
    """The app, as the palette knows it."""

    def palette_commands(self) -> Iterator[Command]: ...


class ConsoleCommandPalette(CommandPalette):
    """Textual's palette in the console's frame, without the search icon, whose width differs between terminals."""

    DEFAULT_CSS = """
    ConsoleCommandPalette SearchIcon { display: none; }
    ConsoleCommandPalette #--input, ConsoleCommandPalette #--input.--list-visible { border: none; padding: 0 1; }
    ConsoleCommandPalette > Vertical { margin-top: 2; }
    ConsoleCommandPalette CommandList { border: none; scrollbar-size: 0 0; }
    """


class ConsoleCommands(Provider):
    """Offers the commands to Textual's palette."""

    async def discover(self) -> Hits:
        for command in self._commands():
            yield DiscoveryHit(command.label, self._run(command), help=command.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command in self._commands():
            score = max(matcher.match(command.label), 0.5 * matcher.match(command.help))
            if score > 0:
                yield Hit(score, matcher.highlight(command.label), self._run(command), help=command.help)

    def _commands(self) -> Iterator[Command]:
        assert isinstance(self.app, OffersCommands)
        return self.app.palette_commands()

    def _run(self, command: Command) -> Callable[[], object]:
        return partial(self.app.run_action, command.action)
