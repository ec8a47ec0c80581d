"""What each small model beside the engine says."""

from __future__ import annotations

from console import figures
from console.screen import RoleView
from console.spans import literal
from console.words import ROLE_WORDS
from engine.protocol import Role


def role(role: Role) -> RoleView:
    claim = figures.size(role.measured_bytes if role.measured_bytes is not None else role.claim_bytes)
    return RoleView(
        name=literal(role.name),
        word=ROLE_WORDS[role.state],
        claim=claim if role.measured_bytes is not None else f"claims {claim}",
        since=figures.span(role.since_s),
        reason=literal(role.reason),
        reloads=role.reloads,
    )
