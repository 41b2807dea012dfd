"""The contract of a tick, point by point, for every engine, several cores, and every execution."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch

from ttm.policy import (
    ActionPart,
    Policy,
    PolicyConfig,
    PolicyInputs,
    PolicyRunner,
    PolicySpec,
    UserError,
    load_checkpoint,
    save_checkpoint,
)
from ttm.policy.config import EngineName
from ttm.policy.cores.registry import sized_like, with_options
from ttm.policy.errors import MalformedObservation, MissingObservation, StaleObservation
from ttm.policy.execution import NEWEST, PLAN, make_execution
from ttm.policy.inputs import Normalizer
from ttm.policy.runner import STATE
from ttm.policy.snapshot import snapshot_from_bytes, snapshot_to_bytes
from ttm.policy.spec import Observation

Observe = Callable[[int], Observation]
Runners = dict[tuple[EngineName, str, int, str], PolicyRunner]

ENGINES: tuple[EngineName, ...] = ("torch", "openvino")
OPTIONS = {
    "ttm": (),
    "transformer": (),
    "tlb": ("num_latents=4", "chunk_size=3"),
    "hourglass": ("hierarchy=1@1 1@2 1@1",),
}
CHUNK = 4
KINDS = (
    *((engine, core, 1, NEWEST) for engine, core in product(ENGINES, OPTIONS)),
    ("torch", "ttm", CHUNK, "receding:3"),
    ("openvino", "ttm", CHUNK, "ensemble:0.2"),
)
"""Engine, core, actions in a chunk, and execution."""
Kind = tuple[EngineName, str, int, str]


@pytest.fixture(scope="module")
def made() -> Runners:
    """Keep the runners, since OpenVINO takes a second to compile each."""
    return {}


@pytest.fixture(params=KINDS, ids=lambda kind: "-".join(map(str, kind)))
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


@pytest.fixture
def runner(
    kind: Kind, spec: PolicySpec, config: PolicyConfig, embedding: np.ndarray, made: Runners
) -> PolicyRunner:
    if kind not in made:
        engine, core, chunk, execution = kind
        chosen = with_options(sized_like(core, config.core), OPTIONS[core])
        config = replace(config, core=chosen, chunk=chunk)
        if chunk > 1:  # with parts that are predicted in another form than the robot's
            parts = (ActionPart("joints", 2, "rad"), ActionPart("turn", 1, "rad/tick"))
            spec, wrist = replace(spec, actions=(*spec.actions, *parts)), ("turn=joints.left[1:2]",)
            config = replace(config, relative=("joints=joints.left",), absolute=wrist)
        made[kind] = PolicyRunner(stirred(Policy(spec, config)), engine=engine, execution=execution)
    made[kind].reset("open the drawer", embedding=embedding)
    return made[kind]


def stirred(policy: Policy) -> Policy:
    """Add noise to every parameter, so that every path through the network matters."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return policy


def state_of(runner: PolicyRunner) -> dict[str, np.ndarray]:
    return {name: value.copy() for name, value in runner.snapshot().items()}


