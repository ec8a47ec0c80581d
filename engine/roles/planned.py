"""The roles of the residency document as the planner sees them now, planned anew at a slow pace."""

from __future__ import annotations

import msgspec

from engine.config import EngineConfig
from engine.protocol import Health, Role
from engine.roles.planner import figures_of, plan, planned_roles
from engine.roles.residency import Residency, read_residency

IDLE_LOOK_S = 5.0
BUSY_LOOK_S = 30.0
"""How old a plan may grow while nothing runs, and while something does: a plan takes a fraction of a millisecond, which
is still not asked of a round more often than that."""


class PlannedRoles:
    """Engine thread only. `residency` None: no document, no roles; `margin` (bytes) holds where it names none."""

    def __init__(self, residency: Residency | None = None, margin: int = 0) -> None:
        self._residency = residency
        self._margin = margin
        self._roles: list[tuple[Role, float]] = []
        self._planned_at = float("-inf")

    @classmethod
    def of(cls, config: EngineConfig) -> PlannedRoles:
        """The roles of the document that `config` names. Raises ResidencyFileError."""
        residency = None if config.residency_file is None else read_residency(config.residency_file)
        return cls(residency, config.role_margin_bytes)

    def due(self, now: float, *, idle: bool) -> bool:
        """Whether the plan is old enough to be made again."""
        return self._residency is not None and now - self._planned_at >= (IDLE_LOOK_S if idle else BUSY_LOOK_S)

    def plan(self, health: Health, now: float) -> None:
        """Plan on the figures of `health`. A role keeps its age while the decision on it stays the same."""
        if self._residency is None:
            return
        report = plan(figures_of(health, self._residency, self._margin), self._residency.roles, dry_run=True)
        since = {role.name: (role.decision, at) for role, at in self._roles}
        roles = planned_roles(report, since_s=0.0)
        self._roles = []
        for role in roles:
            decision, at = since.get(role.name, (None, now))
            self._roles.append((role, at if decision == role.decision else now))
        self._planned_at = now

    def shown(self, now: float) -> list[Role]:
        """The roles as `/health` shows them."""
        return [msgspec.structs.replace(role, since_s=now - at) for role, at in self._roles]
