"""The detokenizer: whole characters, no part of a stop string, the same text however tokens part it."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.models.text.detokenizer import Detokenizer, Piece


class Tokens:
    """A vocabulary of given byte strings; only `token_bytes` matters here."""

    bos_id = None
    eos_ids: frozenset[int] = frozenset()

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens = tokens
        self.vocab_size = len(tokens)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        raise NotImplementedError

    def prompt_ids(self, text: str, *, special: bool = False) -> list[int]:
        raise NotImplementedError

    def control_token(self, spelling: str) -> int | None:
        raise NotImplementedError

    def token_bytes(self, token: int) -> bytes:
        return self.tokens[token]

    def token_text(self, token: int) -> str:
        return self.tokens[token].decode(errors="replace")


def feed(tokens: list[bytes], stops: tuple[str, ...] = ()) -> list[Piece]:
    """Every piece up to the stop or the end of generation."""
    detokenizer = Detokenizer(Tokens(tokens), stops)
    pieces = []
    for i in range(len(tokens)):
        pieces.append(detokenizer.push(i))
        if pieces[-1].stop is not None:
            return pieces
    return [*pieces, detokenizer.flush()]


def expected(content: bytes, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """By definition: read character by character, cut where a stop is first complete, the longest of those."""
    text = content.decode(errors="replace")
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


ALPHABET = [
    b"a",
    b"b",
    b"ab",
    b"\n",
    "é".encode(),
    "日".encode(),
    "🙂".encode(),
    b"\xff",
    b"\xe6\x97",
    b"\xf0\x9f",
    b"\x80",
]
CONTENT = st.lists(st.sampled_from(ALPHABET), max_size=30).map(b"".join)
STOPS = st.lists(
    st.sampled_from(["a", "ab", "aab", "ba", "b\n", "\n\n", "é", "日🙂", "\ufffd", "abab"]), max_size=4
).map(tuple)


@st.composite
def parted(draw: st.DrawFn) -> list[bytes]:
    content = draw(CONTENT)
    cuts = sorted(draw(st.lists(st.integers(0, len(content)), max_size=20)))
    return [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]


@given(parted(), STOPS)
@example([b"abc"], ("abc", "b"))
@example([b"a", b"b", b"c"], ("abc", "b"))
@example([b"\xf0\x9f", b"\x99\x82"], ("🙂",))
def test_text_and_stop_are_those_of_the_definition(tokens: list[bytes], stops: tuple[str, ...]) -> None:
    pieces = feed(tokens, stops)
    assert ("".join(p.text for p in pieces), pieces[-1].stop) == expected(b"".join(tokens), stops)


@given(parted(), STOPS)
def test_every_token_is_accounted_for_in_order(tokens: list[bytes], stops: tuple[str, ...]) -> None:
    pieces = feed(tokens, stops)
    counts = list(accumulate(p.tokens for p in pieces))
    assert all(count <= i + 1 for i, count in enumerate(counts[:-1]))
    if pieces[-1].stop is None:
        assert counts[-1] == len(tokens)
    else:
        assert counts[-1] <= len(pieces)


@given(parted(), STOPS)
def test_a_token_is_not_accounted_for_before_its_text(tokens: list[bytes], stops: tuple[str, ...]) -> None:
    released = ""
    counted = 0
    for piece in feed(tokens, stops)[:-1]:
        released += piece.text
        counted += piece.tokens
        whole = b"".join(tokens[:counted]).decode(errors="replace").rstrip("\ufffd")
        assert released.startswith(whole)


@given(parted(), STOPS.filter(bool))
def test_what_is_released_never_has_to_be_taken_back(tokens: list[bytes], stops: tuple[str, ...]) -> None:
    text, _ = expected(b"".join(tokens), stops)
    released = ""
    for piece in feed(tokens, stops):
        released += piece.text
        assert text.startswith(released)


def test_only_what_could_begin_a_stop_is_held() -> None:
    pieces = feed([b"one ", b"<", b"/", b"b", b"</", b"end> more"], ("</end>",))
    assert [p.text for p in pieces] == ["one ", "", "", "</b", "", ""]
    assert [p.tokens for p in pieces] == [1, 0, 0, 3, 0, 0]
    assert pieces[-1].stop == "</end>"


def test_held_text_is_flushed_at_the_end() -> None:
    pieces = feed([b"x</", b"en"], ("</end>",))
    assert pieces == [Piece("x", 0), Piece("", 0), Piece("</en", 2)]


def test_a_character_over_several_tokens_comes_with_the_last() -> None:
    smile = "🙂".encode()
    pieces = feed([b"a" + smile[:1], smile[1:3], smile[3:], b""])
    assert pieces == [Piece("a", 0), Piece("", 0), Piece("🙂", 3), Piece("", 1), Piece("", 0)]


def test_an_unfinished_character_at_the_end_is_replaced() -> None:
    assert feed([b"a", b"\xf0\x9f"]) == [Piece("a", 1), Piece("", 0), Piece("\ufffd", 1)]


def test_a_token_that_straddles_the_cut_is_accounted_for() -> None:
    assert feed([b"ab", b"c.", b"END"], (".E",)) == [Piece("ab", 1), Piece("c", 0), Piece("", 1, ".E")]


def test_nothing_follows_a_stop() -> None:
    detokenizer = Detokenizer(Tokens([b"a.", b"b"]), (".",))
    assert detokenizer.push(0) == Piece("a", 1, ".")
    assert detokenizer.push(1) == Piece("", 0, ".")
    assert detokenizer.flush() == Piece("", 0, ".")


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        Detokenizer(Tokens([]), ("",))
