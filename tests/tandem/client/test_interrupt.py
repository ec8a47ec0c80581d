"""Ctrl-C in a chat: wherever it comes, the answer ends and nothing else is said."""

from __future__ import annotations

import asyncio
import signal

import pytest

from engine.config import ServiceConfig
from engine.request import Admitted, PrefillProgress, Text
from tandem import output
from tandem.cli import run
from tandem.client.chat_stream import ChatRequest
from tandem.client.interrupt import Interrupt
from tandem.client.wire import Address
from tandem.commands.chat import ChatSession
from tandem.exits import Exit
from tests.support.scripted_engine import ScriptedEngine, Ticket
from tests.support.served import served


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_it_stops_what_runs_and_what_is_still_to_run() -> None:
    interrupt = Interrupt()
    reached = []

    async def work(*, pressed: bool) -> None:
        reached.append("begun")
        if pressed:
            press()
            press()
            await asyncio.sleep(60)

    with interrupt.held():
        assert interrupt.run(work(pressed=False))
        assert not interrupt.run(work(pressed=True))
        press()
        assert not interrupt.run(work(pressed=False))
        interrupt.hold()
        assert interrupt.run(work(pressed=False))
    assert reached == ["begun"] * 3
    with pytest.raises(KeyboardInterrupt):
        press()


def test_while_the_loop_of_an_answer_is_made(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = asyncio.SelectorEventLoop.__init__

    def interrupted(loop: asyncio.SelectorEventLoop) -> None:
        press()
        whole(loop)

    monkeypatch.setattr(asyncio.SelectorEventLoop, "__init__", interrupted)
    assert run(["chat", "hi", "--url", "http://127.0.0.1:9"]) == Exit.INTERRUPTED
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("\n", "stopped\n")


def test_a_conversation_goes_on_and_keeps_what_came(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(ticket: Ticket) -> None:
        ticket.put(Admitted(0, 0, 9), PrefillProgress(1, 1))
        if len(engine.tickets) == 1:
            ticket.put(Text(0, "half", 1))
        else:
            ticket.finish("whole")

    emit = output.emit

    def shown(text: str, end: str = "\n") -> None:
        emit(text, end=end)
        if text == "half":
            press()

    lines = iter(["one", "two"])

    def typed(prompt: str) -> str:
        if (line := next(lines, None)) is None:
            raise EOFError
        return line

    engine = ScriptedEngine(script)
    monkeypatch.setattr(output, "emit", shown)
    monkeypatch.setattr("builtins.input", typed)
    with served(engine, ServiceConfig()) as there:
        talk = ChatSession(Address.of(there.url), ChatRequest(()), None)
        with talk.interrupt.held():
            talk.run()
    assert [turn.content for turn in talk.turns] == ["one", "half", "two", "whole"]
