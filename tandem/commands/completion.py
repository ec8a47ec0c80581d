"""`tandem completion bash / zsh / fish`: typer's own completion scripts, which ask the command line what may follow."""

from __future__ import annotations

import typer

from tandem.cli import complete

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def completion() -> None:
    """Print a script that completes commands, flags, model names, roles and profiles.

    bash: `source <(tandem completion bash)` in ~/.bashrc. zsh: the same in ~/.zshrc, after compinit. fish:
    `tandem completion fish | source` in ~/.config/fish/config.fish.
    """


@app.command()
def bash() -> None:
    """Print the script for bash."""
    complete("source_bash")


@app.command()
def zsh() -> None:
    """Print the script for zsh."""
    complete("source_zsh")


@app.command()
def fish() -> None:
    """Print the script for fish."""
    complete("source_fish")
