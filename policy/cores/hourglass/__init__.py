"""Hourglass (Nawrot et al. 2021)."""
