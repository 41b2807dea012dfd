"""Which bodies touch each other."""

from __future__ import annotations

from ttm.sim.kitchen import fetch
from ttm.sim.kitchen.world import KitchenWorld


def bodies_touching(world: KitchenWorld, body: str) -> set[str]:
    """Return the names of the bodies that touch the named one."""
    model = world.model
    wanted = model.body(body).id
    touching = set()
    for pair in world.data.contact.geom:
        bodies = [int(model.geom_bodyid[geom]) for geom in pair]
        if wanted in bodies:
            touching |= set(bodies)
    return {model.body(other).name for other in touching - {wanted}}


def robot_touches(world: KitchenWorld, body: str) -> bool:
    """Return whether any part of the robot touches the body."""
    return any(other.startswith(fetch.PREFIX) for other in bodies_touching(world, body))


def both_fingers_touch(world: KitchenWorld, body: str) -> bool:
    """Return whether the body is between the fingers, touched by both."""
    fingers = {fetch.PREFIX + joint.replace("_joint", "_link") for joint in fetch.FINGER_JOINTS}
    return fingers <= bodies_touching(world, body)
