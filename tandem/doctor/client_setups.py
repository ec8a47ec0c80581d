"""How a client is pointed at an engine: its configuration's snippet, what that would change, and what it still lacks.

Nothing is written anywhere. A snippet names the variable that holds the API key, never the key.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.models.catalog import BUILT_IN
from engine.process.keyring import TOKENS, SecretsUnusable, read_secrets
from tandem.client.register import address_of
from tandem.client.wire import KEY_VARIABLE, health
from tandem.exits import CommandError, Exit
from tandem.settings.engine_config import secrets_file
from tandem.settings.origins import resolve

NO_KEY = "none"
"""The key in a snippet where the engine wants none: most clients need some text."""

WINDOW = 8192
"""The window in a snippet where no engine answers."""


class ClientSetup(msgspec.Struct, frozen=True, kw_only=True):
    """One client's setup. `place` is the file or the environment that the snippet belongs into, `changes` the keys that
    it sets there, `missing` what the client needs and this version of the engine lacks."""

    client: str
    title: str
    place: str
    format: str
    snippet: str
    changes: list[str]
    notes: list[str]
    missing: list[str]


@dataclass(frozen=True, slots=True)
class ClientTarget:
    """The engine that the client is to use; `key` is the text a snippet has in the place of a key, `keyed` whether one
    is needed."""

    url: str
    model: str
    window: int
    keyed: bool

    @property
    def base(self) -> str:
        return f"{self.url}/v1"


def setup_for(client: str, url: str | None, model: str) -> ClientSetup:
    """The setup of one of `CLIENTS`, for the engine at `url`, else for the one that runs or would run. Raises
    CommandError."""
    target = _target(url, model)
    setup = CLIENTS[client](target)
    return msgspec.structs.replace(setup, notes=[*_key_notes(client, target), *setup.notes])


def _target(url: str | None, model: str) -> ClientTarget:
    address = address_of(url)
    name = model if model in BUILT_IN else Path(model).stem
    window = WINDOW
    try:
        found = health(address, timeout_s=2.0)
    except CommandError:
        pass
    else:
        if found.model is not None:
            name, window = found.model.name, found.model.max_len
    return ClientTarget(address.url, name, window, bool(_labels()))


def _labels() -> set[str]:
    """The labels of the API keys. Raises CommandError (exit 2) where their file cannot be used."""
    try:
        held = read_secrets(secrets_file(resolve().settings))
    except SecretsUnusable as why:
        raise CommandError(str(why), Exit.USAGE) from why
    return {secret.label for secret in held} - set(TOKENS)


def _key_notes(client: str, target: ClientTarget) -> list[str]:
    if not target.keyed:
        return ["the engine has no API keys, so any text will do as the key"]
    if client in _labels():
        return [f"its key has the label {client}: put it into {KEY_VARIABLE}; lost, `tandem secrets rotate {client}`"]
    return [f"`tandem secrets add {client}` makes its key; put it into {KEY_VARIABLE}"]


def _lacks(route: str) -> list[str]:
    from engine.http.app import NOT_BUILT

    return [f"this engine does not serve POST {route}"] if route in NOT_BUILT else []


def _lacks_tools() -> list[str]:
    from engine.http.openai.params import NOT_BUILT

    refused = "this engine refuses requests with tools, which an agent sends with every turn"
    return [refused] if "tools" in NOT_BUILT else []


def _openai(target: ClientTarget) -> ClientSetup:
    key = f'os.environ["{KEY_VARIABLE}"]' if target.keyed else f'"{NO_KEY}"'
    snippet = f"""{"import os" + chr(10) * 2 if target.keyed else ""}from openai import OpenAI

