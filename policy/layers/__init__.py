"""Layers that several cores are made of."""
