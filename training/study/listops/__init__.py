"""`ttm study listops`."""
