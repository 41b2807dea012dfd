"""Probes of `ttm evaluate --probe`: what is done to a memory from outside, to see if it is used."""
