"""`ttm collect`: scripted demonstrations."""
