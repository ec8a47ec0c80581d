"""Chat templates and vocabularies that attack: each request runs one of many, and each file of a series one at load."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import gguf
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata

from tests.stress.attacks.harness import EngineDied, Harness, Result
from tests.support.gguf_files import ABSENT, CHATML, Override, TinyLlama, byte_symbols, write_tiny_llama
from tests.support.models import default_model

CLIENTS = 3
CHAT_S = 60.0

REQUESTS = {
    "nested loops": "{% for a in range(n) %}{% for b in range(n) %}{% for c in range(n) %}{% endfor %}{% endfor %}"
    "{% endfor %}",
    "a power of powers": "{{ 9 ** (n ** n) }}",
    "a string 5,000,000,000 long": "{{ 'x' * (n * 50000) }}",
    "a string 200,000,000 long": "{{ 'x' * (n * 2000) }}",
    "a string that doubles": "{% set s = namespace(s='xx') %}{% for i in range(99) %}{% set s.s = s.s ~ s.s %}"
    "{% endfor %}",
    "a list that doubles": "{% set s = namespace(s=[1]) %}{% for i in range(99) %}{% set s.s = [s.s, s.s] %}"
    "{% endfor %}{{ s.s }}",
    "JSON indented by 2,000,000,000": "{{ [[n]] | tojson(indent=2000000000) }}",
    "a range of 1,000,000,000": "{{ range(n * 10000) | list }}",
    "centred in 1,000,000,000": "{{ 'x' | center(n * 10000) }}",
    "a width of 1,000,000,000": "{{ '%1000000000d' % n }}",
    "a format of 1,000,000,000": "{{ '{:1000000000d}'.format(n) }}",
    "replaced by megabytes": "{{ ('a' * n) | replace('a', 'b' * n) }}",
    "joined by megabytes": "{{ ('a' * n) | join('b' * n) }}",
    "a batch of 2,000,000,000": "{{ range(9) | batch(2000000000, n) | list }}",
    "1,000,000,000 slices": "{{ range(9) | slice(n * 10000) | list }}",
    "indented megabytes": "{{ ('a\n' * n) | indent(n) }}",
    "a macro that calls itself twice": "{% macro f(k) %}{% if k %}{{ f(k - 1) }}{{ f(k - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "a macro without an end": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a loop into itself": "{% for x in [n] recursive %}{{ loop([x]) }}{% endfor %}",
    "megabytes of text": "{% for a in range(n) %}{% for b in range(n) %}xxxxxxxx{% endfor %}{% endfor %}",
    "an error of megabytes": "{{ raise_exception('x' * (n * 500)) }}",
}

CHAT_ALONE = {
    "30 nested for": "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
    "5,000 parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "a constant power": "{{ 9 ** (9 ** 9) }}",
    "100,000 expressions": "{{ n }}" * 100_000,
}
"""Templates of files that load and serve completions, while chats are refused."""


def run(harness: Harness) -> list[Result]:
    # The library that copies a file says each of its keys.
    logging.disable(logging.INFO)
    try:
        with _folder() as folder:
            with Harness.open(model=_with_template(folder / "hostile.gguf", _choosing())) as hostile:
                serving = _requests(hostile)
            return [serving, _templates_at_load(harness, folder), _vocabularies_at_load(harness, folder)]
    finally:
        logging.disable(logging.NOTSET)


def _requests(harness: Harness) -> Result:
    """Several clients at once; a plain chat afterwards is served."""
    with (
        harness.watch("hostile templates, a request", f"{len(REQUESTS)} kinds, {CLIENTS} clients") as watch,
        ThreadPoolExecutor(CLIENTS) as clients,
    ):
        answers = list(clients.map(lambda name: (name, _chat(harness, name)), REQUESTS))
        limits = 0
        for name, (status, message) in answers:
            watch.expect(status in (400, 503), f"{name}: status {status}, {message}")
            limits += status == 400
        watch.note(f"{limits} of {len(answers)} ended by a limit or refused with 400, the others waited too long (503)")
        status, message = _chat(harness, "none")
        watch.expect(status == 200, f"a plain chat afterwards: status {status}, {message}")
    return watch.result


def _chat(harness: Harness, attack: str) -> tuple[int, str]:
    body = {
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 4,
        "chat_template_kwargs": {"attack": attack, "n": 99_999},
    }
    answer = harness.engine.post("/v1/chat/completions", body, timeout_s=CHAT_S)
    return answer.status, "" if answer.status == 200 else str(answer.json()["error"]["message"])[:200]


def _templates_at_load(harness: Harness, folder: Path) -> Result:
    with harness.watch("hostile templates at load", f"{len(CHAT_ALONE)} files, each in an engine") as watch:
        for name, source in CHAT_ALONE.items():
            path = _tiny(folder, {"tokenizer.chat_template": source})
            with Harness.open(model=path) as other:
                health = other.engine.health()
                watch.expect(health["status"] == "ok", f"{name}: /health says {health['status']}")
                watch.expect(bool(health["model"]["warnings"]), f"{name}: /health has no warning")
                status, message = _chat(other, name)
                watch.expect(status == 400 and "chat template" in message, f"{name}: status {status}, {message}")
                watch.note(f"{name}: {message.removeprefix('the model' + chr(39) + 's chat template ')[:60]}")
    return watch.result


def _vocabularies_at_load(harness: Harness, folder: Path) -> Result:
    with harness.watch("hostile vocabularies at load", f"{len(VOCABULARIES)} files, each in an engine") as watch:
        for name, metadata in VOCABULARIES.items():
            try:
                with Harness.open(model=_tiny(folder, metadata)):
                    watch.expect(False, f"{name}: it serves")
            except EngineDied as why:
                _, clear, reason = str(why).partition("the model could not be loaded: ")
                watch.expect(bool(clear) and "the limit is" in reason, f"{name}: it ended with {why}")
                watch.note(f"{name}: {reason.partition('.gguf: ')[2].splitlines()[0][:80]}")
    return watch.result


def _long_token() -> dict[str, Override]:
    tokens = [*byte_symbols(), "a" * 400_000]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": ABSENT,
    }


def _many_controls() -> dict[str, Override]:
    tokens = [*byte_symbols(), *(f"<|{i}" for i in range(20_000))]
    return {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * 256 + [3] * 20_000}


VOCABULARIES = {"a token of 400,000 bytes": _long_token(), "20,000 control tokens": _many_controls()}


def _choosing() -> str:
    """One template with every attack, chosen by a request's `chat_template_kwargs`."""
    cases = "".join(f"{{% elif attack == {json.dumps(name)} %}}{source}" for name, source in REQUESTS.items())
    return "{% if attack is not defined %}" + cases + "{% endif %}" + CHATML


def _with_template(path: Path, template: str) -> Path:
    """The default model with another chat template."""
    reader = gguf.GGUFReader(default_model())
    architecture = reader.get_field(gguf.Keys.General.ARCHITECTURE)
    assert architecture is not None
    writer = gguf.GGUFWriter(path, arch=architecture.contents())
    details = MetadataDetails(gguf.GGUFValueType.STRING, template)
    copy_with_new_metadata(reader, writer, {gguf.Keys.Tokenizer.CHAT_TEMPLATE: details}, [])
    return path


def _tiny(folder: Path, metadata: dict[str, Override]) -> Path:
    return write_tiny_llama(folder / "tiny.gguf", TinyLlama(layers=1, metadata=metadata))


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tandem-templates-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
