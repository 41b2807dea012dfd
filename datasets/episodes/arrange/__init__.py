"""`ttm data merge`, `split` and `filter`: the same episodes in other files."""