def memory_of(runner: PolicyRunner) -> np.ndarray:
    """Return the whole state of the core, (values,)."""
    parts = [value.ravel() for name, value in runner.snapshot().items() if name.startswith(STATE)]
    return np.concatenate(parts)


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_streaming_equals_the_parallel_forward_pass(
    runner: PolicyRunner, kind: Kind, observe: Observe, embedding: np.ndarray
) -> None:
    policy = runner.policy
    observations = [observe(i) for i in range(20)]
    taken = [runner.step(observation) for observation in observations]
    actions = torch.from_numpy(np.stack([action.values for action in taken]))[None]
    previous = torch.cat([torch.zeros_like(actions[:, :1]), actions[:, :-1]], dim=1)

    def seen(name: str) -> torch.Tensor:
        return torch.from_numpy(np.stack([o[name] for o in observations]))[None]

    inputs = PolicyInputs(
        images={c.name: seen(c.name).permute(0, 1, 4, 2, 3) for c in policy.spec.cameras},
        proprioception={v.name: seen(v.name) for v in policy.spec.proprioception},
        previous_action=previous,
        previous_action_valid=torch.arange(20)[None] > 0,
        language=torch.from_numpy(embedding)[None],
    )
    with torch.no_grad():
        chunks = policy.decode_chunk(policy(inputs)[0], inputs.proprioception)[0].numpy()
    execution = make_execution(kind[3], kind[2], policy.spec.action_size)
    plan, planned = execution.initial_plan(), []
    for chunk in chunks:
        action, plan = execution.next(chunk, plan)
        planned.append(action)
    streamed = np.stack([action.probabilities for action in taken])
    parallel = policy.command(torch.from_numpy(np.stack(planned))[None], inputs.proprioception)
    np.testing.assert_allclose(streamed, parallel[0], rtol=0, atol=1e-5)


# 1. Each tick writes to the memory exactly once.


def test_every_tick_writes_even_if_nothing_moved(runner: PolicyRunner, observe: Observe) -> None:
    seen = [memory_of(runner)]
    for tick in range(1, 4):
        runner.step(observe(0))
        seen.append(memory_of(runner))
        assert runner.tick == tick
    assert all(not np.array_equal(a, b) for a, b in pairwise(seen))


def test_the_network_runs_once_a_tick(
    runner: PolicyRunner, observe: Observe, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    step = runner.engine.step
    monkeypatch.setattr(runner.engine, "step", lambda *given: (calls.append(1), step(*given))[1])
    for i in range(5):
        runner.step(observe(i))
    assert len(calls) == 5


# 2. Invalid observations change nothing.


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda o: {k: v for k, v in o.items() if k != "wrist"}, MissingObservation),
        (lambda o: {k: v for k, v in o.items() if k != "joints.left"}, MissingObservation),
        (lambda o: {**o, "head": o["head"][:16]}, MalformedObservation),
        (lambda o: {**o, "head": o["head"].astype(np.float32)}, MalformedObservation),
        (lambda o: {**o, "joints.left": np.array([0.0, np.nan], np.float32)}, MalformedObservation),
        (lambda o: {**o, "joints.left": np.zeros(3, np.float32)}, MalformedObservation),
    ],
)
def test_a_bad_observation_changes_nothing(
    runner: PolicyRunner,
    observe: Observe,
    spoil: Callable[[Observation], Observation],
    error: type[Exception],
) -> None:
    runner.step(observe(0))
    before = state_of(runner)
    with pytest.raises(error):
        runner.step(spoil(observe(1)))
    assert same(before, state_of(runner))


@pytest.mark.parametrize("stamp_s", [None, 9.4, 10.6, float("nan")])
def test_a_stale_observation_changes_nothing(
    policy: Policy, observe: Observe, embedding: np.ndarray, stamp_s: float | None
) -> None:
    runner = PolicyRunner(policy, max_age_s=0.5, engine="torch")
    runner.reset("open the drawer", embedding=embedding)
    runner.step(observe(0), stamp_s=9.8, now_s=10.0)
    before = state_of(runner)
    with pytest.raises(StaleObservation):
        runner.step(observe(1), stamp_s=stamp_s, now_s=10.0)
    assert same(before, state_of(runner))


@pytest.mark.parametrize("engine", ["torch", "openvino"])
def test_a_network_that_gives_nan_changes_nothing(
    policy: Policy, observe: Observe, embedding: np.ndarray, engine: EngineName
) -> None:
    with torch.no_grad():
        policy.action_head.mlp.out.bias.fill_(float("nan"))
    runner = PolicyRunner(policy, engine=engine)
    runner.reset("open the drawer", embedding=embedding)
    before = state_of(runner)
    with pytest.raises(MalformedObservation, match="not finite"):
        runner.step(observe(0))
    assert same(before, state_of(runner))


