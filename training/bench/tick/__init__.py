"""`ttm bench tick`."""
