"""What the measured rounds say, by how many slots shared them, and against one stream alone."""

from __future__ import annotations

from console.text.spans import literal
from console.viewmodel.rows import RoundSize, RoundsView
from engine.protocol import Health, RoundStat

LEAST_ALONE = 10
"""Rounds of one stream alone before others are held against them: the first of a start are slow."""


def rounds(health: Health) -> RoundsView:
    """The rounds by size, the smallest first, and their totals. A ratio is what rounds write a second over what those
    with one slot do, where there are enough of these; both are from the rounds' own times."""
    stats = sorted((stat for stat in health.round_stats if stat.rounds > 0 < stat.rows), key=lambda stat: stat.rows)
    alone = next((_tok_s(stat) for stat in stats if stat.rows == 1 and stat.rounds >= LEAST_ALONE), 0.0)
    total_ms = sum(stat.ms_total for stat in stats)
    tokens = sum(stat.tokens_per_round * stat.rounds for stat in stats)
    tok_s = 1000 * tokens / total_ms if total_ms else 0.0
    speculation = health.speculation
    return RoundsView(
        sizes=tuple(
            RoundSize(
                rows=stat.rows,
                rounds=stat.rounds,
                mean_ms=stat.mean_ms,
                p95_ms=stat.p95_ms,
                tokens=stat.tokens_per_round,
                share=stat.ms_total / total_ms if total_ms else 0.0,
                tok_s=_tok_s(stat),
                ratio=_tok_s(stat) / alone if alone else None,
            )
            for stat in stats
        ),
        rounds=sum(stat.rounds for stat in stats),
        seconds=total_ms / 1000,
        tokens=tokens,
        tok_s=tok_s,
        ratio=tok_s / alone if alone else None,
        drafters=tuple(literal(name) for name in speculation.drafters),
        drafted=speculation.drafted,
        accepted=speculation.accepted,
        depths=tuple(speculation.accepted_by_depth),
    )


def _tok_s(stat: RoundStat) -> float:
    return 1000 * stat.tokens_per_round / stat.mean_ms if stat.mean_ms > 0 else 0.0
