"""What `ttm bench` measures: the cost of a tick and of long sequences, and what memory does over long episodes."""
