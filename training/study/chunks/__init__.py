"""`ttm study chunks`."""
