"""The simulated mobile manipulator: kitchen, tasks, experts, evaluation (MuJoCo)."""
