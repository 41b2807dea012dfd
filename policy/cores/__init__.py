"""Temporal cores: what carries the past from tick to tick."""
