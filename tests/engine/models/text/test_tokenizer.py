"""The tokenizer: ids as the reference gives them, and which text may become which token."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from gguf.constants import TokenType
from hypothesis import given
from hypothesis import strategies as st

from engine.models.text import tokenizer as tokenizer_module
from engine.models.text.tokenizer import GgufTokenizer, load_tokenizer
from engine.models.weights.gguf import DamagedModel, UnsupportedModel, read_header
from tests.support.gguf_files import ABSENT, Override, TinyLlama, byte_symbols, vocabulary, write_tiny_llama
from tests.support.models import default_model
from tests.support.patience import LONG_S

REFERENCE = json.loads((Path(__file__).parents[2] / "data" / "smollm2_ids.json").read_text())


def tiny(folder: Path, **changed: Override) -> GgufTokenizer:
    """The tiny model's tokenizer with metadata `tokenizer.ggml.<name>` changed."""
    metadata = {f"tokenizer.ggml.{name}": value for name, value in changed.items()}
    path = write_tiny_llama(folder / "t.gguf", replace(TinyLlama(layers=1), metadata=metadata))
    return load_tokenizer(read_header(path).metadata)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> GgufTokenizer:
    return tiny(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def smollm2() -> GgufTokenizer:
    return load_tokenizer(read_header(default_model()).metadata)


def text_of(tokenizer: GgufTokenizer, ids: list[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, ids))


@pytest.mark.model
@pytest.mark.parametrize("case", REFERENCE, ids=range(len(REFERENCE)))
def test_ids_are_the_references(smollm2: GgufTokenizer, case: dict[str, object]) -> None:
    text = str(case["text"])
    assert smollm2.encode(text) == case["ids"]
    assert smollm2.encode(text, special=True) == case["special"]
    assert text_of(smollm2, smollm2.encode(text)) == text.encode()


@pytest.mark.model
def test_the_built_in_models_special_tokens(smollm2: GgufTokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert (smollm2.bos_id, sorted(smollm2.eos_ids)) == (1, [0, 2, 4])
    assert smollm2.token_bytes(2) == b""
    assert smollm2.token_text(2) == "<|im_end|>"
    assert smollm2.prompt_ids("Hello, world!") == smollm2.encode("Hello, world!") == [19556, 28, 905, 17]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_comes_back(plain: GgufTokenizer, text: str) -> None:
    assert text_of(plain, plain.encode(text)) == text.encode()
    assert plain.least_tokens(text) <= len(plain.encode(text))


def test_other_threads_run_while_a_long_text_is_encoded(plain: GgufTokenizer) -> None:
    """One client's megabytes must not stop the streams of the others."""
    begun = threading.Event()

    def encode() -> None:
        begun.set()
        plain.encode("the quick brown fox 12345, " * 40_000)

    thread = threading.Thread(target=encode)
    thread.start()
    begun.wait(LONG_S)
    turns = 0
    while thread.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 5


@given(st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "<|endoftext|>", "a", "<", "|>", " the", "\n"])))
def test_client_text_never_becomes_a_control_token(plain: GgufTokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    ids = plain.encode(text)
    assert not {0, 1, 2} & set(ids)
    assert text_of(plain, ids) == text.encode()


def test_templates_may_spell_control_tokens(plain: GgufTokenizer) -> None:
    the = vocabulary()[0].index("the")
    assert plain.encode("<|im_start|>the<|im_end|>the", special=True) == [1, the, 2, the]


def test_a_merge_cannot_make_a_control_token(tmp_path: Path) -> None:
    tokens, types, merges = vocabulary()
    types = [*types, int(TokenType.CONTROL)]
    tokenizer = tiny(tmp_path, tokens=[*tokens, "is!"], token_type=types, merges=[*merges, "is !"])
    last = len(tokens)
    assert last not in tokenizer.encode("is!")
    assert tokenizer.encode("is!", special=True) == [last]


def test_user_defined_tokens_are_found_in_any_text(tmp_path: Path) -> None:
    tokens, types, _ = vocabulary()
    types = [*types, int(TokenType.USER_DEFINED), int(TokenType.UNUSED)]
    tokenizer = tiny(tmp_path, tokens=[*tokens, "<think>é", "[PAD]"], token_type=types)
    assert tokenizer.encode("a<think>éa") == [*tokenizer.encode("a"), len(tokens), *tokenizer.encode("a")]
    assert tokenizer.token_bytes(len(tokens)) == "<think>é".encode()
    assert tokenizer.token_bytes(len(tokens) + 1) == b""


def test_an_end_token_declared_user_defined_stays_out_of_client_text(tmp_path: Path) -> None:
    tokens, types, _ = vocabulary()
    tokenizer = tiny(tmp_path, tokens=[*tokens, "</s>"], token_type=[*types, int(TokenType.USER_DEFINED)])
    assert len(tokens) not in tokenizer.encode("</s>")
    assert len(tokens) in tokenizer.eos_ids


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("smollm", "1234", ["1", "2", "3", "4"]),
        ("qwen2", "1234", ["1", "2", "3", "4"]),
        ("llama-bpe", "1234", ["123", "4"]),
        ("gpt-2", "1234", ["1234"]),
        ("default", "1234", ["123", "4"]),
        ("smollm", " 1", ["Ġ", "1"]),
        ("gpt-2", " 1", ["Ġ1"]),
        ("qwen2", " 1", ["Ġ", "1"]),
        ("llama-bpe", "'S", ["'S"]),
        ("qwen2", "'S", ["'S"]),
        ("gpt-2", "'S", ["'", "S"]),
        ("llama-bpe", "!\n", ["!Ċ"]),
        ("gpt-2", "!\n", ["!", "Ċ"]),
        ("gpt-2", "\n\na", ["Ċ", "Ċ", "a"]),
        ("llama-bpe", "\n\na", ["ĊĊ", "a"]),
        ("gpt-2", "$!", ["$!"]),
        ("default", "a$!", ["a", "$!"]),
    ],
)
def test_where_each_pre_tokenizer_cuts(tmp_path: Path, pre: str, text: str, words: list[str]) -> None:
    joined = ["12", "123", "1234", "Ġ1", "'S", "ĊĊ", "!Ċ", "$!"]
    merges = ["1 2", "12 3", "123 4", "Ġ 1", "' S", "Ċ Ċ", "! Ċ", "$ !"]
    tokens = [*byte_symbols(), *joined]
    tokenizer = tiny(tmp_path, pre=pre, tokens=tokens, merges=merges, token_type=ABSENT, add_bos_token=False)
    assert [tokens[i] for i in tokenizer.encode(text)] == words


