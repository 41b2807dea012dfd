from __future__ import annotations

import numpy as np
import pytest

from ttm.policy import ActionPart, PolicySpec
from ttm.training.validation import ErrorSum


def test_errors_by_hand(spec: PolicySpec) -> None:
    total = ErrorSum(spec, np.array([0.5, 2.0, 0.25]))
    total.add(np.array([[1.0, 0.0, 0.75]]), np.array([[0.0, 0.0, 1.0]]))
    total.add(np.array([[0.0, 4.0, 0.25]]), np.array([[0.0, 0.0, 1.0]]))
    found = total.result()
    # squared errors in deviations: arm 4, 0; 0, 4; gripper 1; 9
    assert found.normalized == pytest.approx(np.sqrt((4 + 0 + 1 + 0 + 4 + 9) / 6))
    assert found.parts["arm"] == pytest.approx((1 + 0 + 0 + 4) / 4)
    assert found.parts["gripper"] == 0.5  # the second tick is on the wrong side
    assert found.ticks == 2


def test_a_dimension_that_never_moved_does_not_count(spec: PolicySpec) -> None:
    total = ErrorSum(spec, np.array([1.0, 0.0, 1.0]))
    total.add(np.array([[0.0, 1e-3, 0.0]]), np.zeros((1, 3)))
    assert total.result().normalized == 0


def test_a_binary_part_is_wrong_on_the_other_side_of_the_middle_of_its_commands() -> None:
    """Such as a gripper whose commands are widths in metres."""
    gripper = ActionPart("gripper", 1, "m", "binary", 0.0, 0.04)
    total = ErrorSum(PolicySpec("wide", (), (), (gripper,), 5.0), np.array([1.0]))
    total.add(np.array([[0.03], [0.01], [0.03], [0.03]]), np.array([[0.04], [0.0], [0.0], [0.04]]))
    assert total.result().parts == {"gripper": 0.25}
