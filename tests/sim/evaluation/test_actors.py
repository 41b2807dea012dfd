"""What can drive an environment."""

from __future__ import annotations

from ttm.sim.actors import untrained_policy
from ttm.sim.kitchen.spec import SPEC


def test_untrained_network_is_always_the_same() -> None:
    first, second = untrained_policy(SPEC), untrained_policy(SPEC)
    assert first.spec == SPEC
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all((a == b).all() for a, b in pairs)
