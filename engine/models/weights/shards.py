"""Whether a file is one shard of a split model, and which of the others are missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
SHOWN = 3


def shard_sentence(path: Path, metadata: Mapping[str, object]) -> str | None:
    """What kind of shard the file is and what is missing beside it, None for a whole model.

    `split.no` counts from 0, file names count from 1. Where the metadata have no `split.count`, the file's name
    decides: files that were cut by bytes have no metadata of their own.
    """
    named = _NAME.fullmatch(path.name)
    count = metadata.get("split.count")
    if isinstance(count, int) and not isinstance(count, bool):
        at = metadata.get("split.no", 0)
        number = at + 1 if isinstance(at, int) else 1
    elif named is not None:
        count, number = int(named["count"]), int(named["number"])
    else:
        return None
    if count < 2:
        return None
    return f"this is shard {number} of {count} of a split model; {_others(path, named, number, count)}"


def _others(path: Path, named: re.Match[str] | None, number: int, count: int) -> str:
    help_ = "split files cannot be loaded yet: join them with `llama-gguf-split --merge FIRST-SHARD WHOLE-FILE`"
    if named is None:
        return f"its name does not say where the others are; {help_}"
    if count > 99_999:
        return help_
    names = (f"{named['stem']}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1) if i != number)
    missing = [name for name in names if not path.with_name(name).is_file()]
    if not missing:
        return f"all {count} lie beside each other, but {help_}"
    more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    return f"{', '.join(missing[:SHOWN])}{more} missing in {path.parent}; {help_}"
