"""What the command line may import: no torch, and nothing heavy, before a command needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

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


@pytest.mark.parametrize("module", ["engine", "engine.protocol", "engine.config", "engine.state_dir", "engine.request"])
def test_the_shared_types_import_no_torch(module: str) -> None:
    assert "torch" not in modules_after(f"import {module}")


@pytest.mark.parametrize("name", ["serve", "start", "chat", "config", "bench"])
def test_a_commands_help_imports_no_torch(name: str) -> None:
    code = f"from tandem.cli import run\nassert run(['{name}', '--help']) == 0"
    assert modules_after(code) & {"torch", "textual", "httpx"} == set()
