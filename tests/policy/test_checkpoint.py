"""Checkpoints, and files that are written atomically."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from ttm.policy import (
    Policy,
    PolicyInputs,
    PolicyRunner,
    PolicySpec,
    UserError,
    load_checkpoint,
    save_checkpoint,
)
from ttm.policy.files import partial_path, publish_partial, write_atomically, write_json
from ttm.policy.spec import Observation, read_checkpoint_spec


@pytest.fixture
def path(tmp_path: Path, policy: Policy) -> Path:
    made = tmp_path / "runs" / "policy.safetensors"
    save_checkpoint(made, policy, {"steps": 7})
    return made


def test_comes_back_whole(
    path: Path, policy: Policy, make_inputs: Callable[[int, int], PolicyInputs]
) -> None:
    loaded, info = load_checkpoint(path)
    inputs = make_inputs(2, 3)
    assert torch.equal(loaded(inputs)[0], policy.eval()(inputs)[0])
    assert (loaded.spec, loaded.config, info) == (policy.spec, policy.config, {"steps": 7})


def test_an_older_one_without_words_acts_as_it_did(
    path: Path, policy: Policy, make_inputs: Callable[[int, int], PolicyInputs]
) -> None:
    with safe_open(str(path), framework="pt") as file:
        metadata, weights = file.metadata(), {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
    del weights["policy.words.weight"]
    save_file(weights, path, metadata)
    torch.nn.init.zeros_(policy.words.weight)
    inputs = make_inputs(2, 3)
    assert torch.equal(load_checkpoint(path)[0](inputs)[0], policy.eval()(inputs)[0])


def test_its_spec_is_read_without_its_weights(path: Path, policy: Policy) -> None:
    assert read_checkpoint_spec(path) == policy.spec
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 1])
    with pytest.raises(UserError, match="not a whole safetensors file"):
        read_checkpoint_spec(path)


def test_normalisation_travels_along(tmp_path: Path, policy: Policy) -> None:
    policy.normalizer.actions.set(np.arange(4), np.arange(1, 5))
    save_checkpoint(tmp_path / "p.safetensors", policy, {})
    loaded, _ = load_checkpoint(tmp_path / "p.safetensors")
    assert loaded.normalizer.actions.std.tolist() == [1, 2, 3, 4]


def test_known_instructions_need_no_language_model(
    tmp_path: Path, policy: Policy, embedding: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy.known_instructions["pick up the red mug"] = embedding
    save_checkpoint(tmp_path / "p.safetensors", policy, {})
    monkeypatch.setattr("ttm.policy.language._sentence_model", pytest.fail)
    runner = PolicyRunner.from_checkpoint(tmp_path / "p.safetensors", engine="torch")
    runner.reset("pick up the red mug")
    assert np.array_equal(runner.snapshot()["language"], embedding)


def test_loading_never_fetches_weights(tmp_path: Path, policy: Policy) -> None:
    vision = replace(policy.config.vision, weights="imagenet")
    policy.config = replace(policy.config, vision=vision)
    save_checkpoint(tmp_path / "p.safetensors", policy, {})
    loaded, _ = load_checkpoint(tmp_path / "p.safetensors")
    assert loaded.config.vision.weights == "imagenet"


def test_writing_leaves_nothing_beside_the_file(path: Path, policy: Policy) -> None:
    save_checkpoint(path, policy, {"steps": 8})
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert load_checkpoint(path)[1] == {"steps": 8}


def test_the_policy_that_ships_has_a_name() -> None:
    runner = PolicyRunner.from_checkpoint("shipped", engine="torch")
    assert runner.spec.robot == "fetch_kitchen"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such checkpoint"):
        load_checkpoint(tmp_path / "absent.safetensors")


@pytest.mark.parametrize("kept", [0, 5, 1000, -1])
def test_a_truncated_file_is_named(path: Path, kept: int) -> None:
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match="not a whole safetensors file"):
        load_checkpoint(path)


def test_another_safetensors_file_is_refused(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="not a policy"):
        load_checkpoint(tmp_path / "other.safetensors")


def test_another_version_is_refused(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "new.safetensors", {"ttm_format": "99"})
    with pytest.raises(UserError, match="format 99"):
        load_checkpoint(tmp_path / "new.safetensors")


def test_damaged_metadata_is_refused(tmp_path: Path, policy: Policy) -> None:
    metadata = {
        "ttm_format": "1",
        "spec": policy.spec.to_json(),
        "config": "{}",
        "instructions": "[]",
        "info": "{}",
    }
    save_file({"policy.x": torch.zeros(1)}, tmp_path / "odd.safetensors", metadata)
    with pytest.raises(UserError, match="another version"):
        load_checkpoint(tmp_path / "odd.safetensors")


@pytest.mark.parametrize("device", ["cuda:99", "meta", "gpu"])
def test_a_device_that_is_not_here_is_one_line(path: Path, device: str) -> None:
    with pytest.raises(UserError, match=rf"^device is '{device}', .*; give cpu") as caught:
        load_checkpoint(path, device)
    assert "\n" not in str(caught.value)


def test_another_robot_is_refused(path: Path, spec: PolicySpec) -> None:
    with pytest.raises(UserError, match="robot test arm, but this robot has fetch"):
        PolicyRunner.from_checkpoint(path, spec=replace(spec, robot="fetch"))


def test_runs_from_the_file(
    path: Path, policy: Policy, observe: Callable[[int], Observation], embedding: np.ndarray
) -> None:
    actions = []
    loaded = PolicyRunner.from_checkpoint(path, spec=policy.spec, engine="torch")
    for runner in (PolicyRunner(policy, engine="torch"), loaded):
        runner.reset("open the drawer", embedding=embedding)
        actions.append([runner.step(observe(i)).values for i in range(3)])
    assert np.array_equal(actions[0], actions[1])


def test_a_file_is_written_with_its_folders_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    write_atomically(path, "old")
    write_atomically(path, "né".encode())
    assert path.read_text(encoding="utf-8") == "né"
    assert list(path.parent.iterdir()) == [path]


def test_json_is_read_back(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"rates": [1, 0.5]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"rates": [1, 0.5]}


def test_a_write_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    partial_path(path).mkdir()
    with pytest.raises(OSError, match=r"\.a\.txt\.partial"):
        write_atomically(path, "new")
    assert path.read_text() == "old"


def test_a_partial_file_gets_its_name_when_it_is_published(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    assert partial_path(path) == tmp_path / ".a.hdf5.partial"
    partial_path(path).write_bytes(b"complete")
    publish_partial(path)
    assert path.read_bytes() == b"complete"
    assert not partial_path(path).exists()
