"""The header: model, status, age of the picture, and errors."""

from __future__ import annotations

from console.history.rates import Track, total_tok_s
from console.text import figures
from console.text.spans import literal
from console.viewmodel.labels import CONNECTING_LABEL, LOST_LABEL, STATUS_LABELS
from console.viewmodel.rows import HeaderView, Link
from engine.protocol import Health, Status


def header(health: Health | None, track: Track, link: Link) -> HeaderView:
    """The header; before any answer only the address and why there is none."""
    if link.error is not None and not link.paused:
        status = LOST_LABEL
    elif health is None:
        status = CONNECTING_LABEL
    else:
        status = STATUS_LABELS[health.status]
    freshness = "live" if link.recorded is None else f"recorded {link.recorded}"
    if health is None or link.age_s is None:
        freshness = "no answer yet" if link.error is None else literal(link.error)
    elif link.paused:
        freshness = f"paused, {figures.span(link.age_s)} ago"
    elif link.stale:
        freshness = f"no update for {figures.span(link.age_s)}"
    if health is None:
        url, place = literal(link.url), literal(link.place)
        return HeaderView(
            url, "", "", status, freshness, True, link.paused, 0.0, (), 0, 0, (), (), place, link.recording
        )
    model = health.model
    totals = health.parallel.totals
    cache_hits = sum(level.hits for level in health.cache.values())
    restored = sum(level.restored_tokens for level in health.cache.values())
    speculation = health.speculation
    facts = [f"served {figures.count(totals.served)}", f"peak {health.parallel.peak_running}"]
    if totals.abandoned:
        facts.append(f"abandoned {figures.count(totals.abandoned)}")
    if cache_hits:
        facts.append(f"cache {figures.plural(cache_hits, 'hit')}, {figures.count(restored)} tok")
    if speculation.drafted:
        facts.append(f"drafts kept {figures.percent(speculation.accepted, speculation.drafted)}")
    trouble = [
        f"{name} {figures.count(number)}"
        for name, number in (
            ("refused", totals.refused),
            ("errors", totals.errors),
            ("timeouts", totals.timeouts),
        )
        if number
    ]
    if link.notice is not None:
        trouble.insert(0, literal(link.notice))
    if link.error is not None:
        trouble.insert(0, literal(link.error))
    if health.defect is not None:
        trouble.insert(0, f"defect: {literal(health.defect)}")
    progress = health.last_progress_age_s
    if health.status is Status.STALLED and progress is not None:
        trouble.insert(0, f"no progress for {figures.span(progress)}")
    return HeaderView(
        model=literal(model.name) if model else "no model yet",
        detail=" · ".join(literal(part) for part in (model.arch, model.device, f"v{health.version}") if part)
        if model
        else health.version,
        uptime=figures.span(health.uptime_s),
        status=status,
        freshness=freshness,
        stale=link.stale,
        paused=link.paused,
        tok_s=total_tok_s(health),
        rates=track.total,
        running=health.parallel.running,
        waiting=health.parallel.waiting,
        totals=tuple(facts),
        trouble=tuple(trouble),
        place=literal(link.place),
        recording=link.recording,
    )