client = OpenAI(base_url={json.dumps(target.base)}, api_key={key})
answer = client.chat.completions.create(
    model={json.dumps(target.model)},
    messages=[{{"role": "user", "content": "Say hello."}}],
    max_tokens=32,
)
print(answer.choices[0].message.content)
"""
    return ClientSetup(
        client="openai",
        title="OpenAI SDK",
        place="your program",
        format="python",
        snippet=snippet,
        changes=["base_url", "api_key", "model"],
        notes=[f"or without a change to the program: OPENAI_BASE_URL={target.base} and OPENAI_API_KEY"],
        missing=[],
    )


def _opencode(target: ClientTarget) -> ClientSetup:
    document = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {
            "tandem": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Tandem",
                "options": {
                    "baseURL": target.base,
                    "apiKey": f"{{env:{KEY_VARIABLE}}}" if target.keyed else NO_KEY,
                },
                "models": {
                    target.model: {
                        "name": target.model,
                        "limit": {"context": target.window, "output": target.window // 4},
                    }
                },
            }
        },
        "model": f"tandem/{target.model}",
    }
    return ClientSetup(
        client="opencode",
        title="opencode",
        place="~/.config/opencode/opencode.json, or opencode.json in a project",
        format="json",
        snippet=_json(document),
        changes=["provider.tandem", "model (the default model of every session)"],
        notes=["merge it into a file that is there: other providers stay"],
        missing=_lacks_tools(),
    )


def _open_webui(target: ClientTarget) -> ClientSetup:
    key = f"${{{KEY_VARIABLE}}}" if target.keyed else NO_KEY
    snippet = f"OPENAI_API_BASE_URLS={target.base}\nOPENAI_API_KEYS={key}\nENABLE_OLLAMA_API=false\n"
    return ClientSetup(
        client="open-webui",
        title="Open WebUI",
        place="the environment that Open WebUI starts in (an env file, or `environment:` of its container)",
        format="env",
        snippet=snippet,
        changes=["OPENAI_API_BASE_URLS", "OPENAI_API_KEYS", "ENABLE_OLLAMA_API (off: no Ollama is looked for)"],
        notes=[
            "it takes these at its first start alone; later they are under Admin Settings, Connections, OpenAI API",
            "in a container 127.0.0.1 is the container: use http://host.docker.internal:PORT/v1, serve with "
            "--host 0.0.0.0 and an API key, and set TANDEM_ALLOWED_HOSTS=host.docker.internal",
        ],
        missing=[],
    )


def _claude_code(target: ClientTarget) -> ClientSetup:
    token = f"(the key in {KEY_VARIABLE})" if target.keyed else NO_KEY
    document = {
        "env": {
            "ANTHROPIC_BASE_URL": target.url,
            "ANTHROPIC_AUTH_TOKEN": token,
            "ANTHROPIC_MODEL": target.model,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": target.model,
        }
    }
    return ClientSetup(
        client="claude-code",
        title="Claude Code",
        place="~/.claude/settings.json",
        format="json",
        snippet=_json(document),
        changes=[f"env.{name}" for name in document["env"]],
        notes=[
            "every session of this user then uses the engine; for one alone, export the four variables and unset "
            "ANTHROPIC_API_KEY",
            "not in a project's .claude/settings.json: that file is shared, and holds the key",
        ],
        missing=[*_lacks("/v1/messages"), *_lacks("/v1/messages/count_tokens"), *_lacks_tools()],
    )


def _codex(target: ClientTarget) -> ClientSetup:
    env_key = f"env_key = {json.dumps(KEY_VARIABLE)}\n" if target.keyed else ""
    snippet = (
        f'model = {json.dumps(target.model)}\nmodel_provider = "tandem"\n\n[model_providers.tandem]\nname = "Tandem"\n'
        f'base_url = {json.dumps(target.base)}\n{env_key}wire_api = "responses"\n'
    )
    return ClientSetup(
        client="codex",
        title="Codex",
        place="~/.codex/config.toml",
        format="toml",
        snippet=snippet,
        changes=["model", "model_provider", "model_providers.tandem"],
        notes=["the first two keys stand above every table; it speaks the Responses API alone"],
        missing=[*_lacks("/v1/responses"), *_lacks_tools()],
    )


def _json(document: object) -> str:
    return json.dumps(document, indent=2) + "\n"


CLIENTS: dict[str, Callable[[ClientTarget], ClientSetup]] = {
    "openai": _openai,
    "opencode": _opencode,
    "open-webui": _open_webui,
    "claude-code": _claude_code,
    "codex": _codex,
}
