"""The serving engine. `from engine import Engine` embeds it; importing this package alone loads no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.core.loop import Engine as Engine

__all__ = ["Engine"]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from engine.core.loop import Engine

        return Engine
    raise AttributeError(f"module 'engine' has no attribute {name!r}")
