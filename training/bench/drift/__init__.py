"""`ttm bench drift`."""
