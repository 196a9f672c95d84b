"""A generated listening world with readable names, in two tenants: input for the demo and the tests."""

from infra.demo.world.generate import generate
from infra.demo.world.model import (
    Listeners,
    Plays,
    TenantWorld,
    Tracks,
    World,
    WorldUnavailable,
)

__all__ = ["Listeners", "Plays", "TenantWorld", "Tracks", "World", "WorldUnavailable", "generate"]
