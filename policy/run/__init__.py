"""Running a policy: runner, engines, checkpoints, snapshots."""
