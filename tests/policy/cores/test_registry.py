"""Cores by name: conversion to plain data and back, sizes of another core, options."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

import pytest

from ttm.policy import PRESETS, PolicyConfig, UserError
from ttm.policy.cores.baselines import LstmConfig
from ttm.policy.cores.registry import (
    CORES,
    NAMES,
    config_class,
    core_from_dict,
    core_name,
    core_to_dict,
    sized_like,
    with_options,
)
from ttm.policy.cores.ttm import TokenTuringConfig

BASE = PRESETS["base"].core


@pytest.mark.parametrize("name", NAMES)
def test_a_core_has_the_sizes_of_the_preset_and_its_own_defaults_besides(name: str) -> None:
    core = sized_like(name, BASE)
    assert core_name(core) == name
    own = type(core)()
    for field in fields(core):
        expected = getattr(BASE, field.name, getattr(own, field.name))
        if (name, field.name) != ("none", "memory"):
            assert getattr(core, field.name) == expected, field.name
    assert core.build(64, 5).num_outputs == 16


def test_the_names_mean_what_they_say() -> None:
    assert sized_like("ttm", BASE) == BASE
    assert asdict(sized_like("none", BASE)) == {**asdict(BASE), "memory": False}
    assert sized_like("ttm", sized_like("none", BASE)) == BASE
    assert sized_like("lstm", sized_like("none", BASE)) == sized_like("lstm", BASE)
    assert sized_like("ttm", LstmConfig(num_layers=5)) == TokenTuringConfig(num_layers=5)


@pytest.mark.parametrize("name", NAMES)
def test_configurations_survive_as_plain_data(name: str) -> None:
    config = PolicyConfig(core=sized_like(name, BASE))
    data = json.loads(json.dumps(config.to_dict()))
    assert data["core"]["kind"] == ("ttm" if name == "none" else name)
    assert PolicyConfig.from_dict(data) == config


def test_data_without_a_kind_is_a_token_turing_machine() -> None:
    data = core_to_dict(BASE)
    del data["kind"]
    assert core_from_dict(data) == BASE


@pytest.mark.parametrize("data", [{"kind": "sundial"}, {"kind": "lstm", "heads": 3}])
def test_data_of_another_version_is_refused(data: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError)):
        core_from_dict(data)


def test_an_unknown_core_is_answered_with_those_there_are() -> None:
    with pytest.raises(UserError) as raised:
        sized_like("gru", BASE)
    assert "there is no core 'gru'" in str(raised.value)
    assert all(name in str(raised.value) for name in NAMES)


def test_options_of_every_type() -> None:
    made = with_options(
        TokenTuringConfig(), ["memory_size=7", "positional_embedding=False", "processor=mixer"]
    )
    assert made == TokenTuringConfig(memory_size=7, positional_embedding=False, processor="mixer")
    assert with_options(made, ["positional_embedding=true", "memory_size=8", "memory_size=9"]) == (
        TokenTuringConfig(memory_size=9, processor="mixer")
    )
    assert with_options(made, []) == made


MISTAKES = {
    "size=3": "the core has no option 'size'; it has memory_size, process_size",
    "memory_size": "core option memory_size is ''; give a number, such as memory_size=16",
    "memory_size=many": "core option memory_size is 'many'; give a number, such as memory_size=16",
    "memory_size=0": "memory_size is 0; give 1 or more",
    "memory=maybe": "core option memory is 'maybe'; give true or false",
    "processor=lstm": "processor is 'lstm'; give one of transformer, mixer, mlp",
}


@pytest.mark.parametrize("option", MISTAKES)
def test_mistakes_in_options_are_told(option: str) -> None:
    with pytest.raises(UserError) as raised:
        with_options(TokenTuringConfig(), [option])
    assert MISTAKES[option] in str(raised.value)


@pytest.mark.parametrize("kind", CORES)
def test_sizes_must_be_large_enough(kind: str) -> None:
    with pytest.raises(UserError, match="process_size is 0; give 1 or more"):
        with_options(config_class(kind)(), ["process_size=0"])
    if hasattr(config_class(kind)(), "window"):
        with pytest.raises(UserError, match="window is 1; give 2 or more"):
            with_options(config_class(kind)(), ["window=1"])