def test_llama_bpe_takes_whole_words_before_merges(tmp_path: Path) -> None:
    tokens = [*byte_symbols(), "ab", "abc"]
    for pre, expected in (("llama-bpe", ["abc"]), ("smollm", ["ab", "c"])):
        tokenizer = tiny(tmp_path, pre=pre, tokens=tokens, merges=["a b"], token_type=ABSENT)
        assert [tokens[i] for i in tokenizer.encode("abc")] == expected


def sentence_piece(folder: Path, **changed: Override) -> GgufTokenizer:
    words = ["\u2581", "a", "b", "c", "ab", "abc", "\u2581a", "\u2581abc", "bc"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *words]
    types = [2, 3, 3, *[6] * 256, *[1] * len(words)]
    scores = [0.0] * 259 + [-20.0, -21.0, -22.0, -23.0, -2.0, -3.0, -4.0, -5.0, -1.0]
    values: dict[str, Override] = {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores}
    values |= {"merges": ABSENT, "pre": ABSENT, "add_bos_token": ABSENT}
    return tiny(folder, **(values | changed))


def test_sentence_piece(tmp_path: Path) -> None:
    tokenizer = sentence_piece(tmp_path)
    shown = lambda text: [tokenizer.token_text(i) for i in tokenizer.encode(text)]  # noqa: E731
    assert shown("a") == [" a"]
    # bc scores above ab, so it is merged first and abc can only come of a + bc.
    assert shown("bc") == [" ", "bc"]
    assert shown("abc") == [" abc"]
    assert text_of(tokenizer, tokenizer.encode("aé\n")) == " aé\n".encode()
    assert tokenizer.prompt_ids("a")[0] == 1
    assert tokenizer.encode("</s>a", special=True)[0] == 2
    assert 2 not in tokenizer.encode("</s>a")


