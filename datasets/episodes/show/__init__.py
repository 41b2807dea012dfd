"""`ttm data show`: a summary of a data set as tables and as contact sheets."""
