"""`ttm study suite`."""
