"""Training of policies, benchmarks, studies of memories, and the `ttm` command."""
