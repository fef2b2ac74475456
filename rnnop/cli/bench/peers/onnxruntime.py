"""ONNX Runtime's CPU provider: the operators LSTM and GRU, which have no gradient.

The weights are constants of the model, which it lays out when a session is made. Lengths go in
through `sequence_lens`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....layouts import to_onnx
from ..cases import Case, Inputs
from . import Contender

# Opset 14 has these operators as they are today; every ONNX Runtime since reads IR version 8.
_OPSET, _IR_VERSION = 14, 8


def contenders(inputs: Inputs, threads: int) -> list[Contender]:
    """Return inference by a session of `threads` threads; nothing for training."""
    case = inputs.case
    if case.work == "training":
        return []
    session = _session(inputs, threads)
    if case.work == "stream":
        return [Contender("ONNX Runtime", _stream(inputs, session), lambda h: {"h": h})]
    feeds: dict[str, Any] = {"X": inputs.x}
    if inputs.lengths is not None:
        feeds["sequence_lens"] = inputs.lengths.astype(np.int32)
    names = _outputs(case)

    def outputs(result: list[Any]) -> dict[str, Any]:
        y = result[0].transpose(0, 2, 1, 3)  # from (T, D, N, H)
        return {"y": y.reshape(case.num_steps, case.batch_size, -1)}

    return [Contender("ONNX Runtime", lambda: session.run(names, feeds), outputs)]


def _stream(inputs: Inputs, session: Any) -> Callable[[], Any]:
    """Return a loop over the session, whose result is the last state (1, 1, H)."""
    steps = [x[None] for x in inputs.x]

    def call() -> Any:
        h = np.zeros((1, 1, inputs.case.hidden_size), np.float32)
        for x in steps:
            (h,) = session.run(["Y_h"], {"X": x, "initial_h": h})
        return h

    return call


def _outputs(case: Case) -> list[str]:
    """Return the names of what rnnop returns too."""
    return ["Y", "Y_h", "Y_c"] if case.mode == "lstm" else ["Y", "Y_h"]


def _session(inputs: Inputs, threads: int) -> Any:
    """Make a model of one node, and a session that runs it."""
    import onnx
    import onnxruntime

    case = inputs.case
    floats = onnx.TensorProto.FLOAT
    describe = onnx.helper.make_tensor_value_info
    given = [describe("X", floats, [None, None, case.input_size])]
    if inputs.lengths is not None:
        given.append(describe("sequence_lens", onnx.TensorProto.INT32, [None]))
    if case.work == "stream":
        given.append(describe("initial_h", floats, [1, None, case.hidden_size]))
    present = {entry.name for entry in given}
    attributes: dict[str, Any] = {"hidden_size": case.hidden_size}
    if case.mode == "gru":
        attributes["linear_before_reset"] = 1
    if case.bidirectional:
        attributes["direction"] = "bidirectional"
    states = [name if name in present else "" for name in ("sequence_lens", "initial_h")]
    node = onnx.helper.make_node(
        case.mode.upper(), ["X", "W", "R", "B", *states], _outputs(case), **attributes
    )
    weights = to_onnx(inputs.weights, mode=case.mode)
    graph = onnx.helper.make_graph(
        [node],
        "one_layer",
        given,
        [describe(name, floats, None) for name in _outputs(case)],
        initializer=[
            onnx.numpy_helper.from_array(array, name)
            for name, array in zip("WRB", weights[:3], strict=True)
        ],
    )
    opset = onnx.helper.make_opsetid("", _OPSET)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
