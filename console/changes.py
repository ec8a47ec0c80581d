"""What changed from one snapshot to the next, as JSON: what a recording keeps between two whole snapshots."""

from __future__ import annotations

from collections.abc import Iterable

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None

# A length of time that went on with the engine's clock.
_AGED = 0
# Deeper than any snapshot; below it values are kept whole.
_DEEPEST = 32


def change(before: Json, after: Json) -> Json:
    """What makes `after` of `before`, as `[step, how]`.

    `step` is how far the engine's clock went. `how` is `[value]` for a new value, `0` for a number that grew by `step`,
    and otherwise an object of the members (of a list: the indexes) that differ with the `how` of each, empty where
    nothing does. The value that
    comes out equals the one that went in, to the last bit of every number: ages are more than half of what changes,
    and differences of readings of one clock are exact in a float, so `0` is written only where the sum is equal.
    """
    step = _clock(after) - _clock(before)
    how = _how(before, after, step, 0)
    return [step, {} if how is None else how]


def changed(value: Json, step_and_how: Json) -> Json:
    """The value after a `change`. Objects and lists within `value` are changed in place; raises ValueError."""
    match step_and_how:
        case [float() | int() as step, how]:
            return value if how == {} else _apply(value, how, step)
    raise ValueError("not a change")


def _clock(snapshot: Json) -> float:
    """Seconds on the engine's clock when it made the snapshot; 0 where the value does not say."""
    if isinstance(snapshot, dict):
        uptime, age = snapshot.get("uptime_s"), snapshot.get("snapshot_age_s")
        if isinstance(uptime, float) and isinstance(age, float):
            return uptime - age
    return 0.0


def _how(before: Json, after: Json, step: float, depth: int) -> Json:
    """None where nothing changed."""
    if type(before) is not type(after) or depth > _DEEPEST:
        return [after]
    if isinstance(before, dict) and isinstance(after, dict):
        if list(before) != list(after):
            return [after]
        return _members(((name, before[name], after[name]) for name in after), step, depth)
    if isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            return [after]
        return _members(((str(index), old, after[index]) for index, old in enumerate(before)), step, depth)
    if before == after:
        return None
    if isinstance(before, float) and before + step == after:
        return _AGED
    return [after]


def _members(pairs: Iterable[tuple[str, Json, Json]], step: float, depth: int) -> Json:
    return {name: how for name, old, new in pairs if (how := _how(old, new, step, depth + 1)) is not None} or None


def _apply(value: Json, how: Json, step: float) -> Json:
    if isinstance(how, list) and len(how) == 1:
        return how[0]
    if isinstance(how, dict) and isinstance(value, dict):
        for name, inner in how.items():
            value[name] = _apply(value[name], inner, step)
        return value
    if isinstance(how, dict) and isinstance(value, list):
        for index, inner in how.items():
            value[int(index)] = _apply(value[int(index)], inner, step)
        return value
    if isinstance(value, float) and how == _AGED:
        return value + step
    raise ValueError("a change does not fit the value before it")
