"""`ttm bench sequence`: the cost of long sequences, and how well models predict a text."""
