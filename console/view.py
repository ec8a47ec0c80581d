"""Turns a Health snapshot and its history into what the screen says: pure functions.

Nothing here knows a width, a colour or a terminal. Text from outside is made literal on its way through.
"""

from __future__ import annotations

from dataclasses import replace

from console import figures
from console.history import LaneTrack, Track, total_tok_s
from console.screen import (
    HeaderView,
    LanesView,
    LaneView,
    Link,
    LoadingView,
    MemoryPart,
    MemoryView,
    PoolView,
    QueueView,
    RoleView,
    ScreenView,
    SlotPages,
)
from console.spans import literal
from console.tones import Tone
from console.words import CONNECTING_WORD, LANE_WORDS, LOST_WORD, ROLE_WORDS, STATUS_WORDS, WAIT_WORDS, Word
from engine.protocol import Health, Lane, LaneState, Memory, Queued, Role, Status, WaitState


def screen_view(
    health: Health | None, track: Track, link: Link, filter_text: str = "", *, textures: bool = False
) -> ScreenView:
    """The whole frame. `filter_text` keeps lanes and waiting requests whose client, id or state contains it.

    `textures` asks for fills that differ by glyph, for a screen without colour.
    """
    header = _header(health, track, link)
    if health is None:
        return ScreenView(link, header)
    wanted = filter_text.casefold().strip()
    lanes = tuple(_lane(lane, track.lane(lane.slot), link.stale) for lane in health.lanes)
    queue = tuple(_queued(entry) for entry in health.queue)
    parallel = health.parallel
    return ScreenView(
        link=link,
        header=header,
        lanes=LanesView(
            lanes=tuple(
                lane for lane in lanes if _matches(wanted, lane.client, lane.request, lane.word.word, lane.text)
            ),
            busy=sum(lane.busy for lane in lanes),
            slots=len(lanes),
            note=literal(parallel.max_running_reason) if parallel.max_running_reason else None,
            rounds=tuple(sorted(parallel.rounds.items(), key=lambda item: (len(item[0]), item[0]))),
            filter_text=literal(filter_text.strip()),
        ),
        loading=_loading(health),
        pool=_pool(health),
        memory=_memory(health.memory),
        roles=tuple(_role(role) for role in health.roles),
        queue=tuple(entry for entry in queue if _matches(wanted, entry.client, entry.id, entry.word.word)),
        queue_total=len(queue),
        textures=textures,
    )


def _matches(wanted: str, *texts: str) -> bool:
    return not wanted or any(wanted in text.casefold() for text in texts)


def _header(health: Health | None, track: Track, link: Link) -> HeaderView:
    if link.error is not None:
        word = LOST_WORD
    elif health is None:
        word = CONNECTING_WORD
    else:
        word = STATUS_WORDS[health.status]
    freshness = "live"
    if health is None or link.age_s is None:
        freshness = "no answer yet" if link.error is None else literal(link.error)
    elif link.paused:
        freshness = f"paused {figures.span(link.age_s)} ago"
    elif link.stale:
        freshness = f"no update for {figures.span(link.age_s)}"
    if health is None:
        return HeaderView(literal(link.url), "", "", word, freshness, True, link.paused, 0.0, (), 0, 0, (), ())
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
    if link.error is not None:
        trouble.insert(0, literal(link.error))
    progress = health.last_progress_age_s
    if health.status is Status.STALLED and progress is not None:
        trouble.insert(0, f"no progress for {figures.span(progress)}")
    return HeaderView(
        model=literal(model.name) if model else "no model yet",
        detail=" · ".join(literal(part) for part in (model.arch, model.device, f"v{health.version}") if part)
        if model
        else health.version,
        uptime=figures.span(health.uptime_s),
        status=word,
        freshness=freshness,
        stale=link.stale,
        paused=link.paused,
        tok_s=total_tok_s(health),
        rates=track.total,
        running=health.parallel.running,
        waiting=health.parallel.waiting,
        totals=tuple(facts),
        trouble=tuple(trouble),
    )


