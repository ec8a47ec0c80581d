"""What the engine and the dialects need of a tokenizer and of a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Tokenizer(Protocol):
    """Text to token ids and back, built from the model's own file."""

    vocab_size: int
    eos_ids: frozenset[int]
    bos_id: int | None

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of `text`. `special` lets the spellings of control tokens in `text` become those tokens (for
        rendered templates, and a raw prompt whose client asks for it). Adds no token of its own."""
        ...

    def prompt_ids(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of a raw completion prompt: `encode` with the start token where the file asks for one and `text`
        does not begin with it."""
        ...

    def least_tokens(self, text: str) -> int:
        """A number of tokens that `text` has at least, known at once: what is far too long need not be encoded."""
        ...

    def control_token(self, spelling: str) -> int | None:
        """The control token that is spelled so; None where there is none."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes that `token` adds to the text; empty for a control token."""
        ...

    def token_text(self, token: int) -> str:
        """The token as a client is shown it in log-probabilities (control tokens by their spelling)."""
        ...


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation: its ids, and how many of them reach to the end of the first user message."""

    ids: tuple[int, ...]
    first_user_end: int


class ChatTemplate(Protocol):
    """The model's own chat template."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        """Render and tokenise `messages` (role and string content each). Raises RequestError(400) with the
        template's own message where the template refuses them."""
        ...
