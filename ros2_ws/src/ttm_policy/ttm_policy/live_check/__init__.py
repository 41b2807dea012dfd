"""Compares a contract with the topics of a running robot: `ttm contract check`."""
