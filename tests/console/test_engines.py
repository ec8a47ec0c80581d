"""How often an engine is asked."""

from __future__ import annotations

import pytest

from console.engines import POLL_S, RETRY_S, paced


@pytest.mark.parametrize(
    ("poll_s", "cost_s", "pause_s"),
    [
        (POLL_S, 0.0, POLL_S),
        (POLL_S, 0.01, POLL_S),
        (POLL_S, 0.0126, 0.3),
        (POLL_S, 2.0, 0.37),
        (RETRY_S, 2.0, RETRY_S),
    ],
)
def test_what_costs_much_is_asked_for_less_often_within_limits(poll_s: float, cost_s: float, pause_s: float) -> None:
    assert paced(poll_s, cost_s) == pytest.approx(pause_s)