def test_sentence_piece_without_the_leading_space(tmp_path: Path) -> None:
    tokenizer = sentence_piece(tmp_path, add_space_prefix=False)
    assert text_of(tokenizer, tokenizer.encode("abc")) == b"abc"


def test_a_file_without_start_or_end_tokens_loads(tmp_path: Path) -> None:
    tokens, types, _ = vocabulary()
    tokens[2] = "<|other|>"
    tokens[0] = "<|none|>"
    tokenizer = tiny(
        tmp_path, tokens=tokens, token_type=types, bos_token_id=ABSENT, eos_token_id=ABSENT, add_bos_token=True
    )
    assert tokenizer.bos_id is None
    assert tokenizer.eos_ids == frozenset()
    assert tokenizer.prompt_ids("the") == tokenizer.encode("the")


def test_the_start_token_is_added_where_the_file_says(tmp_path: Path) -> None:
    assert tiny(tmp_path, add_bos_token=True).prompt_ids("") == [1]
    assert tiny(tmp_path, pre="llama-bpe", add_bos_token=ABSENT).prompt_ids("")[:1] == [1]
    assert tiny(tmp_path, add_bos_token=ABSENT).prompt_ids("") == []


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"merges": ABSENT}, DamagedModel, "merges is missing: without it text would become single bytes"),
        ({"merges": ["q z"]}, DamagedModel, "merges has 'q z', which is no pair of tokens"),
        ({"merges": ["the"]}, DamagedModel, "merges has 'the', which is no pair of tokens"),
        ({"tokens": ABSENT}, DamagedModel, r"tokenizer\.ggml\.tokens is missing"),
        ({"token_type": [1, 1]}, DamagedModel, "token_type has 2 entries for"),
        ({"bos_token_id": 100_000}, DamagedModel, "bos_token_id is 100000, allowed is 0 to"),
        ({"model": "bert"}, UnsupportedModel, "model is 'bert', supported are 'gpt2' and 'llama'"),
        ({"pre": "tekken"}, UnsupportedModel, "pre is 'tekken', supported are default, smollm"),
        ({"model": "llama"}, DamagedModel, r"tokenizer\.ggml\.scores is missing"),
    ],
)
def test_what_cannot_be_used_is_named(
    tmp_path: Path, changed: dict[str, Override], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=rf"t\.gguf: .*{message}"):
        tiny(tmp_path, **changed)


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("MAX_TOKENS", 275, r"tokens of tokenizer\.ggml\.tokens: 276, the limit is 275"),
        ("MAX_TOKEN_BYTES", 12, r"bytes of token 0 of tokenizer\.ggml\.tokens: 13, the limit is 12"),
        ("MAX_VOCABULARY_BYTES", 400, r"bytes of tokenizer\.ggml\.tokens: \d+, the limit is 400"),
        ("MAX_SPELLED", 2, r"control and user-defined tokens .*: 3, the limit is 2"),
        ("MAX_MERGES", 16, r"merges of tokenizer\.ggml\.merges: 17, the limit is 16"),
    ],
)
def test_a_vocabulary_has_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, message: str
) -> None:
    monkeypatch.setattr(tokenizer_module, limit, value)
    with pytest.raises(UnsupportedModel, match=message):
        tiny(tmp_path)


def test_a_token_of_400_kilobytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"bytes of token 268 .*: 400,000, the limit is 1,024"):
        sentence_piece(tmp_path, tokens=[*["x"] * 268, "a" * 400_000], token_type=ABSENT, scores=[0.0] * 269)


def test_control_tokens_by_their_spelling(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path, add_bos_token=True)
    assert [tokenizer.control_token(text) for text in ("<|im_start|>", "<|im_end|>", "the", "")] == [1, 2, None, None]
    plain = tokenizer.prompt_ids("<|im_end|>the")
    assert 2 not in plain
    assert tokenizer.prompt_ids("<|im_end|>the", special=True) == [1, 2, *tokenizer.encode("the")]
    assert tokenizer.prompt_ids("<|im_start|>the", special=True) == [1, *tokenizer.encode("the")]
