"""`tandem models list / pull / inspect`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from engine.memory.sizes import size
from engine.models import catalog
from tandem import output
from tandem.commands.options import JsonOption
from tandem.exits import CommandError, Exit
from tandem.settings.completers import models as models_by_name

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One built-in model. `path` is null until it has been fetched, `refusal` where this version can run it."""

    name: str
    title: str
    bytes: int
    licence: str
    path: str | None
    refusal: str | None
    default: bool


class PulledModel(msgspec.Struct, frozen=True):
    """What `pull` leaves."""

    name: str
    path: str
    bytes: int


class FormCount(msgspec.Struct, frozen=True):
    """The tensors of one form in a file."""

    form: str
    tensors: int
    bytes: int


class InspectedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model file. `max_len` and `layers` are null where the file does not say; `refusal` is why it cannot be run,
    `warnings` what is wrong with a file that can be. `template`: chats can be served."""

    path: str
    bytes: int
    name: str | None
    arch: str
    layers: int | None
    max_len: int | None
    vocab: int
    tokenizer: str
    template: bool
    forms: list[FormCount]
    refusal: str | None
    warnings: list[str] = msgspec.field(default_factory=list)


@app.callback()
def models() -> None:
    """List, fetch and inspect models."""


@app.command("list")
def list_models(json: JsonOption = False) -> None:
    """List the built-in models, and which of them have been fetched."""
    found = [_listed(model) for model in catalog.BUILT_IN.values()]
    if json:
        output.emit_json(found)
        return
    rows = [("NAME", "SIZE", "LICENCE", "STATE", "MODEL")]
    for model in found:
        state = "fetched" if model.path else "not fetched"
        rows.append((model.name, size(model.bytes), model.licence, state, model.title))
    for text in _aligned(rows):
        output.emit(text)
    for model in found:
        if model.refusal:
            output.note(f"{model.name}: {model.refusal}")


@app.command()
def pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A built-in model.", autocompletion=models_by_name)],
    json: JsonOption = False,
) -> None:
    """Fetch a built-in model once, and print where it lies."""
    try:
        model = catalog.built_in(name)
        if model.refusal:
            output.warn(f"{name} can be fetched, but {model.refusal}")
        with output.progress(name) as report:
            path = catalog.pull(name, report)
    except catalog.UnknownModel as why:
        raise CommandError(str(why), Exit.USAGE) from why
    except catalog.FetchFailed as why:
        raise CommandError(str(why)) from why
    if json:
        output.emit_json(PulledModel(name, str(path), path.stat().st_size))
    else:
        output.emit(str(path))


@app.command()
def inspect(
    model: Annotated[
        str, typer.Argument(metavar="PATH|NAME", help="A GGUF file or a built-in model.", autocompletion=models_by_name)
    ],
    json: JsonOption = False,
) -> None:
    """Say what a model file holds, and whether this version can run it."""
    try:
        path = catalog.resolve(model)
    except catalog.UnknownModel as why:
        raise CommandError(str(why), Exit.USAGE) from why
    if not path.is_file():
        raise CommandError(f"{model} has not been fetched; `tandem models pull {model}` fetches it")
    found = _inspected(path)
    if json:
        output.emit_json(found)
        return
    forms = ", ".join(f"{f.form.upper()} x {f.tensors} ({size(f.bytes)})" for f in found.forms)
    layers = f", {found.layers} layers" if found.layers is not None else ""
    rows = [
        ("file", found.path),
        ("name", output.printable((found.name or "-")[:200])),
        ("size", size(found.bytes)),
        ("arch", output.printable(found.arch[:200]) + layers),
        ("window", f"{found.max_len} tokens" if found.max_len is not None else "-"),
        ("vocabulary", f"{found.vocab} tokens, {output.printable(found.tokenizer[:200])}"),
        ("template", "yes" if found.template else "no: chat is refused"),
        ("forms", forms),
        ("runs", "yes" if found.refusal is None else f"no: {found.refusal}"),
    ]
    rows += [("warning", output.printable(warning[:600])) for warning in found.warnings]
    for text in _aligned(rows):
        output.emit(text)


def _listed(model: catalog.BuiltIn) -> ListedModel:
    path = catalog.fetched_path(model.name)
    return ListedModel(
        name=model.name,
        title=model.title,
        bytes=model.bytes,
        licence=model.licence,
        path=str(path) if path else None,
        refusal=model.refusal,
        default=model.name == catalog.DEFAULT_MODEL,
    )


def _inspected(path: Path) -> InspectedModel:
    from engine.models.weights.gguf import DamagedModel, read_header
    from engine.models.weights.shards import shard_sentence

    header = None
    try:
        header = read_header(path)
        metadata = header.metadata
        arch = metadata.text("general.architecture")
        layers, window = f"{arch}.block_count", f"{arch}.context_length"
        counts = Counter(info.form.name for info in header.infos.values())
        sizes: Counter[str] = Counter()
        for info in header.infos.values():
            sizes[info.form.name] += info.bytes
        kind = metadata.text("tokenizer.ggml.model")
        pre = metadata.text("tokenizer.ggml.pre", "")
        trial = _tried(path)
        return InspectedModel(
            path=str(path),
            bytes=header.file_bytes,
            name=metadata.text("general.name") if "general.name" in metadata else None,
            arch=arch,
            layers=metadata.integer(layers) if layers in metadata else None,
            max_len=metadata.integer(window) if window in metadata else None,
            vocab=len(metadata.texts("tokenizer.ggml.tokens")),
            tokenizer=f"{kind} {pre}".strip(),
            template=trial.template,
            forms=[FormCount(form, n, sizes[form]) for form, n in counts.most_common()],
            refusal=trial.refusal,
            warnings=list(trial.warnings),
        )
    except DamagedModel as why:
        # A later shard of a split model has none of the metadata.
        shard = shard_sentence(path, header.metadata) if header is not None else None
        raise CommandError(str(why) if shard is None else f"{path}: {shard}") from why
    except OSError as why:
        raise CommandError(f"{path} cannot be read: {why.strerror or why}") from why


@dataclass(frozen=True, slots=True)
class _Trial:
    """The result of the steps that loading takes before it packs weights."""

    refusal: str | None
    template: bool
    warnings: tuple[str, ...] = ()


def _tried(path: Path) -> _Trial:
    from engine.models.gguf_config import checked_config
    from engine.models.text.chat_template import load_template, warnings_of
    from engine.models.text.tokenizer import load_tokenizer
    from engine.models.weights.gguf import UnsupportedModel, open_gguf, read_header

    try:
        file = open_gguf(path)
        window = checked_config(file).context
        tokenizer = load_tokenizer(file.metadata)
    except UnsupportedModel as why:
        return _Trial(str(why).removeprefix(f"{path}: "), "tokenizer.chat_template" in read_header(path).metadata)
    template = load_template(file.metadata, tokenizer, window)
    return _Trial(None, template is not None and template.fault is None, warnings_of(tokenizer, template))


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The rows as text, every column but the last as wide as its widest cell."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return ["  ".join([*(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)), row[-1]]) for row in rows]
