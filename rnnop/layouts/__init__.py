"""Weights from and to other systems, one file for each owner: its picture, `from_x` and `to_x`.

A file knows the owner's layout and never the owner's package: arrays and mappings are enough.
"""

from .onnx import ONNXWeights, from_onnx, to_onnx
from .pytorch import from_pytorch, to_pytorch

__all__ = ["ONNXWeights", "from_onnx", "from_pytorch", "to_onnx", "to_pytorch"]
