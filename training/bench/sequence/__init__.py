"""`ttm bench sequence`."""
