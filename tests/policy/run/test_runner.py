"""The contract of a tick, point by point, for every engine, several cores, and every execution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
import torch

from ttm.policy.config import EngineName
from ttm.policy.cores.registry import sized_like, with_options
from ttm.policy.errors import MalformedObservation, MissingObservation, StaleObservation, UserError
from ttm.policy.execution import NEWEST, PLAN, make_execution
from ttm.policy.inputs import PolicyInputs
from ttm.policy.policy import Policy
from ttm.policy.presets import PolicyConfig
from ttm.policy.runner import STATE, PolicyRunner
from ttm.policy.snapshot import snapshot_from_bytes, snapshot_to_bytes
from ttm.policy.spec import ActionPart, Observation, PolicySpec

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
    kind: Kind,
    spec: PolicySpec,
    config: PolicyConfig,
    embedding: np.ndarray,
    made: Runners,
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
    for i in range(4):
        runner.step(observe(i))
    saved = snapshot_to_bytes(runner.snapshot())
    expected = [runner.step(observe(i)).probabilities for i in range(4, 8)]
    other = PolicyRunner(runner.policy, engine=kind[0], execution=kind[3])  # as in a new process
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
