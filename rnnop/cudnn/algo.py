"""The choices cuDNN leaves to its caller: the algorithm, the kind of arithmetic, the layout.

STANDARD runs everything, and is what `auto` takes. The persistent algorithms keep the recurrent
weights in registers or shared memory; they are bound to equal lengths, no projection and some
sizes, and which of them is fastest depends on the GPU: RNNOP_CUDNN_ALGO=benchmark times them.
"""

from __future__ import annotations

from .. import flags
from ..backends import Frame
from .enums import MathType, RNNAlgo

ALGORITHMS = {
    "standard": RNNAlgo.CUDNN_RNN_ALGO_STANDARD,
    "persist_static": RNNAlgo.CUDNN_RNN_ALGO_PERSIST_STATIC,
    "persist_dynamic": RNNAlgo.CUDNN_RNN_ALGO_PERSIST_DYNAMIC,
    "persist_static_small_h": RNNAlgo.CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H,
}
# The least compute capability that they, and the kinds of arithmetic but FMA, need.
CAPABILITIES = {name: (6, 0) for name in ALGORITHMS if name != "standard"}
_TENSOR_CORES, _TF32, _EVERYTHING = (7, 0), (8, 0), (99, 0)
_SMALL_H = {"rnn_relu": 384, "rnn_tanh": 384, "gru": 192, "lstm": 192}


def wanted() -> str:
    """Return what RNNOP_CUDNN_ALGO asks for, `auto` being 'standard'."""
    name = flags.read("RNNOP_CUDNN_ALGO")
    return "standard" if name == "auto" else name


def refusal(name: str, frame: Frame) -> str | None:
    """Return None, or why an algorithm cannot run a call on any GPU."""
    spec = frame.spec
    if name in ("standard", "benchmark"):
        return None
    if spec.proj_size is not None:
        return f"algorithm {name} has no projection"
    if not equal_lengths(frame):
        return f"algorithm {name} needs rows of equal lengths"
    if frame.dtype == "float64" and name != "persist_dynamic":
        return f"algorithm {name} has no float64"
    if name == "persist_static_small_h" and spec.hidden_size > _SMALL_H[spec.mode]:
        most = _SMALL_H[spec.mode]
        return f"algorithm {name} has hidden_size at most {most} in mode '{spec.mode}'"
    return None


def candidates(frame: Frame) -> list[str]:
    """Return the algorithms to time for RNNOP_CUDNN_ALGO=benchmark, else the one that is wanted."""
    name = wanted()
    if name != "benchmark":
        return [name]
    return [each for each in ALGORITHMS if refusal(each, frame) is None]


def equal_lengths(frame: Frame) -> bool:
    """Return whether all segments have as many steps."""
    lengths = frame.plan.lengths
    return len(lengths) == 0 or lengths[0] == lengths[-1]


def padded(frame: Frame) -> bool:
    """Return whether a ragged batch goes in padded rather than packed."""
    return flags.read("RNNOP_CUDNN_LAYOUT") == "padded" and not equal_lengths(frame)


def math_type(dtype: str, capability: tuple[int, int] = _EVERYTHING) -> MathType:
    """Return the arithmetic that the flags allow for a dtype, on a device that has it.

    FMA is strict: float32 products in float32. TENSOR_OP is tensor cores for data that is a half
    already; ALLOW_CONVERSION lets cuDNN round wider data down to use them; DEFAULT allows TF32.
    """
    tensor_core = flags.enabled("RNNOP_ALLOW_TENSOR_CORE") and capability >= _TENSOR_CORES
    if dtype in ("float16", "bfloat16"):
        return MathType.CUDNN_TENSOR_OP_MATH if tensor_core else MathType.CUDNN_FMA_MATH
    if tensor_core and flags.enabled("RNNOP_TENSOR_OP_ALLOW_CONVERSION"):
        return MathType.CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION
    tf32 = flags.enabled("RNNOP_ALLOW_TF32") and capability >= _TF32
    if dtype == "float32" and tf32:
        return MathType.CUDNN_DEFAULT_MATH
    return MathType.CUDNN_FMA_MATH
