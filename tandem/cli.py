"""The `tandem` command: a table of commands whose modules are imported only when one runs, so that help is instant."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from tandem import output
from tandem.exits import CommandError, Exit

COMPLETE_VARIABLE = "_TANDEM_COMPLETE"
"""Set in its environment, `tandem` says what may follow the words typed and does nothing else."""


class CommandSpec(NamedTuple):
    """One command: the module of `tandem.commands` whose `app` holds it, its line of help, and the heading it is listed
    under. `member`: the app holds several commands of the top level."""

    module: str
    help: str
    panel: str
    member: bool = False


SERVING, LOOKING, CARING = "Serve", "Look and measure", "Set up"

COMMANDS: dict[str, CommandSpec] = {
    "serve": CommandSpec("serve", "Serve a model in the foreground.", SERVING),
    "start": CommandSpec("background", "Serve in the background.", SERVING, member=True),
    "stop": CommandSpec("background", "Let running requests end, then stop the engine.", SERVING, member=True),
    "restart": CommandSpec("background", "Stop, then start again with the same flags.", SERVING, member=True),
    "status": CommandSpec("status", "Say what the running engine does.", SERVING),
    "drain": CommandSpec("draining", "Take no new requests for a while.", SERVING, member=True),
    "resume": CommandSpec("draining", "Take requests again after that.", SERVING, member=True),
    "logs": CommandSpec("logs", "Show the background engine's log.", SERVING),
    "service": CommandSpec("service", "Install the engine as a systemd unit of yours.", SERVING),
    "hold": CommandSpec("hold", "Run a command with the box to itself, then serve again.", SERVING),
    "console": CommandSpec("console", "Watch lanes, memory, roles and the queue, live.", LOOKING),
    "chat": CommandSpec("chat", "Talk to the running engine.", LOOKING),
    "bench": CommandSpec("bench", "Measure levels c1, c2, c4 and compare the texts.", LOOKING),
    "check": CommandSpec("check", "Prove that batch neighbours do not change a text.", LOOKING),
    "usage": CommandSpec("usage", "Add up what was served, by day, client or model.", LOOKING),
    "residency": CommandSpec("residency", "Which small models fit beside the engine, and why.", LOOKING),
    "models": CommandSpec("models", "List, fetch and inspect models.", CARING),
    "config": CommandSpec("config", "Show, write and validate the settings.", CARING),
    "secrets": CommandSpec("secrets", "Make, rotate and remove API keys and tokens.", CARING),
    "completion": CommandSpec("completion", "Print a script that completes commands in a shell.", CARING),
    "doctor": CommandSpec("doctor", "Check this box and recommend a slot count.", CARING),
}


class LazyGroup(TyperGroup):
    """Lists commands from the table alone and imports a command's module when it is the one that runs."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        spec = COMMANDS.get(cmd_name)
        if spec is None:
            return None
        return TyperCommand(name=cmd_name, help=spec.help)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for panel in (SERVING, LOOKING, CARING):
            with formatter.section(panel):
                formatter.write_dl([(name, spec.help) for name, spec in COMMANDS.items() if spec.panel == panel])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # What typer looks through for a name that is nearly right.
        self.commands = {name: self.get_command(ctx, name) for name in COMMANDS}
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load(args[0]), rest


def load(name: str) -> Any:
    """The real command of that name, imported now."""
    spec = COMMANDS[name]
    command = typer.main.get_command(import_module(f"tandem.commands.{spec.module}").app)
    if spec.member:
        if not isinstance(command, TyperGroup):
            raise TypeError(f"tandem.commands.{spec.module}.app must hold several commands")
        command = command.commands[name]
    command.name = name
    return command


app = typer.Typer(cls=LazyGroup, add_completion=False, no_args_is_help=True, rich_markup_mode=None)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            output.emit(version("tandem-serve"))
        except PackageNotFoundError:
            output.emit("not installed")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Serve a language model to several clients at once, each as if it were alone."""


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    command = typer.main.get_command(app)
    try:
        code = command.main(args=list(args), prog_name="tandem", standalone_mode=False)
        # What is still buffered decides the exit code too.
        sys.stdout.flush()
    except CommandError as why:
        output.error(why.message)
        return why.code
    except typer.Abort:
        return Exit.INTERRUPTED
    except TyperException as why:
        output.note(_misuse(why))
        return Exit.USAGE
    except OSError as why:
        # For example a full disk, or a folder that may not be written: the file and the reason say enough.
        if why.filename is None:
            raise
        output.error(f"{why.filename}: {why.strerror}")
        return Exit.FAILURE
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else Exit.OK if end.code is None else Exit.FAILURE
    return code if isinstance(code, int) else Exit.OK


def _misuse(why: TyperException) -> str:
    """One line on a command line that does not parse: the flag, the value, what is allowed, and where help is."""
    message = why.format_message()
    if "\n" in message:  # the help of a command that needs a subcommand
        return message
    context = getattr(why, "ctx", None)
    help_at = f" (see {context.command_path} --help)" if context else ""
    # Typer's message says what is allowed. The refused value stands only in the error that it was raised from.
    found: list[Any] = getattr(why.__cause__, "errors", list)()
    param = getattr(why, "param", None)
    if found and param is not None:
        rule = found[0]["msg"].removeprefix("Input should be ")
        _, choice, choices = rule.partition(" is not one of ")
        allowed = choices.rstrip(".").replace("'", "") if choice else rule.partition(", ")[0]
        allowed = allowed.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
        message = f"{'/'.join(param.opts)} is {str(found[0]['input'])!r}; allowed: {allowed}"
    return f"tandem: {message}{help_at}"


def complete(instruction: str) -> int:
    """Answer `complete_bash` with what may follow the words in the environment, `source_bash` with bash's script.

    Returns an exit code.
    """
    from typer.completion import completion_init, shell_complete  # type: ignore[attr-defined]

    completion_init()
    return shell_complete(typer.main.get_command(app), {}, "tandem", COMPLETE_VARIABLE, instruction)


def main() -> None:
    """The entry point of the `tandem` script."""
    if (question := os.environ.get(COMPLETE_VARIABLE)) is not None:
        sys.exit(complete(question))
    args = sys.argv[1:]
    output.own_streams()
    code = run(args)
    output.finish()
    if args[:1] == ["serve"]:
        # Everything is closed by now. Finalising an interpreter that has torch loaded takes more than a second of
        # processor time. On a busy box an engine was killed before that was done.
        os._exit(code)
    sys.exit(code)
