"""Open or close the named one of the chest's three drawers, any of which may stand out (RT-1)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ttm.sim.kitchen.objects import HOUSEHOLD
from ttm.sim.kitchen.scene import CHEST_POSITION_M, DRAWER_Z_M, HANDLE_X_M
from ttm.sim.kitchen.world import InitialState, KitchenWorld
from ttm.sim.tasks.groups import GroupTask, lay_household
from ttm.sim.tasks.motions import WAITING_M, base_facing, drive_to, pulled_m, step_to
from ttm.sim.tasks.task import Grasp, Motion

OPEN_M, CLOSED_M = 0.15, 0.05
"""A drawer counts as open when it stands out further than the first, and as closed when less than the second,
as in SIMPLER (Li et al., 2024), which repeats the evaluation of RT-1."""
STANDS_OUT_M = (0.12, 0.25)
"""How far a drawer stands out that is to be closed, and every second one that is not named."""
PULLED_OUT_M = 0.20
"""The expert pulls a drawer out this far."""
LEVEL_M, CLEAR_M = 0.04, 0.08
"""Until the gripper is as high as the right handle, but for the first, it stays that far before all."""


class Drawer(GroupTask):
    """One drawer is to be opened or closed. The goal is the verb and the drawer."""

    template = "{} the {} drawer"
    paraphrases = ("please {} the {} drawer", "{} the {} one of the drawers")
    goals = tuple(f"{verb} {drawer}" for verb in ("open", "close") for drawer in DRAWER_Z_M)

    def names(self, goal: str) -> list[str]:
        return goal.split()

    def places(self, world: KitchenWorld, goal: str) -> list[np.ndarray]:
        return [world.data.site(f"handle_{self.names(goal)[1]}").xpos]

    def sample(self, rng: np.random.Generator) -> InitialState:
        goal = str(rng.choice(self.goals))
        verb, named = self.names(goal)
        out_m = {name: float(rng.uniform(*STANDS_OUT_M) * rng.integers(2)) for name in DRAWER_Z_M}
        out_m[named] = float(rng.uniform(*STANDS_OUT_M)) if verb == "close" else 0.0
        base = base_facing(rng, HANDLE_X_M - max(out_m.values()), CHEST_POSITION_M[1])
        start = lay_household(rng, str(rng.choice(list(HOUSEHOLD))))
        places_m = {**start.objects_m, **{f"drawer_{name}": (out_m[name],) for name in out_m}}
        return replace(start, goal=goal, objects_m=places_m, base_pose=base)

    def predicate(self, world: KitchenWorld) -> bool:
        verb, drawer = self.names(world.start.goal)
        out_m = pulled_m(world, drawer)
        return out_m > OPEN_M if verb == "open" else out_m < CLOSED_M

    def grasp(self, world: KitchenWorld) -> Grasp | None:
        """Hold the handle, once the gripper is at its height."""
        _, drawer = self.names(world.start.goal)
        point_m = world.data.site(f"handle_{drawer}").xpos
        gripper_m, _ = world.controller.gripper_pose()
        level = abs(point_m[2] - gripper_m[2]) < LEVEL_M
        return Grasp(point_m, f"drawer_{drawer}", point_m[2]) if level else None

    def carry(self, world: KitchenWorld) -> Motion:
        """Drive with the handle; before, bring the gripper to its height in front of all that stands out."""
        verb, drawer = self.names(world.start.goal)
        if self.grasp(world):
            to_go_m = pulled_m(world, drawer) - (PULLED_OUT_M if verb == "open" else 0.0)
            return Motion(base=np.array([np.clip(2.0 * to_go_m, -0.2, 0.2), 0.0]))
        robot, gripper_m = world.controller, world.controller.gripper_pose()[0]
        sites = {name: world.data.site(f"handle_{name}") for name in DRAWER_Z_M}
        handles_m = {name: robot.to_base_frame(site.xpos) for name, site in sites.items()}
        room_m = min(handle[0] for handle in handles_m.values()) - max(gripper_m[0], WAITING_M[0])
        drive = drive_to(handles_m[drawer])
        drive[0] = min(drive[0], max(1.5 * (room_m - CLEAR_M), -0.2))
        target_m = np.array([*WAITING_M[:2], handles_m[drawer][2]])
        return Motion(step_to(target_m, gripper_m), drive)