# 3. Only reset(instruction) resets the memory.


def test_reset_makes_it_as_new(
    runner: PolicyRunner, observe: Observe, embedding: np.ndarray
) -> None:
    fresh = state_of(runner)
    first = runner.step(observe(0)).values
    for i in range(3):
        runner.step(observe(i))
    runner.reset("open the drawer", embedding=embedding)
    assert same(fresh, state_of(runner))
    assert np.array_equal(first, runner.step(observe(0)).values)


def test_memory_is_kept_when_asked_for(
    runner: PolicyRunner, observe: Observe, embedding: np.ndarray
) -> None:
    runner.step(observe(0))
    before = state_of(runner)
    runner.reset("close the drawer", embedding=-embedding, keep_memory=True)
    after = state_of(runner)
    assert runner.instruction == "close the drawer"
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert {name for name in changed if not name.startswith(PLAN)} == {"instruction", "language"}


def test_no_horizon_ends_the_memory(runner: PolicyRunner, observe: Observe) -> None:
    runner.step(observe(0))
    marked = memory_of(runner)
    for _ in range(40):
        runner.step(observe(1))
    assert runner.tick == 41
    assert runner.memory_norms.all()
    assert not np.array_equal(marked, memory_of(runner))


def test_an_embedding_of_another_size_is_refused_and_changes_nothing(
    runner: PolicyRunner, observe: Observe
) -> None:
    runner.step(observe(0))
    before = state_of(runner)
    with pytest.raises(UserError, match="384"):
        runner.reset("open the drawer", embedding=np.zeros(7, np.float32))
    assert same(before, state_of(runner))


# 4. Snapshot and restore.


def test_a_respawned_runner_goes_on_bit_for_bit(
    runner: PolicyRunner, kind: Kind, observe: Observe
) -> None:
    """What OpenVINO compiles anew is the same: one core shows it, as that takes longer than all else."""
    for i in range(4):
        runner.step(observe(i))
    saved = snapshot_to_bytes(runner.snapshot())
    expected = [runner.step(observe(i)).probabilities for i in range(4, 8)]
    if kind[:2] == ("openvino", "transformer") or kind[0] == "torch":
        other = PolicyRunner(runner.policy, engine=kind[0], execution=kind[3])
    else:
        (other := copy(runner)).reset("close the drawer", embedding=np.ones(384, np.float32))
        other.step(observe(9))
    other.restore(snapshot_from_bytes(saved))
    assert (other.tick, other.instruction) == (4, "open the drawer")
    assert np.array_equal(expected, [other.step(observe(i)).probabilities for i in range(4, 8)])


def test_a_snapshot_does_not_change_afterwards(runner: PolicyRunner, observe: Observe) -> None:
    snapshot = runner.snapshot()
    before = {name: value.copy() for name, value in snapshot.items()}
    runner.step(observe(0))
    assert same(before, snapshot)
    assert all(isinstance(value, np.ndarray) for value in snapshot.values())


@pytest.mark.parametrize("part", ["state", "language", "previous_action"])
@pytest.mark.parametrize(
    "spoil",
    [lambda value: value[..., None], lambda value: np.full_like(value, np.nan), lambda value: None],
    ids=["another shape", "not finite", "missing"],
)
def test_a_foreign_snapshot_is_refused(
    runner: PolicyRunner,
    observe: Observe,
    part: str,
    spoil: Callable[[np.ndarray], np.ndarray | None],
) -> None:
    runner.step(observe(0))
    before = state_of(runner)
    snapshot = runner.snapshot()
    name = next(
        n for n, value in snapshot.items() if n.startswith(part) and value.dtype.kind == "f"
    )
    spoiled = spoil(snapshot.pop(name))
    if spoiled is not None:
        snapshot[name] = spoiled
    with pytest.raises(UserError, match=name):
        runner.restore(snapshot)
    assert same(before, state_of(runner))


