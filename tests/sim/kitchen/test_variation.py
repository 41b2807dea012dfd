"""Levels of variation: each changes what it is named for, and nothing else; a seed fixes all of it."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import mujoco
import numpy as np
import pytest

from ttm.policy import UserError
from ttm.sim import TASK_NAMES, KitchenEnv
from ttm.sim.kitchen.spec import SPEC
from ttm.sim.tasks.table import GROUP_NAMES, MEMORY_NAMES, SKILL_NAMES

Episode = list[tuple[dict[str, np.ndarray], dict[str, Any]]]
"""Observation and info of each tick."""
SEEN = ("camera", "light", "hue", "noise", "texture")
"""What only cameras see."""
ALL = (*SEEN, "pause", "rate", "decoy", "words", "clutter", "start", "physics", "latency", "frames")
FRAMES = ("head", "wrist")
FIELDS = ("geom_", "body_", "dof_", "mat_", "cam_", "light_")


def drive(
    env: KitchenEnv, ticks: int, vary: dict[str, int] | None, seed: int = 3, **options: Any
) -> Episode:
    """Begin an episode and act at random, alike in all episodes."""
    given = options if vary is None else {**options, "vary": vary}
    episode, rng = [env.reset(seed=seed, options=given)], np.random.default_rng(0)
    for _ in range(ticks):
        action = rng.uniform(env.action_space.low, env.action_space.high)
        observation, *_, info = env.step(action.astype(np.float32))
        episode.append((observation, info))
    return episode


def differs(first: Episode, second: Episode) -> set[str]:
    """Return the observations that differ at some tick."""
    pairs = zip(first, second, strict=True)
    return {name for (a, _), (b, _) in pairs for name in a if not np.array_equal(a[name], b[name])}


@pytest.mark.parametrize("task", TASK_NAMES)
def test_after_a_varied_episode_one_without_variation_is_as_before(
    env: KitchenEnv, task: str
) -> None:
    """To the bit: no `vary`, an empty one, and level 0 are the same."""
    expected = drive(env, 4, None, task=task)
    varied = drive(env, 4, dict.fromkeys(ALL, 3), task=task)
    assert differs(expected, varied) >= set(FRAMES)
    for vary in (None, {}, dict.fromkeys(ALL, 0)):
        again = drive(env, 4, vary, task=task)
        assert not differs(expected, again)
        assert [info["tick"] for _, info in again] == [info["tick"] for _, info in expected]


@pytest.mark.parametrize("task", ["pick", "sequence"])
def test_a_seed_fixes_the_variation(env: KitchenEnv, task: str) -> None:
    def names(level: int) -> dict[str, int]:
        return dict.fromkeys(ALL, level)

    expected = drive(env, 12, names(2), task=task)
    drive(env, 3, names(3), seed=8, task="shell")
    assert not differs(expected, drive(env, 12, names(2), task=task))
    assert differs(expected, drive(env, 12, names(2), seed=4, task=task)) >= set(FRAMES)


@pytest.mark.parametrize("name", SEEN)
def test_what_cameras_see_alone_varies_and_more_so_at_higher_levels(
    env: KitchenEnv, name: str
) -> None:
    """Neither the robot nor the choice of the initial state changes."""
    plain, changes = drive(env, 6, {}, task="pick"), []
    cameras = {"head"} if name == "camera" else set(FRAMES)
    for level in (1, 2, 3):
        varied = drive(env, 6, {name: level}, task="pick")
        assert differs(plain, varied) == cameras
        pairs = [
            (a["head"].astype(int), b["head"]) for (a, _), (b, _) in zip(plain, varied, strict=True)
        ]
        changes.append(np.mean([np.abs(a - b).mean() for a, b in pairs]))
        assert [info["instruction"] for _, info in varied] == [
            info["instruction"] for _, info in plain
        ]
    assert sorted(changes) == changes
    assert 0.1 < changes[0] < 40, "objects must stay recognisable"


def test_dimensions_do_not_change_each_other(env: KitchenEnv) -> None:
    """The pause is the same with the light as without, and the light's factor with the pause."""
    env.reset(seed=5, options={"vary": {"pause": 2}})
    pause = env.world.variation.pause
    env.reset(seed=5, options={"vary": {"pause": 2, "light": 3}})
    assert env.world.variation.pause == pause
    lights = env.model.light_diffuse.copy()
    env.reset(seed=5, options={"vary": {"light": 3, "camera": 1}})
    assert np.array_equal(env.model.light_diffuse, lights)


