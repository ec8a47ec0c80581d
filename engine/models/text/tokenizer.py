"""Text to token ids and back, built from the vocabulary that a GGUF file carries.

Byte-level BPE (`gpt2`) with the pre-tokenizers named in `PRE_TOKENIZERS`, and SentencePiece BPE (`llama`). The patterns
and the treatment of token types are those of llama.cpp's `llama-vocab.cpp`, so that ids agree with files made for it.
Spellings of control tokens are found here, before the BPE, and only where the caller says that the text may have them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
from tokenizers import Regex
from tokenizers import Tokenizer as HfTokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizerSequence

from engine.models.text.spellings import Spellings
from engine.models.weights.gguf import DamagedModel, Metadata, UnsupportedModel

# Texts come one at a time, so its threads would bring nothing, and they make it complain in every forked child.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class TokenType(IntEnum):
    """GGUF's token types."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class PreTokenizerKind:
    """How a byte-level model cuts text into words: each pattern cuts what the one before left. `whole_words` takes a
    word that is a token as it is, before any merge; `add_bos` is the default where the file does not say."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_LINES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_LINES}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_LINES}"

_DIGITS_THEN_GPT2 = PreTokenizerKind((r"\p{N}", _GPT2))
_PLAIN_GPT2 = PreTokenizerKind((_GPT2,))
_LLAMA_BPE = PreTokenizerKind((_LLAMA3,), whole_words=True, add_bos=True)

PRE_TOKENIZERS: dict[str, PreTokenizerKind] = {
    "default": PreTokenizerKind((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "smollm": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "refact": _DIGITS_THEN_GPT2,
    "gpt-2": _PLAIN_GPT2,
    "olmo": _PLAIN_GPT2,
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "qwen2": PreTokenizerKind((_QWEN2,)),
    "deepseek-r1-qwen": PreTokenizerKind((_QWEN2,)),
}

END_SPELLINGS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>", "<end_of_turn>",
    "<end_of_utterance>", "</s>", "<EOT>", "[EOT]", "<|fim_pad|>", "<fim_pad>", "<|fim_repo|>", "<|repo_name|>",
    "<reponame>", "<|file_sep|>",
})  # fmt: skip
"""Control tokens that end a generation whatever the file's end token is."""


MAX_TOKENS = 1 << 20
MAX_TOKEN_BYTES = 1 << 10
MAX_VOCABULARY_BYTES = 32 << 20
MAX_SPELLED = 1 << 14
MAX_MERGES = 1 << 21
"""Limits of a vocabulary, several times what any known model has. Building a tokenizer takes time and memory that grow
with each, and with a token's length squared."""

_MARKER = re.compile(r"<\|[^<>\s]+\|>|<｜[^<>\s]+｜>")
"""How chat templates write their markers."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A stretch of text: plain, or the spelling of the one token that it becomes."""

    text: str
    token: int | None = None


