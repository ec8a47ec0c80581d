"""Changes between two JSON values: whatever they are, what comes out is what went in."""

from __future__ import annotations

import copy
import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.changes import change, changed
from tests.support.long_day import Day

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=4)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc0"), inner, max_size=3)
)


def same(left: object, right: object) -> bool:
    """Equal also in kind: 1, 1.0 and true are three values, and objects keep their order."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@settings(max_examples=60, deadline=None)
@given(values, values)
def test_any_two_values(before: object, after: object) -> None:
    kept = copy.deepcopy(after)
    assert same(changed(copy.deepcopy(before), change(before, after)), kept)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1), st.floats(0, 1e6)), min_size=2, max_size=6))
def test_any_clock(readings: list[tuple[float, float, float]]) -> None:
    states = [{"uptime_s": up, "snapshot_age_s": age, "age_s": since} for up, age, since in readings]
    value: object = states[0]
    for state in states[1:]:
        value = changed(copy.deepcopy(value), change(value, state))
        assert same(value, state)


def test_ages_cost_nothing_and_what_stands_is_not_named() -> None:
    before = {"uptime_s": 10.5, "snapshot_age_s": 0.25, "lanes": [{"age_s": 1.5, "rows": 3}], "name": "x"}
    after = {"uptime_s": 11.0, "snapshot_age_s": 0.5, "lanes": [{"age_s": 1.75, "rows": 4}], "name": "x"}
    assert change(before, after) == [
        0.25,
        {"uptime_s": [11.0], "snapshot_age_s": 0, "lanes": {"0": {"age_s": 0, "rows": [4]}}},
    ]


def test_a_day_of_snapshots_comes_back_bit_for_bit() -> None:
    value: object = None
    for _, health in Day(slots=3).snapshots(30):
        body = msgspec.json.decode(msgspec.json.encode(health))
        line = msgspec.json.encode(change(value, body))
        value = changed(value, msgspec.json.decode(line))
        assert same(value, body)


def test_a_body_of_brackets_is_kept_whole() -> None:
    deep: list[object] = []
    for _ in range(200):
        deep = [deep, 1.0]
    assert same(changed(copy.deepcopy(deep[0]), change(deep[0], deep)), deep)


@pytest.mark.parametrize("how", [None, [], [1.0], [0.0, 0], [0.0, {"a": [1]}], [0.0, {"0": 1}], ["x", [1]]])
def test_what_is_no_change_is_refused(how: object) -> None:
    with pytest.raises((ValueError, LookupError)):
        changed(["only", math.pi], how)
