"""What a request may be at most: every bound on a body and on its fields, in one place (docs/operations.md quotes it).

Each bound is far above what clients send, and low enough that no request can take the engine's memory or hold its
threads. The body's own size is `ServiceConfig.body_limit_bytes`; a prompt's length is the model's window.
"""

from __future__ import annotations

BODIES_BYTES = 64 << 20
"""Bytes that all bodies together may have here, from their arrival until they are read into requests."""

FREE_BODY_BYTES = 64 << 10
"""The first bytes of each body are not counted against `BODIES_BYTES`: a connection's receive buffer holds as many
anyway, and so ordinary requests are served while others fill the budget."""

MAX_DEPTH = 64
"""Levels of arrays and objects inside each other in a body."""

MAX_VALUES = 65_536
"""Values (numbers, texts, arrays, objects) in a body, and beside them one for each place of the model's window,
because a prompt may come as token ids."""

MAX_MODEL = 256
"""Characters of `model`, which every chunk of an answer repeats."""

MAX_NAME = 256
"""Characters of a name: of a message, a function, a format or a modality."""

MAX_ID = 256
"""Characters of a tool call's id."""

MAX_USER = 512
"""Characters of `user` and of the other identifiers of an end user."""

MAX_MESSAGES = 4096
MAX_PARTS = 1024
"""Parts of one message."""

MAX_TOOL_CALLS = 128
"""Tool calls of one message."""

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512

MAX_CHOICES = 8
MAX_STOPS = 16
MAX_STOP = 1024
"""Characters of one stop string."""

MAX_BIASES = 1024
MAX_TEMPLATE_SWITCHES = 64
"""Entries of `chat_template_kwargs`."""

LARGEST = (1 << 63) - 1
"""The largest integer in any field."""
