"""Descriptors and handles: what they tell cuDNN, what it refuses, and when they are destroyed.

What needs neither cuDNN nor a GPU runs on a library that only counts. What cuDNN itself answers is
asked of the installed one, which needs no GPU for it.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import re
import subprocess
import sys
import threading
from ctypes import byref, c_double, c_float, c_int, c_size_t, c_uint32
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cudnn_headers import ENUMS, NOT_INSTALLED, installed

from rnnop.cudnn import descriptors, enums
from rnnop.cudnn import library as libraries
from rnnop.cudnn.descriptors import (
    DropoutDescriptor,
    Handle,
    RNNDataDescriptor,
    RNNDataSettings,
    RNNDescriptor,
    RNNSettings,
    TensorDescriptor,
)
from rnnop.cudnn.library import Library
from rnnop.cudnn.prototypes import V9, prototypes
from rnnop.cudnn.status import Category, CudnnError

BAD, UNSUPPORTED = Category.BAD_PARAM, Category.NOT_SUPPORTED

# A library that makes anything, and notes what is destroyed


class Counting(SimpleNamespace):
    """Numbers what it makes from 1, and keeps what it is called with."""

    version, version_text = 92800, "9.28.0"

    def __init__(self) -> None:
        super().__init__(raw=self, made=0, calls=[])

    def __hash__(self) -> int:
        return id(self)

    def __getattr__(self, name: str) -> Any:
        def function(*arguments: Any) -> int:
            if name.startswith("cudnnCreate"):
                self.made += 1
                arguments[0]._obj.value = self.made
            else:
                self.calls.append((name.removeprefix("cudnn"), *arguments))
            return 0

        return function


@pytest.fixture
def counting() -> Counting:
    return Counting()


def test_what_is_made_is_destroyed_once(counting: Counting) -> None:
    kinds = (Handle, TensorDescriptor, DropoutDescriptor, RNNDescriptor, RNNDataDescriptor)
    for number, kind in enumerate(kinds, 1):
        owner = kind(counting)
        assert owner.pointer == number
        del owner
        gc.collect()
        name = {Handle: ""}.get(kind, kind.__name__)
        assert counting.calls == [(f"Destroy{name}", number)]
        counting.calls.clear()


def test_what_is_pointed_to_outlives_what_points_to_it(counting: Counting) -> None:
    class States:
        def __del__(self) -> None:
            counting.calls.append(("states freed",))

    handle = Handle(counting)
    dropout = DropoutDescriptor(counting)
    dropout.set(handle, 0.5, States(), 64, 128, 7)
    rnn = RNNDescriptor(counting)
    rnn.set(SETTINGS, dropout)
    del dropout
    gc.collect()
    assert [call[0] for call in counting.calls] == ["SetDropoutDescriptor", "SetRNNDescriptor_v8"]
    del rnn
    gc.collect()
    assert [call[0] for call in counting.calls[2:]] == [
        "DestroyRNNDescriptor",
        "DestroyDropoutDescriptor",
        "states freed",
    ]


def test_what_was_pointed_to_is_let_go(counting: Counting) -> None:
    rnn = RNNDescriptor(counting)
    rnn.set(SETTINGS, DropoutDescriptor(counting))
    rnn.set(SETTINGS)
    assert ("DestroyDropoutDescriptor", 2) in counting.calls


def test_dropout_is_set_and_restored(counting: Counting) -> None:
    handle, dropout = Handle(counting), DropoutDescriptor(counting)
    states = object()
    for method in ("set", "restore"):
        getattr(dropout, method)(handle, 0.25, states, 64, 128, 7)
        name = f"{method.capitalize()}DropoutDescriptor"
        assert counting.calls.pop() == (name, 2, 1, 0.25, 64, 128, 7)
        assert dropout.states is states
    assert dropout.get(handle) == (0.0, None, 0)  # the library answers nothing
    assert counting.calls.pop()[:3] == ("GetDropoutDescriptor", 2, 1)


def test_a_handle_runs_on_a_stream(counting: Counting) -> None:
    Handle(counting).set_stream(1234)
    assert counting.calls[0] == ("SetStream", 1, 1234)


def test_a_handle_for_every_thread_device_and_library(counting: Counting) -> None:
    mine = descriptors.handle(counting, 0)
    assert descriptors.handle(counting, 0) is mine
    others = [descriptors.handle(counting, 1), descriptors.handle(Counting(), 0)]
    thread = threading.Thread(target=lambda: others.append(descriptors.handle(counting, 0)))
    thread.start()
    thread.join()
    assert len({id(each) for each in (mine, *others)}) == 4


# Each prints what is destroyed, from here on.
ALONE = """
import os
from rnnop.cudnn import descriptors
from test_cudnn_descriptors import Counting

