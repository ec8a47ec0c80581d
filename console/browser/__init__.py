"""The console in a browser: a page on loopback behind a token, and one console process for each open tab."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

# How a console process knows that its screen is a tab: what `TEXTUAL_DRIVER` says.
DRIVER = "console.browser.driver:BrowserDriver"
_USAGE = 2


def in_browser() -> bool:
    """Whether this process is the console of one tab."""
    return os.environ.get("TEXTUAL_DRIVER") == DRIVER


def serve(argv: Sequence[str], port: int) -> int:
    """Serve the console that `argv` runs until told to end; returns the exit code, with one line where the extra is
    missing."""
    if find_spec("textual_serve") is None:
        print("tandem console: --web needs textual-serve: pip install 'tandem-serve[web]'", file=sys.stderr)
        return _USAGE
    from console.browser.server import ConsoleServer

    return ConsoleServer(argv, port).run()
