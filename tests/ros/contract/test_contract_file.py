"""The shipped contract fits the simulated robot, and every mistake in one is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ttm.policy import UserError
from ttm.sim.kitchen.spec import SPEC
from ttm_policy.contract import default_contract, load_contract
from ttm_policy.messages import check_fields


@pytest.fixture
def data() -> dict[str, Any]:
    """The shipped contract as plain data, for tests to change."""
    return yaml.safe_load(default_contract().read_text())


def _load_and_check(path: Path | None) -> None:
    contract = load_contract(path)
    check_fields(contract)
    contract.check(SPEC)


def _error(data: dict[str, Any], folder: Path) -> str:
    path = folder / "robot.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(UserError) as raised:
        _load_and_check(path)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_the_shipped_contract_fits_the_simulated_robot() -> None:
    _load_and_check(None)


def test_an_unknown_camera_is_named_with_those_there_are(
    data: dict[str, Any], tmp_path: Path
) -> None:
    data["observations"]["hed"] = data["observations"].pop("head")
    assert "camera 'hed' of robot.yaml is not in this checkpoint; it has: head, wrist" in _error(
        data, tmp_path
    )


def test_an_observation_without_a_topic_is_named(data: dict[str, Any], tmp_path: Path) -> None:
    del data["observations"]["wrist"]
    assert "camera 'wrist' of this checkpoint has no topic in robot.yaml" in _error(data, tmp_path)


def test_a_policy_may_see_less_than_the_contract_names(
    data: dict[str, Any], tmp_path: Path
) -> None:
    narrow, contract = (
        replace(SPEC, cameras=SPEC.cameras[:1], proprioception=()),
        load_contract(None),
    )
    seen = contract.for_policy(narrow)
    assert [source.name for source in seen.images] == ["head"]
    assert seen.vectors == contract.vectors  # limits may need them
    assert contract.for_policy(SPEC) == contract
    with pytest.raises(
        UserError, match=r"camera 'wrist' of .* is not in this checkpoint; it has: head"
    ):
        contract.check(narrow)
    del data["observations"]["head"]
    (tmp_path / "robot.yaml").write_text(yaml.safe_dump(data))
    with pytest.raises(
        UserError, match=r"camera 'head' of this checkpoint has no topic in robot\.yaml"
    ):
        load_contract(tmp_path / "robot.yaml").for_policy(narrow)


def test_another_robot_is_named(data: dict[str, Any], tmp_path: Path) -> None:
    data["robot"] = "stretch"
    assert "describes robot 'stretch', but this checkpoint is for 'fetch_kitchen'" in _error(
        data, tmp_path
    )


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("executed_action", "executed_action has type None; choose of"),
        ({"topic": "did", "type": "std_msgs/Bool", "fields": ["data"]}, "type 'std_msgs/Bool'"),
        ({"topic": "did", "type": "sensor_msgs/JointState"}, "executed_action lacks fields"),
        (
            {"topic": "did", "type": "sensor_msgs/JointState", "fields": ["x", "y"]},
            "'executed action' of robot.yaml has 2 fields; its values are 10",
        ),
        (
            {
                "topic": "did",
                "type": "nav_msgs/Odometry",
                "fields": [f"twist.v{i}" for i in range(10)],
            },
            "'twist.v0', which is no number",
        ),
    ],
)
def test_mistakes_in_the_executed_action_are_named(
    data: dict[str, Any], tmp_path: Path, entry: Any, words: str
) -> None:
    data["executed_action"] = entry
    assert words in _error(data, tmp_path)


def test_a_robot_need_not_report_what_it_executed(data: dict[str, Any], tmp_path: Path) -> None:
    del data["executed_action"]
    path = tmp_path / "robot.yaml"
    path.write_text(yaml.safe_dump(data))
    _load_and_check(path)
    contract = load_contract(path)
    assert contract.executed is None
    assert len(contract.inputs) == len(data["observations"])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no contract at"):
        load_contract(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    "text",
    ["a: [1, 2", "? [a, b]\n: 1", "robot: 2026-13-45", "robot: !!int seven", "a: " + "[" * 3000],
)
def test_broken_files_are_named(text: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(text)
    with pytest.raises(UserError, match=r"broken\.yaml is not YAML") as raised:
        load_contract(broken)
    assert "\n" not in str(raised.value)


def test_entries_may_share_keys_by_a_merge_of_yaml(tmp_path: Path) -> None:
    path = tmp_path / "robot.yaml"
    text = default_contract().read_text().replace("  head:\n", "  head: &camera\n", 1)
    wrist = "    topic: wrist/image_raw\n    type: sensor_msgs/Image\n    resize: true\n"
    assert text.count(wrist) == 1
    path.write_text(text.replace(wrist, "    <<: *camera\n    topic: wrist/image_raw\n"))
    assert load_contract(path).images == load_contract().images