library = Counting()
handle, dropout = descriptors.handle(library, 0), descriptors.DropoutDescriptor(library)
class Said(list):
    def append(self, call):
        print(call[0], flush=True)
library.calls = Said()
"""


def alone(code: str) -> str:
    """Run code in a process of its own, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if "COV" not in name}
    environment["OPENBLAS_NUM_THREADS"] = "1"  # Python warns of a fork among threads
    done = subprocess.run(
        [sys.executable, "-c", ALONE + code],
        cwd=Path(__file__).parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_nothing_is_destroyed_at_exit() -> None:
    """The driver may be gone by then."""
    assert alone("print('end')") == "end\n"


def test_nothing_is_destroyed_by_the_child_of_a_fork() -> None:
    """It is the parent's still."""
    code = """
child = os.fork()
if child == 0:
    del dropout
    descriptors._handles.made.clear()
    print("child", flush=True)
    os._exit(0)
os.waitpid(child, 0)
del dropout
"""
    assert alone(code) == "child\nDestroyDropoutDescriptor\n"


def test_the_child_of_a_fork_makes_a_handle_of_its_own() -> None:
    code = """
child = os.fork()
if child:
    os.waitpid(child, 0)
print(descriptors.handle(library, 0) is handle, flush=True)
os._exit(0)
"""
    assert alone(code) == "False\nTrue\n"


def test_what_cannot_be_made_is_an_error(counting: Counting) -> None:
    counting.cudnnCreate = lambda _: 1001
    with pytest.raises(CudnnError) as caught:
        descriptors.handle(counting, 3)
    assert caught.value.category is Category.NOT_INITIALIZED
    assert str(caught.value) == (
        "cudnnCreate: CUDNN_STATUS_NOT_INITIALIZED (1001): cuDNN gives no reason; there is no "
        "NVIDIA driver, no GPU that this process may use, or no memory left on it; cuDNN 9.28.0."
    )
    del counting.cudnnCreate
    assert descriptors.handle(counting, 3).pointer == 1  # the failure is not kept


# The real library: round trips


@pytest.fixture
def real() -> Library:
    folder = installed()
    if folder is None:
        pytest.skip(NOT_INSTALLED)
    library = libraries._load(str(folder / "lib"))
    assert isinstance(library, Library)
    return library


# Fourteen values, no two of neighbours alike.
SETTINGS = RNNSettings(
    algo=enums.RNNAlgo.CUDNN_RNN_ALGO_STANDARD,
    cell_mode=enums.RNNMode.CUDNN_LSTM,
    bias_mode=enums.RNNBiasMode.CUDNN_RNN_SINGLE_REC_BIAS,
    dir_mode=enums.DirectionMode.CUDNN_BIDIRECTIONAL,
    input_mode=enums.RNNInputMode.CUDNN_LINEAR_INPUT,
    data_type=enums.DataType.CUDNN_DATA_HALF,
    math_prec=enums.DataType.CUDNN_DATA_FLOAT,
    math_type=enums.MathType.CUDNN_FMA_MATH,
    input_size=70_001,
    hidden_size=4_242,
    proj_size=1_313,
    num_layers=55,
    aux_flags=enums.CUDNN_RNN_PADDED_IO_ENABLED,
)
PLAIN = SETTINGS._replace(
    bias_mode=enums.RNNBiasMode.CUDNN_RNN_DOUBLE_BIAS,
    data_type=enums.DataType.CUDNN_DATA_FLOAT,
    input_size=8,
    hidden_size=8,
    proj_size=8,
    num_layers=2,
)


def test_a_network_is_understood(real: Library) -> None:
    dropout = DropoutDescriptor(real)
    rnn = RNNDescriptor(real)
    with pytest.raises(CudnnError) as caught:
        rnn.get()
    assert caught.value.category is Category.NOT_INITIALIZED
    rnn.set(SETTINGS, dropout)
    assert rnn.get() == (SETTINGS, dropout.pointer)
    rnn.set(PLAIN)
    assert rnn.get() == (PLAIN, None)


VALUES = {
    "algo": enums.RNNAlgo,
    "cell_mode": enums.RNNMode,
    "bias_mode": enums.RNNBiasMode,
    "dir_mode": enums.DirectionMode,
    "input_mode": enums.RNNInputMode,
    "math_type": enums.MathType,
}


@pytest.mark.parametrize("field", VALUES)
def test_every_choice_of_a_network_is_understood(field: str, real: Library) -> None:
    rnn = RNNDescriptor(real)
    for value in VALUES[field]:
        settings = PLAIN._replace(**{field: value})
        rnn.set(settings)
        assert rnn.get() == (settings, None)


def test_a_clip_is_understood(real: Library) -> None:
    rnn = RNNDescriptor(real)
    rnn.set(PLAIN)
    none = (enums.RNNClipMode.CUDNN_RNN_CLIP_NONE, 0.0, 0.0)
    assert rnn.get_clip()[:3] == none
    for nan in enums.NanPropagation:
        rnn.set_clip(-1.5, 2.25, nan)
        assert rnn.get_clip() == (enums.RNNClipMode.CUDNN_RNN_CLIP_MINMAX, -1.5, 2.25, nan)
    rnn.set(PLAIN)
    assert rnn.get_clip()[:3] == none


def test_the_clips_of_8_and_of_9_are_one(real: Library) -> None:
    if real.version < V9:
        pytest.skip("the installed nvidia-cudnn-cu12 is version 8")
    rnn = RNNDescriptor(real)
    minmax = enums.RNNClipMode.CUDNN_RNN_CLIP_MINMAX
    real.cudnnRNNSetClip_v9(rnn.pointer, minmax, -3.0, 4.0)
    assert rnn.get_clip() == (minmax, -3.0, 4.0, enums.NanPropagation.CUDNN_PROPAGATE_NAN)
    rnn.set_clip(-1.0, 2.0, enums.NanPropagation.CUDNN_NOT_PROPAGATE_NAN)
    mode, low, high = c_int(), c_double(), c_double()
    real.cudnnRNNGetClip_v9(rnn.pointer, byref(mode), byref(low), byref(high))
    assert (mode.value, low.value, high.value) == (minmax, -1.0, 2.0)


def fits(library: Library, data_type: int) -> bool:
    """Return whether this version has RNNs of a dtype: bfloat16 came with 9.13."""
    return data_type != enums.DataType.CUDNN_DATA_BFLOAT16 or library.version >= 91300


BATCH = RNNDataSettings(
    enums.DataType.CUDNN_DATA_FLOAT,
    enums.RNNDataLayout.CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED,
    max_length=9,
    vector_size=700,
    lengths=(9, 7, 7, 1),
)
UNPACKED = (
    enums.RNNDataLayout.CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
    enums.RNNDataLayout.CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED,
)


@pytest.mark.parametrize("layout", enums.RNNDataLayout)
@pytest.mark.parametrize("dtype", enums.DATA_TYPES)
def test_a_batch_is_understood(dtype: str, layout: enums.RNNDataLayout, real: Library) -> None:
    data_type = enums.DATA_TYPES[dtype]
    if not fits(real, data_type):
        pytest.skip("the installed nvidia-cudnn-cu12 is older than bfloat16")
    size = {"float32": 4, "float64": 8}.get(dtype, 2)
    fill = bytes(range(1, size + 1))
    batch = RNNDataDescriptor(real)
    settings = BATCH._replace(data_type=data_type, layout=layout, padding_fill=fill)
    batch.set(settings)
    assert batch.get() == settings._replace(padding_fill=fill.ljust(8, b"\0"))


def test_the_lengths_of_a_batch_are_copied(real: Library) -> None:
    batch = RNNDataDescriptor(real)
    lengths = (c_int * 4)(9, 7, 7, 1)
    batch.set(BATCH._replace(lengths=lengths))
    lengths[3] = 5
    assert batch.get().lengths == BATCH.lengths


def test_a_state_is_understood(real: Library) -> None:
    state = TensorDescriptor(real)
    for data_type in enums.DataType:
        state.set(data_type, (2, 3, 4))
        assert state.get() == (data_type, (2, 3, 4), (12, 4, 1))
    state.set(data_type, (1, 6, 5, 4, 3, 1, 2, 2))
    assert state.get()[2] == (1440, 240, 48, 12, 4, 4, 2, 1)


def test_a_handle_needs_a_driver(real: Library) -> None:
    failure = None
    try:
        Handle(real).set_stream(0)
    except CudnnError as error:
        failure = error
    if failure is not None:  # there is no GPU, and the message says so
        assert failure.function == "cudnnCreate"
        assert failure.category is Category.NOT_INITIALIZED
        assert "there is no NVIDIA driver, no GPU that this process may use" in str(failure)
        assert real.version < V9 or "cudaGetDeviceCount" in failure.detail


# The real library: what it refuses


def answer(function: Any, *arguments: Any) -> Category | None:
    """Return the kind of failure of a call, None if it succeeds."""
    try:
        function(*arguments)
    except CudnnError as error:
        return error.category
    return None


F32, F64, F16, BF16 = enums.DATA_TYPES.values()
PROJECTED = {"proj_size": 4}
NETWORKS: dict[str, tuple[dict[str, Any], Category | None]] = {
    "no projection": ({}, None),
    **{
        f"{name}={value}": ({name: value}, BAD)
        for name in ("input_size", "hidden_size", "num_layers", "proj_size")
        for value in (0, -1)
    },
    "projection to more": ({"proj_size": 9}, UNSUPPORTED),
    **{
        f"projection of {mode.name}": (
            {"cell_mode": mode, **PROJECTED},
            None if mode is enums.RNNMode.CUDNN_LSTM else UNSUPPORTED,
        )
        for mode in enums.RNNMode
    },
    "projection of one direction": ({"dir_mode": 0, "num_layers": 7, **PROJECTED}, None),
    **{f"projection, algorithm {n}": ({"algo": n, **PROJECTED}, UNSUPPORTED) for n in (1, 2, 3)},
    **{
        f"{name}={value}": ({name: value}, BAD)
        for name, values in VALUES.items()
        for value in (-1, len(values))
    },
    **{
        f"bias {bias}, algorithm {algo}": (
            {"bias_mode": bias, "algo": algo},
            UNSUPPORTED if algo and bias != enums.RNNBiasMode.CUDNN_RNN_DOUBLE_BIAS else None,
        )
        for bias in enums.RNNBiasMode
        for algo in enums.RNNAlgo
    },
    **{f"aux_flags={flags}": ({"aux_flags": flags}, BAD) for flags in (2, 3, 1 << 31)},
    "no padded input": ({"aux_flags": 0}, None),
    **{
        f"float64, algorithm {algo}": (
            {"data_type": F64, "math_prec": F64, "algo": algo},
            UNSUPPORTED if algo in (1, 3) else None,
        )
        for algo in enums.RNNAlgo
    },
    **{
        f"float16 arithmetic, algorithm {algo}": (
            {"data_type": F16, "math_prec": F16, "algo": algo},
            UNSUPPORTED if algo else None,
        )
        for algo in enums.RNNAlgo
    },
    **{
        f"float16 data, algorithm {algo}": ({"data_type": F16, "algo": algo}, None)
        for algo in enums.RNNAlgo
    },
    "skipped input of another size": ({"input_mode": 1, "input_size": 5}, None),
    "skipped input, projection": ({"input_mode": 1, **PROJECTED}, None),
    "many layers": ({"num_layers": 1000}, None),
    "large": ({"input_size": 2**31 - 1, "hidden_size": 2**31 - 1, "proj_size": 2**31 - 1}, None),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_which_networks_are_refused(name: str, real: Library) -> None:
    change, wanted = NETWORKS[name]
    rnn = RNNDescriptor(real)
    before = PLAIN._replace(num_layers=3)
    rnn.set(before)
    settings = PLAIN._replace(**change)
    assert answer(rnn.set, settings) is wanted
    assert rnn.get() == (before if wanted else settings, None)  # a refusal changes nothing


PAIRS = {(F32, F32), (F64, F64), (F16, F32), (F16, F16), (BF16, F32)}


@pytest.mark.parametrize("data_type", range(12))
def test_which_pairs_of_dtypes_are_refused(data_type: int, real: Library) -> None:
    rnn = RNNDescriptor(real)
    for math_prec in range(12):
        fine = (data_type, math_prec) in PAIRS and fits(real, data_type)
        settings = PLAIN._replace(data_type=data_type, math_prec=math_prec)
        assert answer(rnn.set, settings) is (None if fine else UNSUPPORTED), math_prec


def test_networks_with_dropout_that_was_never_set_are_taken(real: Library) -> None:
    RNNDescriptor(real).set(PLAIN, DropoutDescriptor(real))


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (-1.0, 1.0, None),
        (1.0, 1.0, None),
        (-math.inf, math.inf, None),
        (-1e300, 1e300, None),
        (1.0, -1.0, BAD),
        (math.nan, 1.0, BAD),
        (-1.0, math.nan, BAD),
    ],
)
def test_which_clips_are_refused(
    low: float, high: float, wanted: Category | None, real: Library
) -> None:
    nan = enums.NanPropagation.CUDNN_PROPAGATE_NAN
    rnn = RNNDescriptor(real)
    rnn.set_clip(-5.0, 6.0, nan)  # before the network too
    assert answer(rnn.set_clip, low, high, nan) is wanted
    bounds = (-5.0, 6.0) if wanted else (low, high)
    assert rnn.get_clip() == (enums.RNNClipMode.CUDNN_RNN_CLIP_MINMAX, *bounds, nan)