@pytest.mark.parametrize("task", ["pick", "drawer", "move_near"])
def test_all_dimensions_together_draw_what_each_draws_alone(env: KitchenEnv, task: str) -> None:
    def drawn(vary: dict[str, int]) -> dict[str, Any]:
        env.reset(seed=5, options={"task": task, "vary": vary})
        start, model = env.world.start, env.model
        factors = model.geom_friction.copy(), model.body_mass.copy(), model.dof_damping.copy()
        return {
            "words": env.instruction,
            "clutter": str(start.objects_m),
            "start": str((start.base_pose, start.head_rad)),
            "physics": str([factor.tolist() for factor in factors]),
        }

    plain, together = drawn({}), drawn(dict.fromkeys(ALL, 3))
    for name in plain:
        alone = drawn({name: 3})
        assert {key for key in plain if alone[key] != plain[key]} == {name}
        assert alone[name] == together[name]


@pytest.mark.parametrize("task", [*SKILL_NAMES, *GROUP_NAMES, "shell"])
def test_the_instruction_is_in_other_words(env: KitchenEnv, task: str) -> None:
    """Both paraphrases occur, and nothing else changes. The memory suite has none."""
    used = set()
    for seed in range(5):
        plain, varied = (
            drive(env, 0, {}, seed, task=task),
            drive(env, 0, {"words": 1}, seed, task=task),
        )
        (text, *_), (other, *_) = (
            [info["instruction"] for _, info in each] for each in (plain, varied)
        )
        assert not differs(plain, varied)
        others = env.paraphrases[text] or (text,)
        used.add(others.index(other))
    assert used == ({0} if task == "shell" else {0, 1})


@pytest.mark.parametrize("task", ["pick", "open_drawer", *GROUP_NAMES])
@pytest.mark.parametrize(("level", "most"), [(1, 2), (3, 8)])
def test_clutter_adds_objects_and_leaves_the_others(
    env: KitchenEnv, task: str, level: int, most: int
) -> None:
    """They come from behind the robot, stand clear of the others, and rest where they were put."""
    numbers = set()
    for seed in range(6):
        env.reset(seed=seed, options={"task": task})
        plain = env.world.start
        env.reset(seed=seed, options={"task": task, "vary": {"clutter": level}})
        start = env.world.start
        added = {n for n, pose in plain.objects_m.items() if pose != start.objects_m[n]}
        numbers.add(len(added))
        assert np.array_equal(start.base_pose, plain.base_pose)
        assert start.goal == plain.goal
        there = np.array([pose[:3] for pose in start.objects_m.values() if len(pose) > 1])
        there = there[there[:, 0] > 0]
        apart_m = np.linalg.norm(there[:, None, :2] - there[None, :, :2], axis=2)
        assert apart_m[~np.eye(len(there), dtype=bool)].min() > 0.09
        for _ in range(2):
            env.step(start.stand_still())
        for name in added:
            assert plain.objects_m[name][0] < 0
            assert env.data.body(name).xpos == pytest.approx(start.objects_m[name][:3], abs=0.005)
    assert numbers <= set(range(most + 1))
    assert max(numbers) >= 1


@pytest.mark.parametrize("task", ["pick_object", "pick", "side_shown"])
def test_the_robot_starts_elsewhere_and_looks_about_where_it_did(
    env: KitchenEnv, task: str
) -> None:
    for level, metres, degrees in ((1, 0.05, 3), (3, 0.2, 12)):
        moved = []
        for seed in range(8):
            env.reset(seed=seed, options={"task": task})
            plain = env.world.start
            env.reset(seed=seed, options={"task": task, "vary": {"start": level}})
            start = env.world.start
            assert start.objects_m == plain.objects_m
            (x_m, y_m, yaw), (pan, tilt) = start.base_pose - plain.base_pose, start.head_rad
            looks = plain.base_pose[2] + plain.head_rad[0]
            point_m = plain.base_pose[:2] + 1.2 * np.array([np.cos(looks), np.sin(looks)])
            ahead_m, aside_m = point_m - start.base_pose[:2]
            off_rad = np.arctan2(aside_m, ahead_m) - start.base_pose[2] - pan
            assert -metres <= x_m <= 0
            moved.append(
                (abs(x_m), abs(y_m), abs(yaw), abs(off_rad), abs(tilt - plain.head_rad[1]))
            )
        most = np.array(
            [metres, metres, np.radians(degrees), *np.radians([2.0, 2.0]) * (1, 4)[level > 1]]
        )
        assert (np.max(moved, axis=0) <= most + 1e-9).all()
        assert (np.max(moved, axis=0) > most / 3).all()


def test_what_is_in_the_hand_at_the_start_stays_there(env: KitchenEnv) -> None:
    plain = drive(env, 0, {}, task="take_back")
    assert not differs(plain, drive(env, 0, {"start": 3}, task="take_back"))


