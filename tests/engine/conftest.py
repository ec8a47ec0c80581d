"""Rigs whose books are checked when the test is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.fake_model import Rig


@pytest.fixture
def rig() -> Iterator[Callable[..., Rig]]:
    """Makes rigs; after the test each must have nothing left running and books that agree."""
    made: list[Rig] = []

    def make(**settings: object) -> Rig:
        made.append(Rig(**settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.run_until_idle()
        one.check()
        one.close()
