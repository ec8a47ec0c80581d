"""The small models beside the engine."""

from __future__ import annotations

from console.text import figures
from console.text.spans import literal
from console.viewmodel.labels import ROLE_LABELS
from console.viewmodel.rows import RoleView
from engine.protocol import Role


def role(role: Role) -> RoleView:
    claim = figures.size(role.measured_bytes if role.measured_bytes is not None else role.claim_bytes)
    return RoleView(
        id=role.name,
        name=literal(role.name),
        kind=literal(role.kind),
        label=ROLE_LABELS[role.state],
        claim=claim if role.measured_bytes is not None else f"claims {claim}",
        since=figures.span(role.since_s),
        reason=literal(role.reason),
        reloads=role.reloads,
        claim_bytes=role.claim_bytes,
        claim_source=literal(role.claim_source or ""),
        measured_bytes=role.measured_bytes,
        decision=literal(role.decision) if role.decision else None,
        headroom_after=role.headroom_after,
        to_fit=literal(role.to_fit) if role.to_fit else None,
    )
