"""`tandem completion bash / zsh / fish`: typer's own completion scripts, which ask the command line what may follow."""

from __future__ import annotations

import typer
from typer.completion import completion_init, shell_complete  # type: ignore[attr-defined]

from tandem.cli import COMPLETE_VARIABLE
from tandem.cli import app as root

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
    _print("bash")


@app.command()
def zsh() -> None:
    """Print the script for zsh."""
    _print("zsh")


@app.command()
def fish() -> None:
    """Print the script for fish."""
    _print("fish")


def _print(shell: str) -> None:
    complete(f"source_{shell}")


def complete(instruction: str) -> int:
    """Answer `complete_bash` with what may follow the words in the environment, `source_bash` with the script.

    Returns an exit code.
    """
    completion_init()
    return shell_complete(typer.main.get_command(root), {}, "tandem", COMPLETE_VARIABLE, instruction)
