"""`tandem completion bash / zsh / fish`: scripts that ask the command line itself what may follow.

A script holds no names, so it never falls behind: it hands the words typed so far to `tandem completion words`, which
prints one candidate a line, a tab and its help. `:files` asks the shell for paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tandem import output
from tandem.cli import COMMANDS, load
from tandem.exits import CommandError

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

FILES = ":files"
SPLITS = ("=", ":")
"""Bash takes a word apart at these and hands each of them over as a word of its own."""


@dataclass(frozen=True, slots=True)
class Candidate:
    value: str
    help: str = ""


@app.callback()
def completion() -> None:
    """Print a script that completes commands, flags, model names, roles and profiles.

    bash: `source <(tandem completion bash)` in ~/.bashrc. zsh: the same in ~/.zshrc, after compinit. fish:
    `tandem completion fish | source` in ~/.config/fish/config.fish.
    """


@app.command()
def bash() -> None:
    """Print the script for bash."""
    output.emit(_BASH, end="")


@app.command()
def zsh() -> None:
    """Print the script for zsh."""
    output.emit(_ZSH, end="")


@app.command()
def fish() -> None:
    """Print the script for fish."""
    output.emit(_FISH, end="")


@app.command("words", hidden=True)
def print_words(typed: Annotated[list[str], typer.Argument(metavar="WORD...")]) -> None:
    """Print what may stand in the place of the last word."""
    for candidate in complete(typed):
        output.emit(f"{candidate.value}\t{candidate.help}" if candidate.help else candidate.value)


def complete(typed: Sequence[str]) -> list[Candidate]:
    """The candidates for the last of the words behind `tandem`, which may be empty."""
    words, cut = _join(typed)
    *before, last = words
    place = _walk(before)
    option = last.partition("=")[0]
    if place.awaited is not None:
        found = _values(_named(place.awaited.opts), place.awaited)
    elif last.startswith("--") and "=" in last:
        owner = _option(place.command, option)
        found = [] if owner is None else _values(option, owner)
        found = [one if one.value == FILES else Candidate(f"{option}={one.value}", one.help) for one in found]
    elif last.startswith("-") and not place.only_words:
        found = _options(place.command)
    else:
        found = _followers(place)
    wanted = [one for one in found if one.value == FILES or one.value.startswith(last)]
    return [one if one.value == FILES else Candidate(one.value[cut:], one.help) for one in wanted]


def _join(typed: Sequence[str]) -> tuple[list[str], int]:
    """The words as they were typed, and how many characters of the last one a shell that splits keeps by itself."""
    words: list[str] = []
    cut = 0
    glued = False
    for word in typed or ("",):
        if words and (word in SPLITS or glued):
            cut = len(words[-1]) + (len(word) if word in SPLITS else 0)
            words[-1] += word
        else:
            words.append(word)
            cut = 0
        glued = word in SPLITS
    return words, cut


@dataclass(slots=True)
class _Place:
    """Where the words before the last one lead: a command (None: `tandem` itself) and what it is still owed."""

    path: tuple[str, ...] = ()
    command: Any = None
    awaited: Any = None
    only_words: bool = False


def _walk(words: Sequence[str]) -> _Place:
    place = _Place()
    for word in words:
        if place.awaited is not None:
            place.awaited = None
        elif word == "--":
            place.only_words = True
        elif word.startswith("-") and not place.only_words:
            option = _option(place.command, word)
            if option is not None and not option.is_flag:
                place.awaited = option
        else:
            _enter(place, word)
    return place


def _enter(place: _Place, word: str) -> None:
    """Go down into the command of that name; any other word is an argument."""
    if place.command is None:
        if word in COMMANDS:
            place.path, place.command = (word,), load(word)
    elif word in (inner := getattr(place.command, "commands", {})):
        place.path, place.command = (*place.path, word), inner[word]


def _params(command: Any, kind: str) -> list[Any]:
    return [p for p in getattr(command, "params", ()) if p.param_type_name == kind and not getattr(p, "hidden", False)]


def _option(command: Any, name: str) -> Any:
    return next((option for option in _params(command, "option") if name in option.opts), None)


def _named(opts: Sequence[str]) -> str:
    return next((name for name in opts if name.startswith("--")), opts[0])


def _options(command: Any) -> list[Candidate]:
    own = [Candidate(_named(option.opts), _first_sentence(option.help)) for option in _params(command, "option")]
    root = [Candidate("--version", "Print the version.")] if command is None else []
    return [*own, *root, Candidate("--help", "Show this message and exit.")]


def _followers(place: _Place) -> list[Candidate]:
    """The commands below, or the values of an argument."""
    if place.command is None:
        return [Candidate(name, spec.help) for name, spec in COMMANDS.items()]
    inner = getattr(place.command, "commands", None)
    if inner is not None:
        return [Candidate(name, _first_sentence(one.help)) for name, one in inner.items() if not one.hidden]
    found = _ARGUMENTS.get(place.path)
    if found is not None:
        return _safely(found)
    return [one for argument in _params(place.command, "argument")[:1] for one in _of_metavar(argument.metavar)]


def _values(name: str, option: Any) -> list[Candidate]:
    found = _OPTIONS.get(name)
    return _safely(found) if found is not None else _of_metavar(option.metavar)


def _of_metavar(metavar: str | None) -> list[Candidate]:
    """The words that a placeholder such as `on|off` or `auto|cpu|cuda[:N]` allows; paths where it stands for one."""
    parts = (metavar or "").replace("[:N]", "").split("|")
    words = [Candidate(part) for part in parts if part.isalnum() and part.islower()]
    return [*words, Candidate(FILES)] if {"PATH", "FILE", "FOLDER"} & set(parts) else words


def _first_sentence(text: str | None) -> str:
    """One line of help: its first sentence, without a default in brackets."""
    said = " ".join((text or "").split()).partition(" [")[0]
    return said.partition(". ")[0].rstrip(".") + "." if said else ""


def _safely(found: Callable[[], Iterable[Candidate]]) -> list[Candidate]:
    """Nothing where the names cannot be read: a shell at a prompt is no place for an error."""
    from engine.roles.residency import ResidencyFileError

    try:
        return list(found())
    except (CommandError, ResidencyFileError, OSError):
        return []


def _models() -> Iterable[Candidate]:
    from engine.catalog import BUILT_IN

    return [Candidate(model.name, model.title) for model in BUILT_IN.values()]


def _models_and_files() -> Iterable[Candidate]:
    return [*_models(), Candidate(FILES)]


def _profiles() -> Iterable[Candidate]:
    from tandem.origins import profiles

    return [Candidate(name) for name in profiles()]


def _roles() -> Iterable[Candidate]:
    from engine.roles.residency import read_residency
    from tandem.configure import residency_file
    from tandem.origins import resolve

    return [Candidate(role.name, role.kind) for role in read_residency(residency_file(resolve().settings)).roles]


def _labels() -> Iterable[Candidate]:
    from engine.keyring import TOKENS, SecretsUnusable, read_secrets
    from tandem.configure import secrets_file
    from tandem.origins import resolve

    try:
        held = read_secrets(secrets_file(resolve().settings))
    except SecretsUnusable:
        held = ()
    return [Candidate(label) for label in sorted({secret.label for secret in held} | set(TOKENS))]


def _addresses() -> Iterable[Candidate]:
    from tandem.register import running

    return [Candidate(engine.record.url) for engine in running() if engine.record is not None]


def _levels() -> Iterable[Candidate]:
    return [Candidate("c1"), Candidate("c2"), Candidate("c4"), Candidate("c8"), Candidate("exact")]


_OPTIONS: dict[str, Callable[[], Iterable[Candidate]]] = {
    "--model": _models_and_files,
    "--profile": _profiles,
    "--url": _addresses,
}

_ARGUMENTS: dict[tuple[str, ...], Callable[[], Iterable[Candidate]]] = {
    ("models", "pull"): _models,
    ("models", "inspect"): _models_and_files,
    ("config", "profiles", "show"): _profiles,
    ("residency", "load"): _roles,
    ("residency", "unload"): _roles,
    ("secrets", "rotate"): _labels,
    ("secrets", "remove"): _labels,
    ("bench",): _levels,
}

_BASH = """\
# Completion of the tandem command for bash.
_tandem() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == :files ]]; then
            compopt -o filenames 2>/dev/null
            local path=${COMP_WORDS[COMP_CWORD]}
            [[ $path == [=:] ]] && path=
            while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$path")
        else
            COMPREPLY+=("${line%%$'\\t'*}")
        fi
    done < <("${COMP_WORDS[0]}" completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _tandem tandem
"""

_ZSH = """\
#compdef tandem
# Completion of the tandem command for zsh.
_tandem() {
    local line value
    local -a found
    for line in "${(@f)$("${words[1]}" completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        value=${line%%$'\\t'*}
        value=${value//:/\\\\:}
        case $line in
            :files) _files ;;
            *$'\\t'*) found+=("$value:${line#*$'\\t'}") ;;
            ?*) found+=("$value") ;;
        esac
    done
    (( $#found )) && _describe -V tandem found
}
compdef _tandem tandem
"""

_FISH = """\
# Completion of the tandem command for fish.
function __tandem_words
    set -l typed (commandline -opc) (commandline -ct)
    for line in ($typed[1] completion words -- $typed[2..-1] 2>/dev/null)
        if test "$line" = :files
            __fish_complete_path (commandline -ct)
        else
            echo $line
        end
    end
end
complete -c tandem -f -a '(__tandem_words)'
"""
