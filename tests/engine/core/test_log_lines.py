"""The engine's log lines: what they say, and that no text of a client is in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from structlog.testing import capture_logs

from tests.support.fake_model import Rig, greedy

Make = Callable[..., Rig]
PROMPT = [401, 402, 403, 404, 405]


def test_one_line_a_request_and_one_a_routing_decision(rig: Make) -> None:
    r = rig(parallel=2)
    r.runner.before = lambda batch: r.clock.advance(0.1)
    with capture_logs() as lines:
        r.submit(PROMPT, 11, first_user_end=2, client="opencode")
        r.run_until_idle()
        r.submit(PROMPT, 5000, first_user_end=2)
        r.turns(2)
        r.engine.cancel("req-2")
        r.run_until_idle()
    assert [line["event"] for line in lines] == ["[parallel]", "[req]", "[parallel]", "[req]"]
    placed, ended, again, gone = lines
    assert (placed["slot"], placed["rule"], placed["prompt"], placed["slot0_holder"]) == (0, "empty", 5, None)
    assert (ended["id"], ended["client"], ended["slot"], ended["cached"], ended["completion"]) == (
        "req-1",
        "opencode",
        0,
        0,
        11,
    )
    assert (ended["finish"], ended["ending"], ended["cache"]) == ("length", "served", "none")
    assert (ended["ttft"], ended["tok_s"]) == (0.1, 10.0)
    assert (again["rule"], again["cached"], again["max_tokens"]) == ("home", 4, "5000 -> 251")
    assert (gone["ending"], gone["cache"]) == ("abandoned", "resident")


def test_a_home_given_up_is_told_with_who_held_it(rig: Make) -> None:
    r = rig(parallel=2, config=lambda c: replace(c, side_slot0_wait_s=1.0))
    with capture_logs() as lines:
        r.submit(PROMPT, 200, first_user_end=2)
        r.turns(2)
        r.submit([*PROMPT, 7, 8], 5, first_user_end=2)
        r.turns(2)
        r.clock.advance(1.5)
        r.run_until_idle()
    given_up = [line for line in lines if line["event"] == "[parallel]"][1]
    assert (given_up["slot"], given_up["home"], given_up["slot0_holder"]) == (1, 0, "req-1")
    assert given_up["slot0_wait"] == 1.5


def test_no_line_carries_text(rig: Make) -> None:
    def fail(batch: object) -> None:
        raise RuntimeError("a kernel failed")

    r = rig(parallel=1)
    with capture_logs() as lines:
        r.submit(PROMPT, 30, stop=("secret",))
        r.turns(10)
        r.runner.before = fail
        r.run_until_idle()
    assert "a kernel failed" in next(line["traceback"] for line in lines if "traceback" in line)
    assert "secret" not in repr(lines)
    # Line numbers stand in a traceback.
    text = repr([{name: value for name, value in line.items() if name != "traceback"} for line in lines])
    for token in (*PROMPT, *(t for t in greedy(PROMPT, 9) if t > 99)):
        assert str(token) not in text
