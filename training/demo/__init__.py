"""`ttm demo`."""
