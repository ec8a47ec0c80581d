"""The KV pool and the memory."""

from __future__ import annotations

from dataclasses import replace

from console.text import figures
from console.text.spans import StyleRole, literal
from console.viewmodel.rows import LadderRow, MemoryPart, MemoryView, PoolView, SlotPages
from engine.protocol import DeviceMemory, Health, LadderLevel, Memory


def pool(health: Health) -> PoolView:
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
    ("weights", "weights", StyleRole.WEIGHTS, "█"),
    ("kv", "kv_committed", StyleRole.KV, "▓"),
    ("caches", "caches", StyleRole.CACHES, "▚"),
    ("state", "state", StyleRole.STATE, "▞"),
    ("roles", "roles", StyleRole.ROLES, "▣"),
    ("graphs", "graphs", StyleRole.GRAPHS, "▤"),
    ("workspace", "workspace", StyleRole.WORKSPACE, "▒"),
    ("allocator", "allocator_free", StyleRole.ALLOCATOR, "▥"),
    ("outside", "outside", StyleRole.OUTSIDE, "░"),
)


def memory(memory: Memory) -> MemoryView:
    """The memory that holds the KV, and every other one where there are several."""
    own = next((device for device in memory.devices if _same(device, memory)), None)
    others = tuple(
        f"{literal(device.name)}: {figures.size(device.available)} free of {figures.size(device.total)}"
        for device in memory.devices
    )
    return replace(
        _one(memory, literal(own.name) if own else "memory"),
        others=others,
        devices=tuple(_one(device, literal(device.name)) for device in memory.devices if device is not own),
        ladder=tuple(_rung(level) for level in memory.ladder),
    )


def _same(device: DeviceMemory, memory: Memory) -> bool:
    return (device.source, device.total, device.split) == (memory.source, memory.total, memory.split)


def _one(memory: Memory | DeviceMemory, name: str) -> MemoryView:
    parts = tuple(
        MemoryPart(label, style, glyph, getattr(memory.split, field)) for label, field, style, glyph in _PARTS
    )
    used = memory.total - memory.available
    unnamed = used - sum(part.held for part in parts)
    return MemoryView(
        name=name,
        source=literal(memory.source),
        total=memory.total,
        available=memory.available,
        floor=memory.floor,
        hard_floor=memory.hard_floor,
        parts=tuple(part for part in parts if part.held > 0),
        # The named parts are measured one after another: a gap within the contract's tolerance is no finding.
        unnamed=unnamed if unnamed > max(0.02 * used, 128 << 20) else 0,
        others=(),
    )


def _rung(level: LadderLevel) -> LadderRow:
    return LadderRow(
        name=literal(level.level),
        held=level.held_bytes,
        reclaims=level.reclaims,
        freed=level.freed_bytes,
        last_age_s=level.last_age_s,
        last_reason=literal(level.last_reason or ""),
    )
