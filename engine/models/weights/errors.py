"""Why a model file cannot be served: what is wrong with the file, or what this version lacks."""

from __future__ import annotations


class DamagedModel(ValueError):
    """The file is not what its format or its own header promises. The message names the file, what, limit and value."""


class UnsupportedModel(ValueError):
    """The file is whole, but this version cannot run it. The message names what it has and what is supported."""
