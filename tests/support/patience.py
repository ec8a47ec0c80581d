"""How long a test waits for what must come."""

from __future__ import annotations

LONG_S = 60.0
"""More than the busiest box needs; only what never comes takes so long."""
