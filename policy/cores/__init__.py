"""Temporal cores: the part of the policy that carries information from tick to tick."""
