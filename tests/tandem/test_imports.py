"""What the command line may import: no torch, and nothing heavy, before a command needs it; and what an installation
must bring for all imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

HEAVY = {"torch", "numpy", "rich", "textual", "httpx", "msgspec", "psutil", "asyncio", "uvicorn", "pydantic"}


def modules_after(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after running `code`."""
    return {name.partition(".")[0] for name in all_modules_after(code)}


def all_modules_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


def test_the_command_line_imports_nothing_heavy() -> None:
    assert modules_after("import tandem.cli") & HEAVY == set()


def test_help_imports_nothing_heavy() -> None:
    assert modules_after("from tandem.cli import run\nassert run(['--help']) == 0") & HEAVY == set()


def test_the_shared_types_import_no_torch() -> None:
    shared = "engine, engine.protocol, engine.config, engine.process.state_dir, engine.request"
    assert "torch" not in modules_after(f"import {shared}")


def test_a_commands_help_imports_no_torch() -> None:
    """One interpreter for all: what none of them imports is not there after the last."""
    names = ["serve", "start", "chat", "config", "bench"]
    code = f"from tandem.cli import run\nassert [run([name, '--help']) for name in {names}] == [0] * {len(names)}"
    assert modules_after(code) & {"torch", "textual", "httpx"} == set()


def test_the_console_imports_no_engine() -> None:
    found = all_modules_after("import console.main, console.app.app")
    assert found & {"pydantic", "torch", "textual_serve", "aiohttp", "uvicorn"} == set()


ROOT = Path(__file__).parents[2]
OURS = {"tandem", "console", "engine", "kernels", "ops"}


def imported(path: Path) -> Iterator[str]:
    """The top-level names of a file's imports, wherever in it they stand."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (one.name.partition(".")[0] for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def test_an_installation_brings_what_is_imported_and_nothing_else() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["web"]]
    declared = {re.split("[<>=;]", line)[0].strip() for line in lines}
    declared -= {"pip"}  # run as a program, to fetch a model
    other_names = {"cuda-python": "cuda", "nvidia-ml-py": "pynvml"}
    modules = {other_names.get(name, name.replace("-", "_")) for name in declared}
    names = {name for folder in OURS for path in (ROOT / folder).rglob("*.py") for name in imported(path)}
    assert names - OURS - sys.stdlib_module_names == modules