def test_clips_are_not_checked_for_what_has_no_cell_state(real: Library) -> None:
    """So that is ours to do."""
    rnn = RNNDescriptor(real)
    for mode in enums.RNNMode:
        rnn.set(PLAIN._replace(cell_mode=mode))
        rnn.set_clip(-1.0, 1.0, enums.NanPropagation.CUDNN_PROPAGATE_NAN)
    for mode, nan in ((2, 1), (-1, 1), (1, 2), (1, -1)):
        real.cudnnRNNSetClip_v8(rnn.pointer, mode, nan, -1.0, 1.0)


PACKED = BATCH.layout
BATCHES: dict[str, tuple[dict[str, Any], Category | None]] = {
    "packed": ({}, None),
    "no steps": ({"max_length": 0}, BAD),
    "negative steps": ({"max_length": -1}, BAD),
    "no rows": ({"lengths": ()}, BAD),
    "no values": ({"vector_size": 0}, BAD),
    "negative values": ({"vector_size": -1}, BAD),
    "layout=-1": ({"layout": -1}, BAD),
    "layout=3": ({"layout": 3}, BAD),
    **{
        f"data_type={n}": ({"data_type": n}, UNSUPPORTED)
        for n in range(12)
        if n not in {*enums.DataType}
    },
    "65535 steps": ({"max_length": 65535, "lengths": (65535, 1)}, None),
    "65536 steps": ({"max_length": 65536, "lengths": (65536, 1)}, UNSUPPORTED),
    "70000 rows": ({"lengths": (9,) * 70_000}, None),
    "more than 2^31 values": ({"lengths": (9,) * 70_000, "vector_size": 70_000}, None),
    "packed, shorter than it says": ({"lengths": (8, 7)}, BAD),
    **{
        f"{name}, layout {layout}": ({"layout": layout, "lengths": lengths}, wanted)
        for layout in UNPACKED
        for name, lengths, wanted in (
            ("unsorted", (1, 9, 7), None),
            ("shorter than it says", (1, 8, 7), None),
            ("negative length", (9, -1), BAD),
            ("too long", (10, 9), BAD),
        )
    },
    "packed, negative length": ({"lengths": (9, -1)}, BAD),
    "packed, too long": ({"lengths": (10, 9)}, BAD),
}


