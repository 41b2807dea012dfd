"""What `ttm bench` measures: the cost of a tick, in operations and in time, and what memory does over long episodes."""
