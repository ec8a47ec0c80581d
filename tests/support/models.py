"""The built-in model for tests that need real weights: fetched once into the user's cache."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from engine.models import catalog


@cache
def default_model() -> Path:
    """The default model's file; the first call on a machine fetches it."""
    return catalog.pull(catalog.DEFAULT_MODEL)
