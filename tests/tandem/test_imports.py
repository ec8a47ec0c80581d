"""What the command line may import: no torch, and nothing heavy, before a command needs it."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"torch", "numpy", "rich", "textual", "httpx", "msgspec", "psutil", "asyncio", "uvicorn", "pydantic"}


def modules_after(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after running `code`."""
    script = f"{code}\nimport sys\nprint('\\n'.join({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


def test_the_command_line_imports_nothing_heavy() -> None:
    assert modules_after("import tandem.cli") & HEAVY == set()


def test_help_imports_nothing_heavy() -> None:
    assert modules_after("from tandem.cli import run\nassert run(['--help']) == 0") & HEAVY == set()


def test_the_shared_types_import_no_torch() -> None:
    shared = "engine, engine.protocol, engine.config, engine.state_dir, engine.request"
    assert "torch" not in modules_after(f"import {shared}")


def test_a_commands_help_imports_no_torch() -> None:
    """One interpreter for all: what none of them imports is not there after the last."""
    names = ["serve", "start", "chat", "config", "bench"]
    code = f"from tandem.cli import run\nassert [run([name, '--help']) for name in {names}] == [0] * {len(names)}"
    assert modules_after(code) & {"torch", "textual", "httpx"} == set()
