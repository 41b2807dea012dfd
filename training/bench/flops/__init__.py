"""`ttm bench flops`."""