def test_a_snapshot_whose_texts_or_tick_are_none_is_refused(runner: PolicyRunner) -> None:
    before, snapshot = state_of(runner), runner.snapshot()
    spoiled: list[tuple[str, np.ndarray]] = [
        ("instruction", np.frombuffer(b"pick \x1b[2J", np.uint8)),
        ("instruction", np.full(2000, ord("x"), np.uint8)),
        ("instruction", np.full(3, 255, np.uint8)),
        ("instruction", np.array(["wave"])),
        ("spec", np.full(3, 255, np.uint8)),
        ("tick", np.zeros(2, np.int64)),
        ("tick", np.array(np.nan)),
        ("tick", np.array(-1)),
    ]
    for name, value in spoiled:
        with pytest.raises(UserError, match="the snapshot") as refused:
            runner.restore(snapshot | {name: value})
        assert str(refused.value).isprintable()
        assert same(before, state_of(runner))


# 5. Constant cost.


def test_nothing_grows(runner: PolicyRunner, observe: Observe) -> None:
    runner.step(observe(0))
    sizes = {name: value.nbytes for name, value in runner.snapshot().items()}
    attributes = set(vars(runner))
    for i in range(30):
        runner.step(observe(i))
    assert {name: value.nbytes for name, value in runner.snapshot().items()} == sizes
    assert set(vars(runner)) == attributes
    assert all(value.grad_fn is None for value in runner._state.values())


# 6. Replay.


def test_a_replay_gives_the_same_actions_bit_for_bit(
    runner: PolicyRunner, observe: Observe, embedding: np.ndarray
) -> None:
    replays = []
    for _ in range(2):
        runner.reset("open the drawer", embedding=embedding)
        replays.append([runner.step(observe(i)).probabilities for i in range(6)])
    assert np.array_equal(replays[0], replays[1])


# The action.


def test_binary_parts_come_out_as_zero_or_one(runner: PolicyRunner, observe: Observe) -> None:
    action = runner.step(observe(0))
    gripper = runner.spec.action_slices["gripper"]
    assert action.part("gripper").tolist() == [float(action.probabilities[gripper][0] >= 0.5)]
    assert 0 < action.probabilities[gripper][0] < 1
    assert np.array_equal(action.values[:3], action.probabilities[:3])


def test_callers_cannot_reach_into_the_state(runner: PolicyRunner, observe: Observe) -> None:
    action = runner.step(observe(0))
    before = state_of(runner)
    action.values[:] = 99
    runner.snapshot()["previous_action"][:] = 99
    assert same(before, state_of(runner))


# A memory that is erased in the middle of an episode: the memory alone is lost.


@pytest.mark.parametrize("engine", ["torch", "openvino"])
def test_only_the_memory_is_lost(
    spec: PolicySpec,
    config: PolicyConfig,
    embedding: np.ndarray,
    observe: Callable[[int], Observation],
    engine: EngineName,
) -> None:
    learned = with_options(config.core, ("initial_memory=learned",))
    policy = Policy(spec, PolicyConfig(**{**vars(config), "core": learned}))
    runner = PolicyRunner(policy, engine=engine)
    runner.reset("open the drawer", embedding=embedding)
    initial = runner.snapshot()
    for tick in range(3):
        runner.step(observe(tick))
    before = runner.snapshot()
    assert any(not np.array_equal(before[name], initial[name]) for name in initial if STATE in name)
    runner.erase_memory()
    after = runner.snapshot()
    for name, value in after.items():
        assert np.array_equal(value, (initial if name.startswith(STATE) else before)[name]), name
    erased = runner.step(observe(3))
    assert runner.tick == 4
    runner.restore(before)
    assert not np.array_equal(erased.probabilities, runner.step(observe(3)).probabilities)


# Robots with other grippers and without cameras: what the runner takes from them and gives them.