@pytest.mark.parametrize("name", BATCHES)
def test_which_batches_are_refused(name: str, real: Library) -> None:
    change, wanted = BATCHES[name]
    assert answer(RNNDataDescriptor(real).set, BATCH._replace(**change)) is wanted


# What versions differ in: the name of a case, and the first version with each answer.
CHANGING = {
    "unpacked, a zero length": (
        {"layout": UNPACKED[0], "lengths": (0, 9)},
        {8907: None, 90100: UNSUPPORTED, 90201: None},
    ),
    "unpacked, all zero": (
        {"layout": UNPACKED[1], "lengths": (0, 0)},
        {8907: None, 90100: UNSUPPORTED, 90201: None},
    ),
    "packed, a zero length": (
        {"layout": PACKED, "lengths": (9, 0)},
        {8907: None, 90100: UNSUPPORTED, 90501: BAD},
    ),
    "packed, unsorted": ({"layout": PACKED, "lengths": (1, 9)}, {8907: None, 90501: BAD}),
}


@pytest.mark.parametrize("name", CHANGING)
def test_which_batches_are_refused_by_some_versions(name: str, real: Library) -> None:
    change, answers = CHANGING[name]
    wanted = answers[max(version for version in answers if version <= real.version)]
    assert answer(RNNDataDescriptor(real).set, BATCH._replace(**change)) is wanted


