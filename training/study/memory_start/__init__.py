"""`ttm study memory-start`: which memory a training window should start from."""
