"""What an environment says of its tasks: groups of them, and which are memory tasks."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from ttm.datasets import open_dataset
from ttm.policy import UserError
from ttm.sim.collect import CollectCommand
from ttm.sim.environment import EnvFacts, inspect_env, require_memory_tasks, reset_options

MEMORY_POINT = "memory_point_env:test/MemoryPoint-v0"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import_module("memory_point_env")


@pytest.fixture
def facts() -> EnvFacts:
    return inspect_env(MEMORY_POINT)


def test_a_group_stands_for_its_tasks(facts: EnvFacts) -> None:
    assert facts.choose("memory") == ["recall"]
    assert facts.choose("all") == ["touch"], "the environment says what all means"
    assert facts.choose(["memory", "touch", "recall"]) == ["recall", "touch"]


def test_without_groups_all_means_every_task() -> None:
    assert inspect_env("point_env:test/Point-v0").choose("all") == ["touch"]
    facts = EnvFacts("some/Env-v0", inspect_env(MEMORY_POINT).spec, {"a": (), "b": ()}, False)
    assert facts.choose("all") == ["a", "b"]


def test_an_unknown_task_is_an_error_that_lists_groups_too(facts: EnvFacts) -> None:
    with pytest.raises(UserError, match="task is 'dance'; give one of touch, recall, all, memory"):
        facts.choose(["recall", "dance"])


def test_options_of_reset_hold_only_what_was_asked_for() -> None:
    assert reset_options("pick") == {"task": "pick"}
    assert reset_options("recall", 0, "left_on") == {"task": "recall", "gap": 0, "cue": "left_on"}


def test_memory_tasks_are_known_by_their_go() -> None:
    require_memory_tasks(MEMORY_POINT, ["recall"], "--gap 5")
    with pytest.raises(UserError, match=r"--gap 5 needs a memory task.*'touch' is none"):
        require_memory_tasks(MEMORY_POINT, ["recall", "touch"], "--gap 5")


def test_demonstrations_have_the_gap_that_was_asked_for(tmp_path: Path) -> None:
    """Two ticks of the cue, the gap, ten steps to the side, and those recorded after success."""
    for gap in (1, 6):
        out = tmp_path / str(gap)
        options = {"env": MEMORY_POINT, "episodes": 1, "workers": 1, "disturbance": 0.0}
        assert CollectCommand(out=out, task="recall", gap=gap, **options).run() == 0
        (episode,) = open_dataset(out)
        standing = [move == 0 for move in episode.actions[:, 0]]
        assert standing.index(False) == 2 + gap
    with pytest.raises(UserError, match="--gap 1 needs a memory task"):
        CollectCommand(out=tmp_path / "no", task="touch", gap=1, **options).run()
    with pytest.raises(UserError, match="--gap is -1"):
        CollectCommand(out=tmp_path / "no", task="recall", gap=-1, **options).run()
    assert not (tmp_path / "no").exists()
