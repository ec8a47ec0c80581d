"""The folder for what Tandem can make or fetch again: models, compiled kernels, measured tiles."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`TANDEM_CACHE_DIR` where it is set, else `tandem` in the user's cache folder. The folder may not exist yet."""
    chosen = os.environ.get("TANDEM_CACHE_DIR")
    if chosen:
        return Path(chosen)
    import platformdirs

    return platformdirs.user_cache_path("tandem")
