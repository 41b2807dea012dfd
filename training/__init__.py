"""Behaviour cloning: losses, the training loop, and the `ttm` command."""
