"""What runs a policy: checkpoints, engines, the runner, snapshots and a look into the memory."""
