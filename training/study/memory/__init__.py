"""`ttm study memory`."""
