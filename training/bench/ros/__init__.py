"""`ttm bench ros`: whether `policy_node` keeps its rate over ROS 2."""