def _lane(lane: Lane, past: LaneTrack, stale: bool) -> LaneView:
    word = LANE_WORDS[lane.state]
    text = literal(lane.phase_text) or word.word
    # A rate that is no longer measured is not shown: the word alone stays.
    if stale or lane.state is LaneState.IDLE:
        text = word.word
    request = lane.request
    base = LaneView(
        slot=lane.slot,
        kind=literal(lane.kind),
        word=word,
        text=text,
        short=_short(text, word),
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
        return base
    left_s: float | None = None
    unread = request.prefill_total - request.prefill_done
    if lane.state is LaneState.PREFILLING and past.reading_tok_s and unread > 0 and not stale:
        left_s = unread / past.reading_tok_s
    accepted = request.accepted_per_round
    return replace(
        base,
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
    )


def _short(text: str, word: Word) -> str:
    """The phase's word with the rate, which ends the phase text where there is one."""
    rate = text.rpartition(", ")[2] if text.endswith(" tok/s") else ""
    return f"{word.word}, {rate}" if rate else word.word


def _loading(health: Health) -> LoadingView | None:
    loading = health.loading
    if loading is None:
        return None
    left = figures.span(loading.eta_s) if loading.eta_s is not None else ""
    return LoadingView(literal(loading.stage), loading.done_bytes, loading.total_bytes, left)


def _pool(health: Health) -> PoolView:
    pool = health.kv_pool
    windows = [lane.window for lane in sorted(health.lanes, key=lambda lane: lane.slot)]
    window_sum = sum(windows)

    def share(slot: int, held: int) -> float:
        # Slots reserve in proportion to their windows: every row of every slot is of one size.
        if slot >= len(windows) or not window_sum or not pool.reserved_bytes:
            return 0.0
        return held / (pool.reserved_bytes * windows[slot] / window_sum) if windows[slot] else 0.0

    return PoolView(
        enabled=pool.enabled,
        backend=literal(pool.backend),
        page=pool.page_bytes,
        pages=pool.committed_pages,
        committed=pool.committed_bytes,
        reserved=pool.reserved_bytes,
        peak=pool.peak_committed_bytes,
        slots=tuple(
            SlotPages(slot, held // pool.page_bytes if pool.page_bytes else 0, held, share(slot, held))
            for slot, held in enumerate(pool.by_slot)
        ),
        kinds=tuple((literal(kind), held) for kind, held in pool.by_kind.items()),
        commits=pool.commits,
        releases=pool.releases,
        refused=pool.refused,
    )


_PARTS = (
    ("weights", "weights", Tone.WEIGHTS, "█"),
    ("kv", "kv_committed", Tone.KV, "▓"),
    ("caches", "caches", Tone.CACHES, "▚"),
    ("state", "state", Tone.STATE, "▞"),
    ("roles", "roles", Tone.ROLES, "▣"),
    ("graphs", "graphs", Tone.GRAPHS, "▤"),
    ("workspace", "workspace", Tone.WORKSPACE, "▒"),
    ("allocator", "allocator_free", Tone.ALLOCATOR, "▥"),
    ("outside", "outside", Tone.OUTSIDE, "░"),
)


def _memory(memory: Memory) -> MemoryView:
    parts = tuple(MemoryPart(label, tone, glyph, getattr(memory.split, field)) for label, field, tone, glyph in _PARTS)
    used = memory.total - memory.available
    unnamed = used - sum(part.held for part in parts)
    others = tuple(
        f"{literal(device.name)}: {figures.size(device.available)} free of {figures.size(device.total)}"
        for device in memory.devices
    )
    return MemoryView(
        name="memory",
        source=literal(memory.source),
        total=memory.total,
        available=memory.available,
        floor=memory.floor,
        hard_floor=memory.hard_floor,
        parts=tuple(part for part in parts if part.held > 0),
        # The named parts are measured one after another: a gap within the contract's tolerance is no finding.
        unnamed=unnamed if unnamed > max(0.02 * used, 128 << 20) else 0,
        others=others,
    )


def _role(role: Role) -> RoleView:
    claim = figures.size(role.measured_bytes if role.measured_bytes is not None else role.claim_bytes)
    return RoleView(
        name=literal(role.name),
        word=ROLE_WORDS[role.state],
        claim=claim if role.measured_bytes is not None else f"claims {claim}",
        since=figures.span(role.since_s),
        reason=literal(role.reason),
        reloads=role.reloads,
    )


def _queued(entry: Queued) -> QueueView:
    home = f" {entry.home}" if entry.state is WaitState.HOME and entry.home is not None else ""
    word = WAIT_WORDS[entry.state]
    return QueueView(
        id=literal(entry.id),
        client=literal(entry.client),
        word=Word(word.glyph, f"waits for slot{home}, its own", word.tone) if home else word,
        prompt=f"{figures.count(entry.prompt_tokens)} tok",
        since=figures.span(entry.since_s),
        reason=literal(entry.reason),
    )
