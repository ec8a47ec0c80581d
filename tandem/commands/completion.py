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


def _add(shell: str) -> None:
    @app.command(shell, help=f"Print the script for {shell}.")
    def script() -> None:
        complete(f"source_{shell}")


for name in ("bash", "zsh", "fish"):
    _add(name)
