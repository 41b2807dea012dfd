"""Frozen vision: its features are computed once and stand in for the camera frames."""
