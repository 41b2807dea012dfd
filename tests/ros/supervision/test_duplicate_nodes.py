"""A node warns of another one that has its name."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from ttm_policy.programs import warn_of_duplicates


@pytest.mark.parametrize(
    ("others", "told"),
    [([], 0), ([("policy_node", "/left"), ("recorder_node", "/")], 0), ([("policy_node", "/")], 1)],
)
def test_a_node_warns_once_of_another_with_its_name(
    others: list[tuple[str, str]], told: int
) -> None:
    node = MagicMock()
    node.get_name.return_value, node.get_namespace.return_value = "policy_node", "/"
    node.get_fully_qualified_name.return_value = "/policy_node"
    node.get_node_names_and_namespaces.return_value = [("policy_node", "/"), *others]
    warn_of_duplicates(node)
    look = node.create_timer.call_args.args[1]
    look()
    said = [call.args[0] for call in node.get_logger().warning.call_args_list]
    assert len(said) == told
    assert all("is called /policy_node" in text for text in said)
    assert node.create_timer.return_value.cancel.called