class GgufTokenizer:
    """The tokenizer of one model; implements `engine.models.text.interfaces.Tokenizer`. Safe from any thread."""

    def __init__(
        self,
        vocabulary: Sequence[str],
        types: Sequence[int],
        plain: PlainEncoder,
        *,
        bos_id: int | None,
        eos_ids: Iterable[int],
        add_bos: bool,
        warnings: Sequence[str] = (),
    ) -> None:
        self.warnings = tuple(warnings)
        """What is wrong with the file's vocabulary and was mended, a sentence each."""
        self.vocab_size = len(vocabulary)
        self.bos_id = bos_id
        self.eos_ids = frozenset(eos_ids)
        self.adds_bos = add_bos and bos_id is not None
        self._vocabulary = vocabulary
        self._types = types
        self._plain = plain
        self._bytes: list[bytes | None] = [None] * len(vocabulary)
        self.longest = max(_LONGEST_CHARACTER, *(len(token.encode()) for token in vocabulary))
        """Bytes of the longest token, and so the most characters that one token may stand for."""
        # A spelling of one character cannot be told from text that happens to hold it.
        spelled = {t: i for i, t in enumerate(vocabulary) if len(t) > 1 and types[i] in _SPELLED}
        always = {t: i for t, i in spelled.items() if types[i] == TokenType.USER_DEFINED}
        self._spelled = spelled
        self.control_spellings = Spellings(t for t in spelled if t not in always)
        """Those that `encode` turns into a control token only where `special` is set."""
        self._any_spellings = Spellings(spelled)
        self._always_spellings = Spellings(always)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of `text`; see `engine.models.text.interfaces.Tokenizer`."""
        ids: list[int] = []
        after_token = True
        for fragment in self.fragments(text, special=special):
            ids += self.encode_fragment(fragment, after_token=after_token)
            after_token = fragment.token is not None
        return ids

    def prompt_ids(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of a raw completion prompt; see `engine.api.Tokenizer`."""
        ids = self.encode(text, special=special)
        if not self.adds_bos or self.bos_id is None or (special and ids[:1] == [self.bos_id]):
            return ids
        return [self.bos_id, *ids]

    def control_token(self, spelling: str) -> int | None:
        """The control token that is spelled so; see `engine.api.Tokenizer`."""
        token = self._spelled.get(spelling)
        return token if token is not None and self._types[token] != TokenType.USER_DEFINED else None

    def least_tokens(self, text: str) -> int:
        """No fewer tokens than these, known from the length alone."""
        return -(-len(text) // self.longest)

    def fragments(self, text: str, *, special: bool) -> Iterator[Fragment]:
        """Cut `text` at the spellings of tokens: user-defined ones always, control tokens where `special` is set."""
        spellings = self._any_spellings if special else self._always_spellings
        at = 0
        for start, end in spellings.find(text):
            if start > at:
                yield Fragment(text[at:start])
            spelling = text[start:end]
            yield Fragment(spelling, self._spelled[spelling])
            at = end
        if at < len(text):
            yield Fragment(text[at:])

    def encode_fragment(self, fragment: Fragment, *, after_token: bool) -> list[int]:
        """Token ids of one fragment. `after_token`: it starts the text or follows a spelled token."""
        return [fragment.token] if fragment.token is not None else self._plain.encode(fragment.text, after_token)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that `token` adds to the text; empty for a control token."""
        known = self._bytes[token]
        if known is None:
            known = self._bytes[token] = self._bytes_of(token)
        return known

    def token_text(self, token: int) -> str:
        """The token as a client is shown it in log-probabilities."""
        if self._types[token] in _SILENT:
            return self._vocabulary[token]
        return self.token_bytes(token).decode(errors="replace")

    def _bytes_of(self, token: int) -> bytes:
        kind = self._types[token]
        if kind in _SILENT:
            return b""
        if kind == TokenType.USER_DEFINED:
            return self._vocabulary[token].encode()
        return self._plain.decode(self._vocabulary[token])


class PlainEncoder(Protocol):
    """Encodes text that holds no spelling of a token, and decodes the tokens that it makes."""

    def encode(self, text: str, after_token: bool) -> list[int]: ...

    def decode(self, token: str) -> bytes: ...


class ByteLevelEncoder:
    """BPE over bytes, each written as one visible character (GPT-2's table)."""

    def __init__(self, model: BPE, kind: PreTokenizerKind) -> None:
        cuts: list[PreTokenizer] = [Split(Regex(pattern), behavior="isolated") for pattern in kind.patterns]
        self._tokenizer = HfTokenizer(model)
        self._tokenizer.pre_tokenizer = PreTokenizerSequence(
            [*cuts, ByteLevel(add_prefix_space=False, use_regex=False)]
        )

    def encode(self, text: str, after_token: bool) -> list[int]:
        return _ids(self._tokenizer, text)

    def decode(self, token: str) -> bytes:
        try:
            return token.translate(_SYMBOL_TO_BYTE).encode("latin-1")
        except UnicodeEncodeError:
            return token.encode()


class SentencePieceEncoder:
    """SentencePiece's BPE: spaces are written as `▁`, unknown characters as byte tokens `<0xNN>`."""

    def __init__(self, model: BPE, *, space_prefix: bool) -> None:
        self._tokenizer = HfTokenizer(model)
        self._space_prefix = space_prefix

    def encode(self, text: str, after_token: bool) -> list[int]:
        shown = (" " + text if self._space_prefix and after_token else text).replace(" ", _SPACE)
        return _ids(self._tokenizer, shown)

    def decode(self, token: str) -> bytes:
        byte = _BYTE_TOKEN.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace(_SPACE, " ").encode()


def _ids(tokenizer: HfTokenizer, text: str) -> list[int]:
    """Ids of one text. Only the batch form lets other threads run meanwhile: a long text would stop every stream."""
    ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def load_tokenizer(metadata: Metadata) -> GgufTokenizer:
    """Build the tokenizer that the file describes.

    Raises UnsupportedModel where its kind is not known, DamagedModel where a part that it needs is missing or wrong.
    A file without a start or an end token loads: prompts get no start token, and generation ends at its length.
    """
    kind = metadata.text("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModel(
            f"{metadata.path}: tokenizer.ggml.model is {kind[:100]!r}, supported are 'gpt2' and 'llama'"
        )
    vocabulary = metadata.texts("tokenizer.ggml.tokens")
    if not vocabulary:
        raise DamagedModel(f"{metadata.path}: tokenizer.ggml.tokens is empty")
    _check_sizes(metadata, vocabulary)
    types, warnings = _types(metadata, vocabulary)
    text_ids = {t: i for i, t in enumerate(vocabulary) if types[i] not in _SPELLED}
    if kind == "gpt2":
        pre = metadata.text("tokenizer.ggml.pre", "default")
        if pre not in PRE_TOKENIZERS:
            raise UnsupportedModel(
                f"{metadata.path}: tokenizer.ggml.pre is {pre[:100]!r}, supported are {', '.join(PRE_TOKENIZERS)}"
            )
        spec = PRE_TOKENIZERS[pre]
        add_bos = spec.add_bos
        merges = _file_merges(metadata, vocabulary, text_ids)
        plain: PlainEncoder = ByteLevelEncoder(BPE(text_ids, merges, ignore_merges=spec.whole_words), spec)
    else:
        add_bos = True
        prefix = metadata.flag("tokenizer.ggml.add_space_prefix", True)
        plain = SentencePieceEncoder(_sentence_piece(metadata, text_ids), space_prefix=prefix)
    named = [_token_id(metadata, f"tokenizer.ggml.{name}_token_id", len(vocabulary)) for name in ("eos", "eot", "eom")]
    spelled = (i for i, t in enumerate(vocabulary) if t in END_SPELLINGS and types[i] == TokenType.CONTROL)
    return GgufTokenizer(
        vocabulary,
        types,
        plain,
        bos_id=_token_id(metadata, "tokenizer.ggml.bos_token_id", len(vocabulary)),
        eos_ids={*(i for i in named if i is not None), *spelled},
        add_bos=metadata.flag("tokenizer.ggml.add_bos_token", add_bos),
        warnings=warnings,
    )


def _check_sizes(metadata: Metadata, vocabulary: Sequence[str]) -> None:
    """Raises UnsupportedModel where the vocabulary is larger than any that is known."""

    def check(what: str, value: int, limit: int) -> None:
        if value > limit:
            raise UnsupportedModel(f"{metadata.path}: {what} {value:,}, the limit is {limit:,}")

    check("tokens of tokenizer.ggml.tokens:", len(vocabulary), MAX_TOKENS)
    lengths = [len(token.encode()) for token in vocabulary]
    longest = max(lengths)
    check(f"bytes of token {lengths.index(longest)} of tokenizer.ggml.tokens:", longest, MAX_TOKEN_BYTES)
    check("bytes of tokenizer.ggml.tokens:", sum(lengths), MAX_VOCABULARY_BYTES)
    if "tokenizer.ggml.merges" in metadata:
        check("merges of tokenizer.ggml.merges:", len(metadata.texts("tokenizer.ggml.merges")), MAX_MERGES)
    for name in ("token_type", "scores"):
        key = f"tokenizer.ggml.{name}"
        if key in metadata and len(entries := metadata.array(key)) != len(vocabulary):
            raise DamagedModel(f"{metadata.path}: {key} has {len(entries)} entries for {len(vocabulary)} tokens")
    if "tokenizer.ggml.token_type" in metadata:
        spelled = np.isin(metadata.array("tokenizer.ggml.token_type"), list(_SPELLED))
        check("control and user-defined tokens of tokenizer.ggml.token_type:", int(spelled.sum()), MAX_SPELLED)


def _types(metadata: Metadata, vocabulary: Sequence[str]) -> tuple[list[int], list[str]]:
    """The tokens' types, mended, and what was mended in words."""
    if "tokenizer.ggml.token_type" in metadata:
        types: list[int] = metadata.array("tokenizer.ggml.token_type").tolist()
    else:
        types = [int(TokenType.NORMAL)] * len(vocabulary)
    markers = _template_markers(metadata)
    found = [i for i, t in enumerate(vocabulary) if t in markers and types[i] in _WRITABLE]
    for i in found:
        types[i] = TokenType.CONTROL
    # Some files declare an end token as user-defined; client text must not produce it.
    mistaken = (i for i, t in enumerate(vocabulary) if t in END_SPELLINGS and types[i] == TokenType.USER_DEFINED)
    for i in mistaken:
        types[i] = TokenType.CONTROL
    if not found:
        return types, []
    names = ", ".join(vocabulary[i] for i in found[:5]) + (", ..." if len(found) > 5 else "")
    return types, [
        f"the vocabulary has {len(found)} of the chat template's own markers as text ({names}); they are taken for "
        "control tokens, so that no message can forge one"
    ]


def _template_markers(metadata: Metadata) -> frozenset[str]:
    """The markers that the file's chat template spells."""
    template = metadata.get("tokenizer.chat_template", "")
    return frozenset(_MARKER.findall(template)) if isinstance(template, str) else frozenset()


def _token_id(metadata: Metadata, key: str, size: int) -> int | None:
    return metadata.integer(key, high=size - 1) if key in metadata else None


def _file_merges(metadata: Metadata, vocabulary: Sequence[str], text_ids: dict[str, int]) -> list[tuple[str, str]]:
    """The file's merges, without those that would make a control token out of text."""
    if not metadata.get("tokenizer.ggml.merges"):
        raise DamagedModel(
            f"{metadata.path}: tokenizer.ggml.merges is missing: without it text would become single bytes"
        )
    merges = []
    known: set[str] | None = None
    for merge in metadata.texts("tokenizer.ggml.merges"):
        cut = merge.find(" ", 1)
        left, right = merge[:cut], merge[cut + 1 :]
        if left in text_ids and right in text_ids and left + right in text_ids:
            merges.append((left, right))
            continue
        known = known or set(vocabulary)
        if cut < 0 or not {left, right, left + right} <= known:
            raise DamagedModel(
                f"{metadata.path}: tokenizer.ggml.merges has {merge[:100]!r}, "
                "which is no pair of tokens that make a token"
            )
    return merges


def _sentence_piece(metadata: Metadata, text_ids: dict[str, int]) -> BPE:
    """Merges in the order of the tokens' scores: every split of a token into two tokens makes it."""
    scores = metadata.array("tokenizer.ggml.scores").tolist()
    splits = [
        (-scores[i], text_ids[token[:cut]], text_ids[token[cut:]], token[:cut], token[cut:])
        for token, i in text_ids.items()
        for cut in range(1, len(token))
        if token[:cut] in text_ids and token[cut:] in text_ids
    ]
    splits.sort()
    return BPE(text_ids, [(left, right) for *_, left, right in splits], byte_fallback=True)


def _symbol_to_byte() -> dict[int, int]:
    """GPT-2's table, reversed: visible Latin-1 characters stand for themselves, 256, 257, ... for the other bytes."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(visible))
    # Any other character must fail to encode as Latin-1, so that none is mistaken for a byte.
    return {b: b for b in visible} | {256 + i: b for i, b in enumerate(others)} | dict.fromkeys(others, 0xFFFF)


_SYMBOL_TO_BYTE = _symbol_to_byte()
_SPACE = "\u2581"
_LONGEST_CHARACTER = 4
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPELLED = frozenset({TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED})
_WRITABLE = frozenset({TokenType.NORMAL, TokenType.USER_DEFINED})
_SILENT = frozenset({TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED, TokenType.UNDEFINED})
