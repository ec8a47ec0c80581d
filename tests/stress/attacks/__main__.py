"""Runs the attacks and prints a table: `python -m tests.stress.attacks [NAME...] [--json FILE]`; exits 1 on failure."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
from dataclasses import asdict
from pathlib import Path

from tests.stress import attacks
from tests.stress.attacks.harness import EngineDied, Harness, Result, table

PARTS = {"__main__", "harness", "bystander"}


def main() -> int:
    names = sorted(module.name for module in pkgutil.iter_modules(attacks.__path__) if module.name not in PARTS)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(names):
        parser.error(f"no such attack: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    results: list[Result] = []
    cap = ""
    for name in asked.names or names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            with Harness.open() as harness:
                cap = harness.cap.kind
                results += importlib.import_module(f"tests.stress.attacks.{name}").run(harness)
        except (EngineDied, AssertionError) as why:
            results.append(Result(name, "", problems=[f"{type(why).__name__}: {why}"]))
    print(table(results))
    print(f"\nMemory: {cap}. {sum(row.held for row in results)} of {len(results)} held.")
    if asked.json is not None:
        asked.json.write_text(json.dumps([asdict(row) | {"held": row.held} for row in results], indent=2) + "\n")
    return 0 if all(row.held for row in results) else 1


if __name__ == "__main__":
    sys.exit(main())
