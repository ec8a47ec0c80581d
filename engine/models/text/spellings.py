"""Finds the spellings of tokens in a text: the one place where text may become a control token.

A vocabulary may spell thousands of tokens, and a text may be a million times the character that all of them begin with.
A regular expression tries each spelling at each place and holds the interpreter's lock meanwhile; here a place costs
one look-up for each length that spellings with the same two first characters have.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator


class Spellings:
    """A set of spellings of two characters or more."""

    def __init__(self, spellings: Iterable[str]) -> None:
        self._all = frozenset(spellings)
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for spelling in self._all:
            lengths[spelling[:2]].add(len(spelling))
        self._lengths = {start: sorted(found, reverse=True) for start, found in lengths.items()}
        first = "".join(sorted({spelling[0] for spelling in self._all}))
        self._first = re.compile(f"[{re.escape(first)}]") if first else None

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of each spelling from left to right, the longest at each place; none overlap."""
        at = 0
        for start in self._places(text):
            if start >= at and (length := self._longest(text, start)):
                at = start + length
                yield start, at

    def broken(self, text: str, mark: str) -> str:
        """`text` with `mark` behind the first character of every spelling, those that overlap others too, so that
        none is left."""
        pieces: list[str] = []
        at = 0
        for start in self._places(text):
            if self._longest(text, start):
                pieces += (text[at : start + 1], mark)
                at = start + 1
        return "".join((*pieces, text[at:])) if pieces else text

    def _places(self, text: str) -> Iterator[int]:
        return (match.start() for match in self._first.finditer(text)) if self._first is not None else iter(())

    def _longest(self, text: str, start: int) -> int:
        """The length of the longest spelling at `start`, 0 for none."""
        for length in self._lengths.get(text[start : start + 2], ()):
            # At the text's end it is shorter than `length`, and may be another spelling.
            if (found := text[start : start + length]) in self._all:
                return len(found)
        return 0
