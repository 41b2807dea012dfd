"""The `ttm` command."""