def test_which_questions_about_batches_are_refused(real: Library) -> None:
    batch = RNNDataDescriptor(real)
    numbers = [c_int(7) for _ in range(5)]
    heads = [*map(byref, numbers)]
    lengths, fill = (c_int * 6)(*[5] * 6), ctypes.create_string_buffer(8)
    get = real.cudnnGetRNNDataDescriptor
    get(batch.pointer, *heads, 0, None, fill)
    assert [number.value for number in numbers] == [0] * 5  # before it is set
    batch.set(BATCH)
    get(batch.pointer, *heads, 2, lengths, fill)
    assert [*lengths] == [9, 7, 5, 5, 5, 5]
    get(batch.pointer, *heads, 6, lengths, fill)
    assert [*lengths] == [9, 7, 7, 1, 0, 0]
    assert answer(get, batch.pointer, *heads, -1, lengths, fill) is BAD
    assert answer(get, batch.pointer, *heads, 4, lengths, None) is BAD


def test_which_states_are_refused(real: Library) -> None:
    state = TensorDescriptor(real)
    state.set(F32, (2, 3, 4))
    for shape, wanted in {
        (3,): BAD,
        (2, 3, 0): BAD,
        (2, -3, 4): BAD,
        (1,) * 9: UNSUPPORTED,
        (2048, 2048, 512): UNSUPPORTED,
        (2048, 2048, 511): None,
    }.items():
        assert answer(state.set, F32, shape) is wanted, shape
    for data_type in range(12):
        wanted = None if data_type < 5 or data_type == BF16 else BAD
        if data_type not in (5, 6, 7, 8):
            assert answer(state.set, data_type, (2, 3, 4)) is wanted, data_type
    shape, strides = (c_int * 3)(2, 3, 4), (c_int * 3)
    for last, wanted in {(12, 4, 0): BAD, (12, 4, -1): None}.items():
        arguments = (state.pointer, F32, 3, shape, strides(*last))
        assert answer(real.cudnnSetTensorNdDescriptor, *arguments) is wanted


