"""The benchmarks: what a tick, a training step and a simulated tick cost."""
