"""Snapshots as bytes, and the executions whose plans they hold."""

from __future__ import annotations

import io
import os
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ttm.policy import Policy, PolicyConfig, PolicyRunner, PolicySpec, UserError
from ttm.policy.errors import StaleObservation
from ttm.policy.execution import EXECUTION, NEWEST, PLAN, Execution, make_execution
from ttm.policy.snapshot import (
    MOST_BYTES,
    read_snapshot,
    require_fresh,
    snapshot_from_bytes,
    snapshot_to_bytes,
)
from ttm.policy.spec import Observation


def _with_array(size: int, content: bytes = b"") -> bytes:
    """Return an archive with one array that declares so many bytes, and has these."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("memory.npy", "w") as file,
    ):
        head = {"descr": "|u1", "fortran_order": False, "shape": (size,)}
        np.lib.format.write_array_header_1_0(file, head)
        file.write(content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "make",
    [
        lambda: _with_array(1 << 50),  # a petabyte, of which nothing follows
        lambda: _with_array(MOST_BYTES - 1),
        lambda: _with_array(MOST_BYTES + 1, bytes(MOST_BYTES + 1)),  # zeros, deflated to some kB
    ],
)
def test_what_a_snapshot_declares_is_judged_before_it_is_unpacked(
    make: Callable[[], bytes],
) -> None:
    data = make()
    assert len(data) < 1_000_000
    tracemalloc.start()
    with pytest.raises(UserError, match="no snapshot"):
        snapshot_from_bytes(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "memory.npz"
    path.write_bytes(snapshot_to_bytes({"tick": np.array(3)}))
    assert read_snapshot(path)["tick"] == 3
    os.truncate(path, MOST_BYTES + 1)
    tracemalloc.start()
    with pytest.raises(UserError, match="at most"):
        read_snapshot(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


# The rule of freshness, which `PolicyRunner` and the control loop of the ROS node share.


@pytest.mark.parametrize("age_s", [0.0, 0.5, -0.5])
def test_ages_within_the_limit_pass(age_s: float) -> None:
    require_fresh(age_s, 0.5)


@pytest.mark.parametrize(
    ("age_s", "words"),
    [
        (0.51, "0.510 s old"),
        (-0.51, "0.510 s ahead of the clock"),
        (float("inf"), "inf s old"),
        (float("nan"), "nan s old"),
    ],
)
def test_old_future_and_undefined_ages_are_refused(age_s: float, words: str) -> None:
    with pytest.raises(StaleObservation, match=words):
        require_fresh(age_s, 0.5)


Observe = Callable[[int], Observation]
CHUNK, TICKS = 4, 9
CHUNKS = np.random.default_rng(0).normal(size=(TICKS, CHUNK, 2)).astype(np.float32)


def played(execution: Execution) -> np.ndarray:
    """Return the actions that an execution makes of `CHUNKS`."""
    plan, actions = execution.initial_plan(), []
    for chunk in CHUNKS:
        action, plan = execution.next(chunk, plan)
        actions.append(action)
    return np.stack(actions)


def test_the_newest_prediction_is_the_first_of_each_chunk() -> None:
    execution = make_execution(NEWEST, CHUNK, 2)
    assert np.array_equal(played(execution), CHUNKS[:, 0])
    assert execution.initial_plan() == {}


def test_a_receding_horizon_carries_out_so_many_of_a_chunk() -> None:
    expected = [CHUNKS[tick - tick % 3, tick % 3] for tick in range(TICKS)]
    assert np.array_equal(played(make_execution("receding:3", CHUNK, 2)), expected)


@pytest.mark.parametrize("decay", [0.01, 0.0, -1.0, 500.0, -500.0])
def test_an_ensemble_weighs_predictions_by_their_age(decay: float) -> None:
    found = played(make_execution(f"ensemble:{decay}", CHUNK, 2))
    for tick in range(TICKS):
        ticks = range(max(tick - CHUNK + 1, 0), tick + 1)  # oldest first
        exponents = -decay * np.arange(len(ticks))
        weights = np.exp(exponents - exponents.max())
        predicted = [CHUNKS[then, tick - then] for then in ticks]
        expected = np.average(predicted, axis=0, weights=weights)
        np.testing.assert_allclose(found[tick], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("decay", "age"), [(-1e308, 0), (1e308, CHUNK - 1)])
def test_beyond_all_numbers_the_newest_or_the_oldest_counts_alone(decay: float, age: int) -> None:
    found = played(make_execution(f"ensemble:{decay}", CHUNK, 2))
    expected = [CHUNKS[max(tick - age, 0), min(tick, age)] for tick in range(TICKS)]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "text", ["", "newest", "receding", "receding:0", "receding:1.5", "ensemble:", "ensemble:nan"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="is unknown; give such as receding:1"):
        make_execution(text, CHUNK, 2)


@pytest.mark.parametrize(("text", "chunk"), [("receding:5", 4), ("ensemble:0.01", 1)])
def test_no_more_than_what_is_predicted_can_be_carried_out(text: str, chunk: int) -> None:
    with pytest.raises(UserError, match=f"this policy predicts {chunk}"):
        make_execution(text, chunk, 2)


@pytest.fixture
def runner(spec: PolicySpec, config: PolicyConfig, embedding: np.ndarray) -> PolicyRunner:
    policy = Policy(spec, replace(config, chunk=CHUNK))
    made = PolicyRunner(policy, engine="torch", execution="receding:4")
    made.reset("open the drawer", embedding=embedding)
    return made


def left(runner: PolicyRunner) -> int:
    """Return how many actions of its chunk a runner of a receding horizon has left."""
    return int(runner.snapshot()[f"{PLAN}left"])


@pytest.mark.parametrize("how", ["reset", "another instruction", "erase_memory", "execute_by"])
def test_what_was_planned_is_forgotten(
    runner: PolicyRunner, observe: Observe, embedding: np.ndarray, how: str
) -> None:
    runner.step(observe(0))
    assert left(runner) == 3
    {
        "reset": lambda: runner.reset("open the drawer", embedding=embedding),
        "another instruction": lambda: runner.reset("x", embedding=-embedding, keep_memory=True),
        "erase_memory": runner.erase_memory,
        "execute_by": lambda: runner.execute_by("receding:4"),
    }[how]()
    assert left(runner) == 0


def test_snapshots_without_this_plan_restore_the_memory_and_begin_a_new_chunk(
    runner: PolicyRunner, observe: Observe
) -> None:
    runner.step(observe(0))
    mine = runner.snapshot()
    older = {n: value for n, value in mine.items() if n != EXECUTION and not n.startswith(PLAN)}
    runner.execute_by("ensemble:0")
    other = runner.snapshot()
    runner.execute_by("receding:4")
    for snapshot, expected in ((mine, 3), (older, 0), (other, 0)):
        runner.restore(snapshot)
        assert left(runner) == expected
        assert runner.tick == 1


@pytest.mark.parametrize("spoilt", [np.zeros((3, 4), np.float32), np.full((4, 4), np.nan), None])
def test_a_plan_of_another_shape_is_refused_and_changes_nothing(
    runner: PolicyRunner, observe: Observe, spoilt: np.ndarray | None
) -> None:
    runner.step(observe(0))
    snapshot = runner.snapshot()
    runner.step(observe(1))
    del snapshot[f"{PLAN}actions"]
    if spoilt is not None:
        snapshot[f"{PLAN}actions"] = spoilt
    with pytest.raises(UserError, match=r"'plan.actions' is missing, not finite, or not of"):
        runner.restore(snapshot)
    assert (left(runner), runner.tick) == (2, 2)
