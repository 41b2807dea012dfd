"""LeRobot's data sets, versions 2.1 and 3.0 (Cadene et al. 2024, https://github.com/huggingface/lerobot)."""
