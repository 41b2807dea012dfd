"""`ttm bench sim`: the time that a tick of the simulated kitchen takes, by part."""
