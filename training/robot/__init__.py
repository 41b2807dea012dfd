"""`ttm robot`."""
