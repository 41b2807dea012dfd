"""`ttm bench faults`: whether `policy_node` ever moves a robot blindly, however its sensors fail."""