@pytest.mark.parametrize("task", ["pick", "pick_object"])
def test_friction_and_mass_vary_and_nothing_that_is_seen(env: KitchenEnv, task: str) -> None:
    env.reset(seed=0, options={"task": task})
    model, things = env.model, list(env.world.start.objects_m)
    fields = {name: getattr(model, name).copy() for name in dir(model) if name.startswith(FIELDS)}
    friction, masses = fields["geom_friction"], fields["body_mass"]
    bodies, factors = [model.body(name).id for name in things], []
    for seed in range(8):
        env.reset(seed=seed, options={"task": task, "vary": {"physics": 2}})
        factors.append(
            (
                model.geom_friction[0, 0] / friction[0, 0],
                model.body_mass[bodies[0]] / masses[bodies[0]],
            )
        )
        assert model.geom_friction == pytest.approx(friction * factors[-1][0])
        expected = masses.copy()
        expected[bodies] *= factors[-1][1]
        assert model.body_mass == pytest.approx(expected)
        changed = {n for n, own in fields.items() if not np.array_equal(own, getattr(model, n))}
        assert changed == {
            "geom_friction", "body_mass", "body_inertia", "body_subtreemass", "body_invweight0",
            "dof_invweight0", "dof_damping", "dof_frictionloss",
        }  # fmt: skip
    lows, highs = np.min(factors, axis=0), np.max(factors, axis=0)
    assert (lows > (1 / 1.5, 1 / 2)).all()
    assert (lows < 0.9).all()
    assert (highs < (1.5, 2)).all()
    assert (highs > 1.1).all()
    weights = model.body_invweight0[bodies], model.dof_invweight0[model.body(things[0]).dofadr[0]]
    mujoco.mj_setConst(model, mujoco.MjData(model))
    assert model.body_invweight0[bodies] == pytest.approx(weights[0], rel=1e-6)
    assert model.dof_invweight0[model.body(things[0]).dofadr[0]] == pytest.approx(weights[1])


def test_observations_are_late_by_whole_ticks_and_infos_are_not(env: KitchenEnv) -> None:
    lates = set()
    for seed in range(8):
        plain = drive(env, 5, {}, seed)
        varied = drive(env, 5, {"latency": 2}, seed)
        late = next(k for k in range(3) if not differs(plain[: 6 - k], varied[k:]))
        lates.add(late)
        assert not differs([plain[0]] * (late + 1), varied[: late + 1])
        for (_, info), (_, expected) in zip(varied, plain, strict=True):
            assert info["time_s"] == expected["time_s"]
            assert np.array_equal(
                info.get("executed_action", 0), expected.get("executed_action", 0)
            )
    assert lates == {0, 1, 2}


def test_no_observation_of_the_cue_is_late(env: KitchenEnv) -> None:
    """The one at "go" is the first that can be late, and is not yet."""
    seed = next(
        s for s in range(9) if differs(drive(env, 3, {}, s), drive(env, 3, {"latency": 3}, s))
    )
    plain = drive(env, 12, {}, seed, task="side_shown", gap=2)
    varied = drive(env, 12, {"latency": 3}, seed, task="side_shown", gap=2)
    go = next(tick for tick, (_, info) in enumerate(plain) if info["go"])
    assert not differs(plain[: go + 1], varied[: go + 1])
    assert not differs([plain[go]], [varied[go + 1]])
    assert differs([plain[go + 1]], [varied[go + 1]])


def test_frames_freeze_or_drop_now_and_then(env: KitchenEnv) -> None:
    """Each frame is the newest of the plain episode or the last one again; nothing else changes."""
    runs = list[int]()
    for seed in range(4):
        plain, varied = drive(env, 40, {}, seed), drive(env, 40, {"frames": 3}, seed)
        assert differs(plain, varied) <= set(FRAMES)
        for name in FRAMES:
            run = 0
            for (new, _), (old, _), (seen, _) in zip(plain[1:], varied, varied[1:], strict=False):
                fresh = np.array_equal(seen[name], new[name])
                assert fresh or np.array_equal(seen[name], old[name])
                runs += [run] if fresh and run else []
                run = 0 if fresh else run + 1
    assert 1 in runs, "a frame is dropped"
    assert 3 < max(runs) <= 10


def test_the_camera_moves_within_its_level_and_shakes(env: KitchenEnv) -> None:
    env.reset(seed=0)
    place_m, axes = (
        env.data.camera("fetch/head").xpos.copy(),
        env.data.camera("fetch/head").xmat.copy(),
    )
    for level, degrees, metres in ((1, 2, 0.01), (3, 8, 0.04)):
        moved = []
        for seed in range(12):
            env.reset(seed=0, options={"vary": {}})
            env.world.variation.begin({"camera": level}, np.random.default_rng(seed))
            for _ in range(3):
                env.world.variation.tick(acts=True)
                camera = env.data.camera("fetch/head")
                cosine = (camera.xmat.reshape(3, 3) * axes.reshape(3, 3)).sum() / 2 - 0.5
                turned = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
                moved.append((turned, np.linalg.norm(camera.xpos - place_m)))
        most = np.max(moved, axis=0)
        assert degrees / 2 < most[0] < 2.8 * degrees
        assert metres / 2 < most[1] < 2.8 * metres
        assert len(set(moved)) == len(moved)
    env.reset(seed=0)


