"""Layers that training computes at once, with gradients written by hand."""
