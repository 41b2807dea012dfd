"""What `policy_node` runs: the control loop, its inputs and commands, and access to the memory."""
