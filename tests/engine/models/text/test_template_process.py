"""The template process: hostile templates end by a limit or are refused, and the next render is served."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from engine.models.text.template_process import (
    MAX_SOURCE,
    Rendering,
    TemplateBroken,
    TemplateBusy,
    TemplateFault,
    TemplateOverLimit,
    TemplateProcess,
    TemplateRefused,
)


@pytest.fixture(scope="module")
def process() -> Iterator[TemplateProcess]:
    """Little memory, and more time than anything here takes."""
    made = TemplateProcess(cpu_s=60, memory_mib=128)
    yield made
    made.close()


@pytest.fixture(scope="module")
def hasty() -> Iterator[TemplateProcess]:
    """Little time."""
    made = TemplateProcess(cpu_s=0.1)
    yield made
    made.close()


def rendering(**changed: Any) -> Rendering:
    values: dict[str, Any] = {
        "messages": [{"role": "user", "content": "hello"}],
        "opening": None,
        "add_generation_prompt": True,
        "variables": {},
        "characters": 10_000,
    }
    return Rendering(**(values | changed))


def serves(process: TemplateProcess) -> bool:
    return process.render("{{ messages[0].content }}", rendering()).text == "hello"


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}"
TOO_LONG, TOO_MUCH, TOO_MANY = r"^took longer than 0\.1 s$", r"^needed more than 128 MiB", r"^made more than 10,000 cha"


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(LOOPS, id="steps of Python"),
        pytest.param("{% set a = 9 %}{{ a ** (a ** a) }}", id="one step of C"),
        pytest.param("{{ 9 ** (9 ** 9) }}", id="folded while compiling"),
        pytest.param(f"{{% if messages | length == 1 %}}{LOOPS}{{% endif %}}x", id="the opening"),
    ],
)
def test_what_takes_long_is_ended(hasty: TemplateProcess, source: str) -> None:
    with pytest.raises(TemplateOverLimit, match=TOO_LONG):
        hasty.render(source, rendering(messages=[{"content": "hello"}, {}], opening=1))
    assert serves(hasty)


@pytest.mark.parametrize(
    ("source", "fault", "message"),
    [
        pytest.param("{{ messages[0].role * 5000000000 }}", TemplateOverLimit, TOO_MUCH, id="one string"),
        pytest.param(DOUBLING, TemplateOverLimit, TOO_MUCH, id="a string that doubles"),
        pytest.param("{{ [[1]] | tojson(indent=2000000000) }}", TemplateOverLimit, TOO_MUCH, id="a filter's width"),
        pytest.param("{{ '%1000000000d' % messages | length }}", TemplateOverLimit, TOO_MUCH, id="a format's width"),
        pytest.param("{% for a in range(99999) %}x{% endfor %}", TemplateOverLimit, TOO_MANY, id="much text"),
        pytest.param("{{ range(1000000000) }}", TemplateRefused, "Range too big", id="a range"),
        pytest.param("{{ lipsum(n=1000000) }}", TemplateRefused, "'lipsum' is undefined", id="lipsum"),
        pytest.param("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", TemplateRefused, "too deep", id="recursion"),
        pytest.param("{% for a in [1] %}" * 30 + "{% endfor %}" * 30, TemplateBroken, "nested blocks", id="30 for"),
        pytest.param("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", TemplateBroken, "too deep", id="5000 parentheses"),
        pytest.param("x" * (MAX_SOURCE + 1), TemplateBroken, "the limit is 1,048,576", id="a long source"),
    ],
)
def test_a_hostile_template_is_ended_and_named(
    process: TemplateProcess, source: str, fault: type[TemplateFault], message: str
) -> None:
    with pytest.raises(fault, match=message):
        process.render(source, rendering())
    assert serves(process)


def test_compiling_is_limited_too(hasty: TemplateProcess) -> None:
    with pytest.raises(TemplateOverLimit, match=TOO_LONG):
        hasty.compile("{{ 9 ** (9 ** 9) }}")
    hasty.compile("{{ messages[0].content }}")


def test_messages_that_nest_too_deep_are_refused(process: TemplateProcess) -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(TemplateRefused, match="nest too deep"):
        process.render("x", rendering(variables={"deep": deep}))
    assert serves(process)


def test_any_text_passes(process: TemplateProcess) -> None:
    text = "a\0\ud800\U0001f600"
    assert process.render("{{ t }}", rendering(variables={"t": text})).text == text


def test_a_render_that_waits_too_long_for_others_is_told() -> None:
    impatient = TemplateProcess(wall_s=0.01)
    with impatient._lock, pytest.raises(TemplateBusy, match=r"of other requests took longer than 0\.01 s"):
        impatient.render("x", rendering())


def test_a_process_that_was_killed_is_replaced(process: TemplateProcess) -> None:
    assert serves(process)
    assert process._child is not None
    killed = process._child._process
    os.kill(killed.pid, 9)
    killed.wait()
    assert serves(process)


def test_a_process_that_does_not_answer_is_ended(process: TemplateProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    assert serves(process)
    assert process._child is not None
    os.kill(process._child._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(process, "_wall_s", 0.05)
    with pytest.raises(TemplateOverLimit, match=r"^took longer than 0\.05 s$"):
        process.render("x", rendering())
    monkeypatch.undo()
    assert serves(process)


def test_close_ends_the_process() -> None:
    made = TemplateProcess()
    made.compile("x")
    assert made._child is not None
    child = made._child._process
    made.close()
    assert child.returncode is not None
