"""The simulated Fetch robot in a MuJoCo kitchen."""
