"""What `tandem status` prints of a snapshot."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from engine.protocol import Loading
from tandem.commands.status import describe
from tests.support.fake_scenes import SCENES


@pytest.mark.parametrize(("total", "end"), [(0, "reading"), (2048, "reading, 1 KiB of 2 KiB")])
def test_an_engine_that_loads_shows_no_figure_of_what_is_not_there_yet(total: int, end: str) -> None:
    health = replace(
        SCENES["loading"](1.0), loading=Loading(stage="reading", done_bytes=total // 2, total_bytes=total, eta_s=None)
    )
    first, *rest = describe(health, "http://box").splitlines()
    assert first.startswith("loading: no model yet at http://box")
    assert [" ".join(line.split()) for line in rest] == [f"loading {end}"]