# The real library: calls without a handle


def nothing(name: str) -> list[Any]:
    """Return null or zero for every argument of a function."""
    numbers = (c_int, c_uint32, c_size_t, c_float, ctypes.c_ulonglong)
    return [0 if each in numbers else None for each in prototypes()[name].arguments]


WITH_HANDLE = [
    name
    for name, each in prototypes().items()
    if "cudnnHandle_t handle" in each.c and name != "cudnnDestroy"
]


@pytest.mark.parametrize("name", WITH_HANDLE)
def test_a_call_without_a_handle_is_refused(name: str, real: Library) -> None:
    assert answer(getattr(real, name), *nothing(name)) is BAD


@pytest.mark.parametrize("kind", ["", "TensorDescriptor", "RNNDescriptor", "RNNDataDescriptor"])
def test_what_is_not_there_is_not_made_and_not_destroyed(kind: str, real: Library) -> None:
    assert answer(getattr(real, f"cudnnCreate{kind}"), None) is BAD
    getattr(real, f"cudnnDestroy{kind}")(None)


@pytest.fixture
def objects(real: Library) -> dict[str, Any]:
    """Return a descriptor for each of the types that a declaration names."""
    rnn, batch, state = RNNDescriptor(real), RNNDataDescriptor(real), TensorDescriptor(real)
    rnn.set(PLAIN._replace(aux_flags=0))
    batch.set(BATCH._replace(vector_size=8))
    state.set(F32, (2, 4, 8))
    return {
        "cudnnRNNDescriptor_t": rnn,
        "cudnnRNNDataDescriptor_t": batch,
        "cudnnTensorDescriptor_t": state,
    }


