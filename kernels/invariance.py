"""The load-time check that a row's product does not depend on the rows beside it."""

from __future__ import annotations


class RowVarianceError(Exception):
    """A product gave a row other bits among `rows` rows than alone."""

    def __init__(self, form: str, n: int, k: int, rows: int) -> None:
        super().__init__(f"a {form} product of {n} x {k} gives a row other bits among {rows} rows than alone")
