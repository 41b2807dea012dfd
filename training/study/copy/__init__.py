"""`ttm study copy`."""
