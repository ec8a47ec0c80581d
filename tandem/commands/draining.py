"""`tandem drain` and `tandem resume`: the engine takes no new requests for a while, and takes them again."""

from __future__ import annotations

import msgspec
import typer

from engine.protocol import ActionReply
from tandem import output
from tandem.client.register import address_of
from tandem.client.wire import post, refusal
from tandem.commands.options import JsonOption, UrlOption
from tandem.exits import CommandError, Exit

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_CANNOT_BE_DONE = 409


@app.command()
def drain(url: UrlOption = None, json: JsonOption = False) -> None:
    """Let running requests end and take no new ones, until `tandem resume`. The engine goes on; exit 3 where none runs.

    TANDEM_ADMIN_TOKEN is sent where it is set.
    """
    _order("/admin/drain", url, json=json)


@app.command()
def resume(url: UrlOption = None, json: JsonOption = False) -> None:
    """Take requests again after `tandem drain`. Exit 3 where no engine runs, 5 where it was told to end.

    TANDEM_ADMIN_TOKEN is sent where it is set.
    """
    _order("/admin/resume", url, json=json)


def _order(path: str, url: str | None, *, json: bool) -> None:
    """Send an order and print the answer. An order that changes nothing is not a failure."""
    status, body = post(address_of(url), path)
    if status != 200:
        why = refusal(status, body)
        raise CommandError(why.message, Exit.REFUSED) if status == _CANNOT_BE_DONE else why
    try:
        reply = msgspec.json.decode(body, type=ActionReply)
    except msgspec.MsgspecError:
        raise refusal(status, body) from None
    if json:
        output.emit_json(reply)
    else:
        output.emit(reply.message)
