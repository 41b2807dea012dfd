"""`ttm study babyai`."""