def arguments_of(name: str, objects: dict[str, Any]) -> list[Any]:
    """Return null or zero for every argument of a function, but for its descriptors."""
    arguments = nothing(name)
    for place, argument in enumerate(prototypes()[name].c.partition("(")[2].split(", ")):
        kind = argument.split()[0]
        if kind in objects:
            arguments[place] = objects[kind].pointer
    return arguments


@pytest.mark.parametrize(
    "name",
    [
        "cudnnRNNForward",
        "cudnnRNNBackwardData_v8",
        "cudnnRNNBackwardWeights_v8",
        "cudnnGetRNNTempSpaceSizes",
        "cudnnGetRNNWeightSpaceSize",
        "cudnnBuildRNNDynamic",
    ],
)
def test_only_the_handle_is_missing(name: str, objects: dict[str, Any], real: Library) -> None:
    """With every descriptor in its place, the condition that fails is the handle's."""
    with pytest.raises(CudnnError, match="handle") as caught:
        getattr(real, name)(*arguments_of(name, objects))
    assert caught.value.category is BAD


def test_gradients_of_weights_are_only_ever_added(objects: dict[str, Any], real: Library) -> None:
    arguments = arguments_of("cudnnRNNBackwardWeights_v8", objects)
    arguments[2] = enums.WgradMode.CUDNN_WGRAD_MODE_SET
    with pytest.raises(CudnnError, match="addGrad == CUDNN_WGRAD_MODE_SET") as caught:
        real.cudnnRNNBackwardWeights_v8(*arguments)
    assert caught.value.category is UNSUPPORTED


# The real library: what its log calls our numbers

LOG = """
from rnnop.cudnn import enums
from test_cudnn_descriptors import *
library = libraries.library()
rnn, batch = RNNDescriptor(library), RNNDataDescriptor(library)
for name, values in {**VALUES, "data_type": enums.DataType}.items():
    for value in values:
        answer(rnn.set, PLAIN._replace(**{name: value}))
for layout in enums.RNNDataLayout:
    batch.set(BATCH._replace(layout=layout))
for mode in enums.RNNClipMode:
    for nan in enums.NanPropagation:
        library.cudnnRNNSetClip_v8(rnn.pointer, mode, nan, -1.0, 1.0)
for mode in enums.ForwardMode:
    answer(library.cudnnGetRNNTempSpaceSizes, None, rnn.pointer, mode, None, None, None)
for flags in (enums.CUDNN_RNN_PADDED_IO_DISABLED, enums.CUDNN_RNN_PADDED_IO_ENABLED):
    rnn.set(PLAIN._replace(aux_flags=flags))
"""


def test_cudnn_calls_our_numbers_by_our_names(real: Library, tmp_path: Path) -> None:
    log = tmp_path / "log"
    switches = ("CUDNN_LOGLEVEL_DBG", "CUDNN_LOGINFO_DBG", "CUDNN_LOGERR_DBG", "CUDNN_LOGWARN_DBG")
    environment = {name: value for name, value in os.environ.items() if "COV" not in name}
    environment |= dict.fromkeys(switches, "3")
    environment |= {"CUDNN_LOGDEST_DBG": str(log), "RNNOP_CUDNN_PATH": str(real.path)}
    subprocess.run(
        [sys.executable, "-c", LOG], cwd=Path(__file__).parent, env=environment, check=True
    )
    named = re.findall(r"type=(\w+); val=(\w+) \((-?\w+)\);", log.read_text())
    said: dict[str, dict[str, int]] = {}
    for kind, name, number in named:
        said.setdefault(kind, {})[name] = int(number, 0)
    flags = said.pop("unsigned")
    assert flags == {
        name: getattr(enums, name)
        for name in ("CUDNN_RNN_PADDED_IO_DISABLED", "CUDNN_RNN_PADDED_IO_ENABLED")
    }
    silent = {"cudnnSeverity_t", "cudnnWgradMode_t"}
    if real.version < V9:
        silent |= {"cudnnRNNClipMode_t", "cudnnNanPropagation_t"}
    for kind, members in ENUMS.items():
        if kind not in silent:
            assert said[kind] == {member.name: member.value for member in members}, kind
