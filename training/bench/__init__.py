"""The benchmarks: what a tick costs in time and in operations, and whether a memory drifts."""