def test_frames_freeze_once_the_robot_may_act(env: KitchenEnv) -> None:
    """Not before: a frame that lasts could carry the cue to "go"."""
    frozen = {True: 0, False: 0}
    for seed in range(3):
        episode = drive(env, 40, {"noise": 3}, seed, task="side_shown", gap=11)
        for (before, info), (after, _) in pairwise(episode):
            same = sum(np.array_equal(before[name], after[name]) for name in FRAMES)
            frozen[info["go"]] += same
    assert frozen[False] == 0
    assert frozen[True] > 3


@pytest.mark.parametrize("task", ["pick", "take_back"])
def test_in_a_pause_the_robot_stands_still_and_the_time_limit_moves(
    env: KitchenEnv, task: str
) -> None:
    """Its gripper stays as it was commanded, and the expert goes on wanting what it wanted."""
    _, info = env.reset(seed=1, options={"task": task, "vary": {"pause": 1}})
    pause = env.world.variation.pause
    assert 1 <= pause.start < pause.stop <= pause.start + 30
    action, free = np.zeros(SPEC.action_size, np.float32), 0
    action[SPEC.action_slices["base"]] = -0.05, 0.0
    paused = []
    while free < pause.stop:
        acts = info.get("go", True)
        observation, _, _, over, info = env.step(action)
        assert not over
        assert info["held"] == (not acts or free in pause)
        if acts and info["held"]:
            paused.append(observation)
            assert not info["executed_action"].any()
            assert np.abs(env.expert().action()[:9]).max() > 0
        free += acts
    for later in paused[2:]:
        assert np.abs(later["ee_pose"] - paused[1]["ee_pose"]).max() < 0.01
        assert np.abs(later["base_velocity"]).max() < 0.05
    env.world.tick = env.task.tick_limit(env.world) + len(pause) - 2
    for truncated in (False, True):
        assert env.step(action)[3] is truncated


@pytest.mark.parametrize("task", MEMORY_NAMES)
def test_the_rate_stretches_cue_and_gap(env: KitchenEnv, task: str) -> None:
    """A gap that is given stays as it is."""
    rates = set()
    for seed in range(6):
        _, plain = env.reset(seed=seed, options={"task": task})
        _, info = env.reset(seed=seed, options={"task": task, "vary": {"rate": 1}})
        rate = env.world.variation.rate
        rates.add(rate)
        assert info["gap"] == round(rate * plain["gap"])
        options = {"task": task, "gap": 4, "vary": {"rate": 1}}
        _, info = env.reset(seed=seed, options=options)
        assert info["gap"] == 4
        if seed < 2:
            drive(env, 0, {"rate": 1}, seed, task=task, gap=4)
            while not info["go"]:
                *_, info = env.step(env.expert().action())
            assert info["tick"] == int(np.ceil(rate * env.task.cue_ticks)) + 4  # type: ignore[attr-defined]
            assert info["time_s"] == pytest.approx(info["tick"] * SPEC.control_dt_s)
    assert rates == ({1.0, 2.0} if task == "count" else {0.5, 1.0, 2.0})


@pytest.mark.parametrize("task", MEMORY_NAMES)
@pytest.mark.parametrize("seed", [0, 2])
def test_under_variation_no_observation_tells_the_cue_at_go(
    env: KitchenEnv, task: str, seed: int
) -> None:
    """Same state and variation, other cue: equal in the gap and at "go" to the bit."""
    vary, episodes = dict.fromkeys(ALL, 3), []
    env.reset(seed=seed, options={"task": task})
    for choice in env.world.start.choices:  # type: ignore[attr-defined]
        options = {"task": task, "right_choice": choice, "gap": seed, "vary": vary}
        observation, info = env.reset(seed=seed, options=options)
        seen = [observation]
        while not info["go"]:
            observation, *_, info = env.step(env.expert().action())
            seen.append(observation)
        episodes.append(seen)
    for first, second in combinations(episodes, 2):
        for ours, theirs in zip(first[-seed - 1 :], second[-seed - 1 :], strict=True):
            assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ({"sound": 1}, "sound.*camera, light.*words, clutter, start, physics, latency, frames"),
        ({"hue": 4}, "hue is 4.*0, 1, 2, 3"),
    ],
)
def test_what_cannot_vary_is_refused(env: KitchenEnv, vary: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        env.reset(seed=0, options={"vary": vary})
