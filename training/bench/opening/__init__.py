"""`ttm bench opening`: how long a large data set takes to open, and what memory training on it takes."""
