"""The palette of commands: the registry's actions, then a command for each theme and each engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider

from console.actions import ACTIONS
from console.look import ThemeName
from console.spans import literal

if TYPE_CHECKING:
    from console.app import ConsoleApp


@dataclass(frozen=True)
class Command:
    """A line of the palette: its name, what it does, and the app's action."""

    label: str
    help: str
    action: str


def commands(app: ConsoleApp) -> Iterator[Command]:
    """Everything the palette offers now, in the order in which it lists it."""
    for action in ACTIONS:
        if action.in_palette and (not action.views or app.open_view in action.views):
            yield Command(action.label, f"{action.shown_key}: {action.help}", action.name)
    for theme in ThemeName:
        yield Command(f"theme {theme.value}", "Show everything in these colours and signs.", f"theme('{theme.value}')")
    if len(app.engines) > 1:
        for index, engine in enumerate(app.engines):
            yield Command(f"engine {literal(engine.name)}", literal(engine.said()), f"engine({index})")


class Palette(CommandPalette):
    """Textual's palette in the console's frame, without the glyph that few terminals agree on."""

    DEFAULT_CSS = """
    Palette SearchIcon { display: none; }
    Palette #--input, Palette #--input.--list-visible { border: none; padding: 0 1; }
    Palette > Vertical { margin-top: 2; }
    Palette CommandList { border: none; scrollbar-size: 0 0; }
    """


class Commands(Provider):
    """Offers the commands to Textual's palette."""

    async def discover(self) -> Hits:
        for command in commands(self._console):
            yield DiscoveryHit(command.label, self._run(command), help=command.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command in commands(self._console):
            score = max(matcher.match(command.label), 0.5 * matcher.match(command.help))
            if score > 0:
                yield Hit(score, matcher.highlight(command.label), self._run(command), help=command.help)

    @property
    def _console(self) -> ConsoleApp:
        from console.app import ConsoleApp

        assert isinstance(self.app, ConsoleApp)
        return self.app

    def _run(self, command: Command) -> Callable[[], object]:
        return partial(self.app.run_action, command.action)
