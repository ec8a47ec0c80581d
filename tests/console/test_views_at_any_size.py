"""Lanes, queue, memory and rounds at any size and in ASCII: every box is filled to the cell, no sign is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.draw.arrange import Box
from console.draw.frame import Frame, framed
from console.draw.regions import view_content
from console.keys.views import ViewName, ViewState
from console.text.ascii import ascii_text
from console.text.spans import width_of
from console.viewmodel.labels import PHASE_LABELS
from tests.console.films import seen, text

VIEWS = (ViewName.LANES, ViewName.QUEUE, ViewName.MEMORY, ViewName.ROUNDS)
# The sign of a waiting request looks like a question mark in ASCII; so does what has no likeness there.
_ASKING = "◔?"


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 260), st.integers(1, 80)),
    st.sampled_from(VIEWS),
    st.sampled_from(["idle", "pressure", "loading", "story", "drafting", "devices"]),
    st.sampled_from([None, "1", "req-91ab"]),
    st.booleans(),
)
def test_every_view_fills_its_box_at_any_size(
    size: tuple[int, int], name: ViewName, scene: str, detail: str | None, textures: bool
) -> None:
    width, height = size
    view = seen(scene, 3.0, textures=textures)
    content = view_content(name, view, ViewState(detail=detail), Box(0, 0, width, height))
    lines = framed(content, Frame(width, height, 1, 2, True))
    assert len(lines) == height
    assert {width_of(line) for line in lines} == {width}
    assert all(row.first + row.lines <= len(content.body) for row in content.rows)


def test_the_signs_of_a_strip_differ_in_ascii_too() -> None:
    signs = [ascii_text(sign.glyph) for sign in PHASE_LABELS.values()]
    assert len(set(signs)) == len(signs)
    assert "".join(signs).isascii()


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("scene", ["story", "yielded", "pressure", "drafting", "devices"])
def test_every_glyph_has_its_likeness_in_ascii(name: ViewName, scene: str) -> None:
    view = seen(scene, 20.0, textures=True)
    for detail in (None, "1"):
        content = view_content(name, view, ViewState(detail=detail), Box(0, 0, 120, 33))
        shown = text(framed(content, Frame(120, 33, 0, 2, True)))
        outside = set("".join(entry.client for entry in view.queue))
        lost = {glyph for glyph in set(shown) - outside if ascii_text(glyph) == "?"} - set(_ASKING)
        assert not lost