@pytest.mark.parametrize("command", [-1.0, 1.0])
def test_binary_parts_come_out_as_the_robots_own_commands(
    spec: PolicySpec,
    config: PolicyConfig,
    observe: Observe,
    embedding: np.ndarray,
    tmp_path: Path,
    command: float,
) -> None:
    """The checkpoint carries the two commands; equal weights choose the same one of either pair."""
    gripper = replace(spec.actions[1], low=-1, high=1)
    policy = stirred(Policy(replace(spec, actions=(spec.actions[0], gripper)), config))
    with torch.no_grad():
        policy.action_head.mlp.out.bias[3] = 5 * command
    save_checkpoint(tmp_path / "a.safetensors", policy, {})
    ours = PolicyRunner.from_checkpoint(tmp_path / "a.safetensors", engine="torch")
    plain = Policy(spec, config)
    plain.load_state_dict(policy.state_dict())
    plain.normalizer = Normalizer(spec)
    theirs = PolicyRunner(plain, engine="torch")
    for runner in (ours, theirs):
        runner.reset("open the drawer", embedding=embedding)
    for tick in range(4):
        action, other = ours.step(observe(tick)), theirs.step(observe(tick))
        assert action.part("gripper") == command
        assert other.part("gripper") == (command + 1) / 2
        np.testing.assert_allclose(action.probabilities, other.probabilities, atol=1e-5)


@pytest.mark.parametrize("engine", ["torch", "openvino"])
def test_a_policy_without_cameras_runs(
    spec: PolicySpec, config: PolicyConfig, embedding: np.ndarray, engine: EngineName
) -> None:
    policy = stirred(Policy(replace(spec, cameras=()), config))
    runner = PolicyRunner(policy, engine=engine)
    runner.reset("open the drawer", embedding=embedding)
    first, second = (
        runner.step({"joints.left": np.array([0.1 * tick, 0.2], np.float32)}) for tick in range(2)
    )
    assert runner.tick == 2
    assert not np.array_equal(first.probabilities, second.probabilities)


# Policies that are told how late their command will be in force.


LONGEST_DELAY_S = 0.4


@pytest.fixture
def told(spec: PolicySpec, config: PolicyConfig) -> Policy:
    return stirred(Policy(spec, replace(config, longest_delay_s=LONGEST_DELAY_S)))


def actions_for(
    runner: PolicyRunner, observation: Observation, embedding: np.ndarray, *delays_s: float
) -> list[np.ndarray]:
    """The probabilities and values of a first tick, for each delay."""
    taken = []
    for delay_s in delays_s:
        runner.reset("open the drawer", embedding=embedding)
        taken.append(runner.step(observation, delay_s=delay_s).probabilities)
    return taken


@pytest.mark.parametrize("engine", ["torch", "openvino"])
def test_the_action_depends_on_the_delay_up_to_the_longest_one(
    engine: str, told: Policy, observe: Observe, embedding: np.ndarray, tmp_path: Path
) -> None:
    save_checkpoint(tmp_path / "told.safetensors", told, {})
    policy, _ = load_checkpoint(tmp_path / "told.safetensors")
    assert policy.config.longest_delay_s == LONGEST_DELAY_S
    runner = PolicyRunner(policy, engine=engine)  # type: ignore[arg-type]
    none, some, longest, beyond, before = actions_for(
        runner, observe(1), embedding, 0.0, 0.1, LONGEST_DELAY_S, 3.0, -1.0
    )
    assert not np.allclose(none, some)
    assert not np.allclose(some, longest)
    assert np.array_equal(longest, beyond)
    assert np.array_equal(none, before)
    reference = PolicyRunner(told, engine="torch")
    (expected,) = actions_for(reference, observe(1), embedding, 0.1)
    assert np.allclose(some, expected, atol=1e-4)


