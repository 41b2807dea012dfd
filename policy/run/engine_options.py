"""The values of the options `engine` and `precision`. Nothing here imports PyTorch."""

from __future__ import annotations

from typing import Literal

EngineName = Literal["auto", "torch", "openvino"]
"""auto: OpenVINO on a CPU, PyTorch on a GPU."""

Precision = Literal["float32", "bfloat16"]
"""bfloat16: 8 bits of mantissa in matrix products and convolutions, and half the bytes of weights."""
