"""The enumerations of cuDNN that an RNN needs, with the names and numbers of its headers.

`RNNAlgo` is `cudnnRNNAlgo_t`, and so on. They are the same in every version served.
"""

from __future__ import annotations

from enum import IntEnum


class RNNAlgo(IntEnum):
    """How the recurrence is computed."""

    CUDNN_RNN_ALGO_STANDARD = 0
    CUDNN_RNN_ALGO_PERSIST_STATIC = 1
    CUDNN_RNN_ALGO_PERSIST_DYNAMIC = 2
    CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H = 3


class ForwardMode(IntEnum):
    """Whether a forward keeps what a backward needs."""

    CUDNN_FWD_MODE_INFERENCE = 0
    CUDNN_FWD_MODE_TRAINING = 1


class RNNMode(IntEnum):
    """The cell."""

    CUDNN_RNN_RELU = 0
    CUDNN_RNN_TANH = 1
    CUDNN_LSTM = 2
    CUDNN_GRU = 3


class RNNBiasMode(IntEnum):
    """Which biases there are."""

    CUDNN_RNN_NO_BIAS = 0
    CUDNN_RNN_SINGLE_INP_BIAS = 1
    CUDNN_RNN_DOUBLE_BIAS = 2
    CUDNN_RNN_SINGLE_REC_BIAS = 3


class DirectionMode(IntEnum):
    """One direction or two."""

    CUDNN_UNIDIRECTIONAL = 0
    CUDNN_BIDIRECTIONAL = 1


class RNNInputMode(IntEnum):
    """Whether the first layer has input weights."""

    CUDNN_LINEAR_INPUT = 0
    CUDNN_SKIP_INPUT = 1


class RNNClipMode(IntEnum):
    """Whether the cell state is clipped."""

    CUDNN_RNN_CLIP_NONE = 0
    CUDNN_RNN_CLIP_MINMAX = 1


class NanPropagation(IntEnum):
    """What clipping makes of NaN: the lower bound, or NaN."""

    CUDNN_NOT_PROPAGATE_NAN = 0
    CUDNN_PROPAGATE_NAN = 1


class RNNDataLayout(IntEnum):
    """The order of axes of a batch of sequences."""

    CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED = 0
    CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED = 1
    CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED = 2


class WgradMode(IntEnum):
    """Whether gradients of weights are added to what is there. No version has SET for RNNs."""

    CUDNN_WGRAD_MODE_ADD = 0
    CUDNN_WGRAD_MODE_SET = 1


class MathType(IntEnum):
    """Which units multiply. FMA is the only one that is strict for float32."""

    CUDNN_DEFAULT_MATH = 0
    CUDNN_TENSOR_OP_MATH = 1
    CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION = 2
    CUDNN_FMA_MATH = 3


class DataType(IntEnum):
    """The dtypes of an RNN; cuDNN has more."""

    CUDNN_DATA_FLOAT = 0
    CUDNN_DATA_DOUBLE = 1
    CUDNN_DATA_HALF = 2
    CUDNN_DATA_BFLOAT16 = 9


class Severity(IntEnum):
    """How bad a message of the log is; its bit of a mask is ``1 << severity``."""

    CUDNN_SEV_FATAL = 0
    CUDNN_SEV_ERROR = 1
    CUDNN_SEV_WARNING = 2
    CUDNN_SEV_INFO = 3


CUDNN_DIM_MAX = 8

# The auxiliary flags of an RNN descriptor: whether sequences of a padded layout may differ in
# length.
CUDNN_RNN_PADDED_IO_DISABLED = 0
CUDNN_RNN_PADDED_IO_ENABLED = 1

DATA_TYPES = {
    "float32": DataType.CUDNN_DATA_FLOAT,
    "float64": DataType.CUDNN_DATA_DOUBLE,
    "float16": DataType.CUDNN_DATA_HALF,
    "bfloat16": DataType.CUDNN_DATA_BFLOAT16,
}
