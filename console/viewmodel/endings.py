"""How a request ended: a label, and one sentence with its figures."""

from __future__ import annotations

from dataclasses import dataclass

from console.text import figures
from console.text.spans import literal
from console.viewmodel.labels import FINISH_LABELS, StatusLabel
from engine.protocol import Finish, LedgerRow


@dataclass(frozen=True)
class Ended:
    """The ending of a request."""

    label: StatusLabel
    sentence: str


def ended(row: LedgerRow) -> Ended:
    """The label and sentence for a row of the ledger; the sentence includes the engine's reason where there is one."""
    reason = literal(row.reason or "").strip()
    return Ended(FINISH_LABELS[row.finish], _sentence(row, reason))


def _sentence(row: LedgerRow, reason: str) -> str:
    match row.finish:
        case Finish.STOP:
            return f"{_wrote(row)} and came to its end"
        case Finish.LENGTH:
            return f"{_wrote(row)} and reached its limit"
        case Finish.REFUSED:
            return f"refused: {reason or 'the engine gave no reason'}"
        case Finish.ABANDONED:
            return f"after {figures.span(row.total_s)}, {reason or f'its client left {_phase(row)}'}"
        case Finish.CANCELLED:
            return f"after {figures.span(row.total_s)}, {reason or f'cancelled {_phase(row)}'}"
        case Finish.TIMEOUT:
            return f"ran out of time: {reason or f'{figures.span(row.total_s)}, {_phase(row)}'}"
        case Finish.ERROR:
            return f"failed {_phase(row)}" + (f": {reason}" if reason else "")


def _wrote(row: LedgerRow) -> str:
    tokens = f"wrote {figures.plural(row.completion_tokens, 'token')}"
    return f"{tokens} at {figures.rate(row.tok_s)} tok/s" if row.tok_s is not None else tokens


def _phase(row: LedgerRow) -> str:
    """How far it had come."""
    if row.completion_tokens:
        return f"after {figures.plural(row.completion_tokens, 'token')}"
    if row.slot is None:
        return "while it waited"
    return f"while its prompt of {figures.plural(row.prompt_tokens, 'token')} was read"
