"""Weights from and to other systems, one file for each owner: its picture, `from_x` and `to_x`.

A file knows the owner's layout and never the owner's package: arrays and mappings are enough.
"""

from .cudnn import from_cudnn, to_cudnn
from .flax import from_flax, to_flax
from .jax import from_jax, to_jax
from .keras import from_keras, to_keras
from .layers import split_layers, stack_layers
from .mxnet import from_mxnet, to_mxnet
from .onnx import ONNXWeights, from_onnx, to_onnx
from .pytorch import from_pytorch, to_pytorch
from .tvm import TVMWeights, from_tvm, to_tvm

__all__ = [
    "ONNXWeights",
    "TVMWeights",
    "from_cudnn",
    "from_flax",
    "from_jax",
    "from_keras",
    "from_mxnet",
    "from_onnx",
    "from_pytorch",
    "from_tvm",
    "split_layers",
    "stack_layers",
    "to_cudnn",
    "to_flax",
    "to_jax",
    "to_keras",
    "to_mxnet",
    "to_onnx",
    "to_pytorch",
    "to_tvm",
]