def test_other_policies_ignore_the_delay(
    policy: Policy, observe: Observe, embedding: np.ndarray
) -> None:
    runner = PolicyRunner(policy, engine="torch")
    one, other = actions_for(runner, observe(1), embedding, 0.0, 0.3)
    assert np.array_equal(one, other)
    assert not any(name.startswith("delay_code") for name in policy.state_dict())


def test_a_delay_that_is_no_number_is_refused(
    policy: Policy, observe: Observe, embedding: np.ndarray
) -> None:
    runner = PolicyRunner(policy, engine="torch")
    with pytest.raises(UserError, match="delay_s is NaN; give the seconds"):
        actions_for(runner, observe(1), embedding, math.nan)


# What the robot did in place of the last command is the previous action of the next tick.


@pytest.fixture
def plain_runner(spec: PolicySpec, config: PolicyConfig, embedding: np.ndarray) -> PolicyRunner:
    made = PolicyRunner(Policy(spec, config), engine="torch")
    made.reset("open the drawer", embedding=embedding)
    return made


def test_the_next_tick_sees_what_was_executed(plain_runner: PolicyRunner, observe: Observe) -> None:
    command = plain_runner.step(observe(0)).values
    assert np.array_equal(plain_runner.previous_action, command)
    start, did = plain_runner.snapshot(), command + np.float32(0.5)
    plain_runner.executed(did)
    told = plain_runner.step(observe(1)).probabilities
    plain_runner.restore({**start, "previous_action": did})
    assert np.array_equal(told, plain_runner.step(observe(1)).probabilities)
    plain_runner.restore(start)
    assert not np.array_equal(told, plain_runner.step(observe(1)).probabilities)


def test_it_counts_for_one_tick(plain_runner: PolicyRunner, observe: Observe) -> None:
    plain_runner.step(observe(0))
    plain_runner.executed(np.full(plain_runner.spec.action_size, 0.5))
    assert np.array_equal(plain_runner.step(observe(1)).values, plain_runner.previous_action)


def test_a_snapshot_keeps_it(plain_runner: PolicyRunner, observe: Observe) -> None:
    plain_runner.step(observe(0))
    did = np.full(plain_runner.spec.action_size, 0.25, np.float32)
    plain_runner.executed(did)
    did[:] = 9.0  # callers cannot reach into the state
    snapshot = plain_runner.snapshot()
    assert np.array_equal(snapshot["previous_action"], np.full(len(did), 0.25, np.float32))
    expected = plain_runner.step(observe(1)).probabilities
    respawned = PolicyRunner(plain_runner.policy, engine="torch")
    respawned.restore(snapshot)
    assert np.array_equal(respawned.step(observe(1)).probabilities, expected)


def test_what_is_no_action_changes_nothing(plain_runner: PolicyRunner, observe: Observe) -> None:
    command = plain_runner.step(observe(0)).values
    no_numbers: tuple[object, ...] = (
        ["up"] * len(command),
        [[1.0], 2.0],
        [None] * len(command),
        10**400,
        {},
    )
    values = (command[:-1], command[None], np.zeros(3000), command * np.nan, command + np.inf)
    for wrong in (*values, *no_numbers):
        with pytest.raises(
            MalformedObservation, match="finite values in the spec's units"
        ) as error:
            plain_runner.executed(wrong)  # type: ignore[arg-type]
        assert "\n" not in str(error.value)
        assert np.array_equal(plain_runner.previous_action, command)


def test_step_before_reset_is_an_error(policy: Policy, observe: Observe) -> None:
    plain_runner = PolicyRunner(policy, engine="torch")
    assert (plain_runner.tick, plain_runner.instruction, policy.training) == (0, None, False)
    assert not plain_runner.memory_norms.any()  # the engine's warm-up leaves no trace
    with pytest.raises(UserError, match="reset"):
        plain_runner.step(observe(0))


def test_before_the_first_step_nothing_was_executed(plain_runner: PolicyRunner) -> None:
    with pytest.raises(UserError, match="executed before step"):
        plain_runner.executed(np.zeros(plain_runner.spec.action_size))
