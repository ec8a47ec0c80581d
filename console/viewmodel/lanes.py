"""The lanes, and the progress of loading."""

from __future__ import annotations

from functools import partial

from console.history.rates import LaneTrack
from console.text import figures
from console.text.spans import literal
from console.viewmodel.labels import LANE_LABELS, StatusLabel
from console.viewmodel.rows import LaneView, LoadingView
from engine.protocol import Health, Lane, LaneState


def lane_view(lane: Lane, past: LaneTrack, *, stale: bool) -> LaneView:
    """One lane. `stale`: the snapshot is no longer current, so it shows no rate."""
    label = LANE_LABELS[lane.state]
    text = literal(lane.phase_text) or label.text
    # The phase text ends in a rate. A rate that is no longer measured is not shown, so only the label stays.
    if stale or lane.state is LaneState.IDLE:
        text = label.text
    request = lane.request
    shown = partial(
        LaneView,
        slot=lane.slot,
        kind=literal(lane.kind),
        label=label,
        text=text,
        short=_short(text, label),
        busy=request is not None,
        reading=lane.state in (LaneState.PREFILLING, LaneState.YIELDED, LaneState.RESTORING),
        rates=past.rates,
        rows=lane.rows,
        kept=lane.resident_rows,
        committed=lane.committed_rows,
        window=lane.window,
        committed_bytes=lane.committed_bytes,
        reason=literal(lane.reason) if lane.reason else None,
    )
    if request is None:
        return shown()
    left_s: float | None = None
    unread = request.prefill_total - request.prefill_done
    if lane.state is LaneState.PREFILLING and past.reading_tok_s and unread > 0 and not stale:
        left_s = unread / past.reading_tok_s
    accepted = request.accepted_per_round
    return shown(
        request=literal(request.id),
        client=literal(request.client),
        age=figures.span(request.age_s),
        ttft_s=request.ttft_s,
        cached=figures.percent(request.cached_tokens, request.prompt_tokens),
        per_round=f"{accepted:.1f}" if accepted is not None and lane.state is LaneState.DECODING else "",
        prompt=request.prompt_tokens,
        done=request.completion_tokens,
        limit=request.max_tokens,
        read_done=request.prefill_done,
        read_total=request.prefill_total,
        left_s=left_s,
        tok_s=None if stale else past.reading_tok_s if lane.state is LaneState.PREFILLING else request.tok_s,
        cached_tokens=request.cached_tokens,
        queue_s=request.queue_s,
        worst_gap_s=request.worst_gap_s,
    )


def _short(text: str, label: StatusLabel) -> str:
    """The label's text, with the rate at the end of the phase text where there is one."""
    rate = text.rpartition(", ")[2] if text.endswith(" tok/s") else ""
    return f"{label.text}, {rate}" if rate else label.text


def loading(health: Health) -> LoadingView | None:
    loading = health.loading
    if loading is None:
        return None
    left = figures.span(loading.eta_s) if loading.eta_s is not None else ""
    return LoadingView(literal(loading.stage), loading.done_bytes, loading.total_bytes, left)
