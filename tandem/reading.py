"""Reads flags without pydantic, through which typer takes every value: its import is a sixth of a command's start.

What needs no reading is passed on as it came: a flag that was not given, a default, a text. All else is left to typer.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup, TyperOption


class QuickOption(TyperOption):
    """An option that leaves to typer only what must be converted or checked."""

    def process_value(self, ctx: Any, value: Any) -> Any:
        """The option's value, as typer's own method gives it."""
        if self.required or self.callback is not None or not self._stands(value):
            return super().process_value(ctx, value)
        return () if value is None and self.multiple else value

    def _stands(self, value: Any) -> bool:
        if value is None:
            return True
        try:
            kind, parser = self.type_descriptor.annotation, self.type_descriptor.parameter_info.parser
        except AttributeError:
            return False  # another typer keeps them elsewhere
        if parser is not None:
            return False
        if kind == list[str]:
            return isinstance(value, list) and all(map(_plain, value))
        return _plain(value) if kind is str else type(value) is kind and value is self.default


def _plain(value: Any) -> bool:
    # Of other text, some is no text: bytes of the command line that could not be decoded.
    return isinstance(value, str) and value.isascii()


def read_quickly(command: Any) -> None:
    """Have the flags of `command`, and of every command within it, read so."""
    for param in command.params:
        if type(param) is TyperOption:
            # typer makes its options itself and takes no class for them.
            param.__class__ = QuickOption
    # What `--help` is where it is not given; typer would read the None that it otherwise is.
    command.context_settings = {"default_map": {"help": False}, **command.context_settings}
    if isinstance(command, TyperGroup):
        for inner in command.commands.values():
            read_quickly(inner)
