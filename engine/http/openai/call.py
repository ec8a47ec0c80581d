"""A parsed call: the request for the engine, and what only its answer needs."""

from __future__ import annotations

from dataclasses import dataclass

from engine.request import Request


@dataclass(frozen=True, slots=True)
class Call:
    """`echo` is the prompt's text where the answer is to begin with it, else empty.

    `prompt_only`: nothing is to be generated, the answer is the echoed prompt.
    """

    request: Request
    include_usage: bool
    echo: str = ""
    prompt_only: bool = False
