"""`ttm train --core` and `--core-options`, through the command itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from ttm.policy import PRESETS, Policy, PolicyRunner, PolicySpec, UserError, load_checkpoint
from ttm.policy.cores.registry import NAMES, core_name
from ttm.training.cli import parse
from ttm.training.help_texts import CoreChoice
from ttm.training.network import (
    chosen_network,
    require_same_core,
    with_chosen_parts,
    with_vision_kept,
)
from ttm.training.options import TrainOptions
from ttm.training.train import TrainCommand

Make = Callable[..., TrainCommand]


def asked(**options: Any) -> TrainOptions:
    return TrainOptions(data=(), out=Path(), **options)


def test_the_command_knows_every_core() -> None:
    assert set(get_args(CoreChoice)) == {"auto", *NAMES}


def test_options_are_read_from_the_command_line() -> None:
    line = "train --data d --out o --core lstm --core-options num_layers=4 process_size=6 --steps 2"
    command = parse(line.split())
    assert isinstance(command, TrainCommand)
    assert (command.core, command.core_options) == ("lstm", ("num_layers=4", "process_size=6"))


@pytest.mark.parametrize("name", NAMES)
def test_every_core_trains_and_its_checkpoint_runs(
    name: str, command: Make, spec: PolicySpec
) -> None:
    options = ("hierarchy=1@1 1@2 1@1",) if name == "hourglass" else ("num_layers=1",)
    training = command(core=name, core_options=options, cameras=("wrist",))
    assert training.run() == 0
    path = training.out / "last.safetensors"
    config = load_checkpoint(path)[0].config
    assert core_name(config.core) == name
    assert config == chosen_network(asked(core=name, core_options=options))
    runner = PolicyRunner.from_checkpoint(path, engine="torch")
    runner.reset("do 0")
    rng = np.random.default_rng(0)
    for _ in range(3):
        frame = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        action = runner.step({"wrist": frame, "joints": np.zeros(2, np.float32)})
        assert np.isfinite(action.values).all()


def test_a_resumed_training_keeps_its_core(command: Make) -> None:
    small = {"cameras": ("wrist",), "steps": 1}
    first = command(core="lstm", core_options=("num_layers=1",), **small)
    first.run()
    with pytest.raises(
        UserError, match=r"--core is ttm, but .*last.safetensors has lstm; leave it out"
    ):
        command(core="ttm", resume=True, **small).run()
    with pytest.raises(UserError, match=r"has num_layers=2, unlike the core of .*last.safetensors"):
        command(core_options=("num_layers=2",), resume=True, **small).run()
    assert command(resume=True, resume_anyway=True, **{**small, "steps": 2}).run() == 0


def test_fine_tuning_keeps_the_core_unless_another_is_asked_for(
    command: Make, tmp_path: Path
) -> None:
    small = {"cameras": ("wrist",), "steps": 1}
    first = command(core="lstm", core_options=("num_layers=1",), **small)
    first.run()
    last = first.out / "last.safetensors"
    same = command(
        core="lstm", core_options=("num_layers=1",), init=last, out=tmp_path / "same", **small
    )
    assert same.run() == 0
    other = command(
        core="tlb", core_options=("num_layers=1",), init=last, out=tmp_path / "other", **small
    )
    assert other.run() == 0
    cores = [
        load_checkpoint(path.out / "last.safetensors")[0].config.core
        for path in (first, same, other)
    ]
    assert cores[0] == cores[1] == load_checkpoint(last)[0].config.core
    assert core_name(cores[2]) == "tlb"
    assert (
        command(
            resume=True,
            resume_anyway=True,
            init=last,
            out=tmp_path / "other",
            core="tlb",
            **{**small, "steps": 2},
        ).run()
        == 0
    )


@pytest.mark.parametrize("outputs", [3, 5])
def test_a_new_core_leaves_all_other_weights(outputs: int, spec: PolicySpec) -> None:
    config = chosen_network(asked(core="lstm", core_options=("num_layers=1", "process_size=3")))
    policy = Policy(spec, replace(config, vision=replace(config.vision, weights="random")))
    policy.known_instructions = {"do 0": np.ones(384, np.float32)}
    options = ("hierarchy=1@1 1@2 1@1", f"process_size={outputs}")
    made = with_chosen_parts(policy, asked(core="hourglass", core_options=options))
    assert core_name(made.config.core) == "hourglass"
    assert made.core.num_outputs == outputs
    assert list(made.known_instructions) == ["do 0"]
    old, new = policy.state_dict(), made.state_dict()
    fresh = ("core.",) if outputs == 3 else ("core.", "action_head.")
    for name, value in old.items():
        if not name.startswith(fresh):
            torch.testing.assert_close(new[name], value, rtol=0, atol=0)
    assert with_chosen_parts(policy, asked()) is policy
    assert with_chosen_parts(policy, asked(core="lstm", core_options=("num_layers=1",))) is policy
    assert (
        with_chosen_parts(policy, asked(core_options=("num_layers=2",))).config.core != config.core
    )


@pytest.mark.parametrize("tokens", [0, 2])
def test_a_core_is_kept_beside_another_sight_memory(tokens: int, spec: PolicySpec) -> None:
    """And of its positions the rows of all tokens that it had."""
    config = chosen_network(asked(core="none", sight_tokens=tokens))
    policy = Policy(spec, config)
    made = with_chosen_parts(policy, asked(sight_tokens=3))
    assert made.sight is not None
    old, new = policy.state_dict(), made.state_dict()
    same = {name for name in old.keys() & new.keys() if old[name].shape == new[name].shape}
    for name in same:  # those of the memory too, which do not depend on the number of slots
        torch.testing.assert_close(new[name], old[name], rtol=0, atol=0)
    others = old.keys() - same
    assert others
    assert all(name.endswith("position") for name in others)
    for name in others:
        for source in ("head", "previous action", "instruction"):
            before, after = (
                one.state_dict()[name][:, -one.num_tokens :][:, one.token_sources[source]]
                for one in (policy, made)
            )
            torch.testing.assert_close(after, before, rtol=0, atol=0)


@pytest.mark.parametrize("tokens", [False, True])
def test_with_vision_kept_all_else_is_new(spec: PolicySpec, tokens: bool) -> None:
    torch.manual_seed(1)
    policy = Policy(spec, replace(PRESETS["tiny"], sight_tokens=2))
    policy.known_instructions = {"pick": np.zeros(PRESETS["tiny"].embedding_size, np.float32)}
    made = with_vision_kept(policy, tokens=tokens)
    before, after = policy.state_dict(), made.state_dict()
    assert before.keys() == after.keys()
    assert made.known_instructions.keys() == {"pick"}
    same = {name.split(".")[0] for name in before if torch.equal(before[name], after[name])}
    other = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    of_tokens = {"camera_tokens", "proprioception_tokens", "action_token", "language_token"}
    assert other == {"core", "action_head", "sight"} | (set() if tokens else of_tokens)
    assert {"vision", "language", "normalizer"} <= same


def test_auto_is_the_presets_core_and_asks_nothing_of_a_checkpoint() -> None:
    base = asked(preset="base")
    assert chosen_network(base) == PRESETS["base"] == chosen_network(replace(base, core="ttm"))
    require_same_core(chosen_network(asked(core="mixer")), asked(), "a checkpoint")


def test_unknown_options_are_told_before_training(command: Make) -> None:
    with pytest.raises(UserError, match="the core has no option 'window'; it has process_size"):
        command(core="lstm", core_options=("window=4",)).run()
