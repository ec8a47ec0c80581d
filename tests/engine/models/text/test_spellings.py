"""Spellings of tokens in a text: found as a regular expression would find them, and broken so that none is left."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from engine.models.text.spellings import Spellings

SETS = st.sets(st.text("a<|>", min_size=2, max_size=5), max_size=8)
TEXTS = st.text("a<|>b", max_size=40)


@given(SETS, TEXTS)
@example({"<<<", "<<"}, "<<")
def test_the_longest_is_found_at_each_place(spellings: set[str], text: str) -> None:
    longest_first = sorted(spellings, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
    assert list(Spellings(spellings).find(text)) == [match.span() for match in pattern.finditer(text)]


@given(SETS, TEXTS)
def test_none_is_left_once_broken(spellings: set[str], text: str) -> None:
    found = Spellings(spellings)
    broken = found.broken(text, "\ufdd0")
    assert not any(spelling in broken for spelling in spellings)
    assert broken.replace("\ufdd0", "") == text
    assert (broken == text) == (not any(spelling in text for spelling in spellings))
