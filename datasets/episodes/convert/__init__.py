"""`ttm data convert`: episodes of other projects' formats to ours, and ours to theirs."""
