"""`ttm bench flops`: the operations of one step of every temporal core."""
