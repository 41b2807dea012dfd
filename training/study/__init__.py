"""Experiments that compare the temporal cores; see `ttm study --help`."""
