"""The options of `ttm train` in groups, and the file that holds them."""
