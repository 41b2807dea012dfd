"""`ttm show memory`: pictures of what a memory attends to."""
