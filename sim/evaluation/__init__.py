"""`ttm evaluate`: success rates with intervals, videos and a report."""
