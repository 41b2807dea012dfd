"""`ttm data show`: what a data set holds."""
