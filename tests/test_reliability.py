"""What users do to it: long runs, threads, pools, interrupts, odd arrays, corrupt weights."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import arrays_of

import rnnop
from rnnop import layouts, rssm, shortcut
from rnnop.cpu import engine

needs_engine = pytest.mark.skipif(
    not engine.available(), reason="rnnop was installed without a C compiler"
)
linux = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="it reads the size of a process from /proc"
)
BACKENDS = [pytest.param("cpu", marks=needs_engine), "reference"]


def bits(result: Any) -> list[bytes]:
    return [array.tobytes() for array in arrays_of(result)]


def network(mode: str = "lstm", hidden_size: int = 7, **options: Any) -> rnnop.RNNWeights:
    return rnnop.init_weights(mode, input_size=3, hidden_size=hidden_size, seed=0, **options)


def drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(script: str, *arguments: str) -> str:
    """Run a script in a process of its own, which must leave in peace; return what it printed."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# Long runs

MANY = """
import gc, resource, sys
import numpy as np
import rnnop

def used():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

weights = rnnop.init_weights("lstm", input_size=3, hidden_size=5, bidirectional=True, seed=0)
packed = rnnop.prepack(weights, mode="lstm", backend="cpu")
random = np.random.default_rng(0)

def one():
    T, N = (int(n) for n in random.integers(0, 40, 2))
    x = random.standard_normal((T, N, 3)).astype(np.float32)
    match random.integers(4):
        case 0:
            rnnop.rnn(x, packed, mode="lstm", backend="cpu")
        case 1:
            lengths = random.integers(0, T, N, endpoint=True)
            rnnop.rnn(x, weights, lengths=lengths, mode="lstm", backend="cpu")
        case 2:
            mask = random.random((T, N)) < 0.7
            out, vjp = rnnop.rnn_vjp(x, weights, mask=mask, mode="lstm", backend="cpu")
            vjp(np.ones_like(out.y))
        case _:
            rnnop.rnn(x.swapaxes(0, 1), weights, mode="lstm", batch_first=True)

for _ in range(2000):
    one()
before = used()
for _ in range(8000):
    one()
print(used() - before)
"""


@linux
@needs_engine
@pytest.mark.slow
def test_memory_stays_flat_over_ten_thousand_calls() -> None:
    assert int(run(MANY)) < 2 << 20


# Threads and processes


@needs_engine
def test_eight_threads_share_weights_of_every_kind() -> None:
    weights, other = network(), network("gru", num_layers=2, bidirectional=True)
    packed = rnnop.prepack(weights, mode="lstm", backend="cpu")

    def work(k: int) -> list[bytes]:
        T, N = 1 + k % 5, 1 + k % 4
        x = drawn(T, N, 3, seed=k)
        out, vjp = rnnop.rnn_vjp(x, other, lengths=[T] * (N - 1) + [0], mode="gru", backend="cpu")
        return [
            *bits(rnnop.rnn(x, packed, mode="lstm")),  # the second time on the shorter way
            *bits(rnnop.rnn(x, packed, mode="lstm", batch_first=True)),
            *bits(out),
            *bits(vjp(np.ones_like(out.y))),
        ]

    wanted = [work(k) for k in range(20)]
    shortcut.among(packed).clear()
    packed.cache.clear()
    start = threading.Barrier(8)

    def all_of_them(first: int) -> list[list[bytes]]:
        start.wait(60)
        for _ in range(5):
            found = [work((first + k) % 20) for k in range(20)]
        return found[20 - first :] + found[: 20 - first]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for found in pool.map(all_of_them, range(8), timeout=120):
            assert found == wanted


def in_a_pool(seed: int, backend: str) -> list[bytes]:
    out, vjp = rnnop.rnn_vjp(drawn(4, 3, 3, seed=seed), network(), mode="lstm", backend=backend)
    return bits(out) + bits(vjp(np.ones_like(out.y)))


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_pool_of_processes_gives_the_same_bits(method: str, backend: str) -> None:
    wanted = [in_a_pool(seed, backend) for seed in range(6)]
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, context) as pool:
        found = pool.map(in_a_pool, range(6), [backend] * 6, timeout=120)
        assert list(found) == wanted


INTERRUPTED = """
import os, signal, threading, time
import numpy as np
import rnnop

weights = rnnop.init_weights("lstm", input_size=64, hidden_size=256, seed=0)
x = np.random.default_rng(0).standard_normal((60, 64, 64)).astype(np.float32)

def call():
    out, vjp = rnnop.rnn_vjp(x, weights, mode="lstm", backend="cpu")
    return out.y.tobytes() + vjp(np.ones_like(out.y)).x.tobytes()

begin = time.monotonic()
wanted = call()
takes = time.monotonic() - begin
interrupts = 0
for share in (0.05, 0.2, 0.4, 0.6, 0.8):
    timer = threading.Timer(share * takes, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        while True:
            call()
    except KeyboardInterrupt:
        interrupts += 1
    timer.join()
    assert call() == wanted
print(interrupts)
"""


@needs_engine
@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="it sends a signal")
def test_an_interrupt_arrives_and_leaves_nothing_behind() -> None:
    assert run(INTERRUPTED) == "5\n"


LEAVING = """
import sys, threading, time
import numpy as np
import rnnop

weights = rnnop.init_weights("gru", input_size=64, hidden_size=256, seed=0)
x = np.ones((200, 64, 64), np.float32)
started = threading.Event()

def forever():
    while True:
        started.set()
        rnnop.rnn(x, weights, backend="cpu")

for _ in range(3):
    threading.Thread(target=forever, daemon=True).start()
started.wait()
time.sleep(0.2)
print("done")
"""


@needs_engine
@pytest.mark.slow
def test_the_interpreter_exits_while_threads_compute() -> None:
    for _ in range(3):
        assert run(LEAVING) == "done\n"


# Odd arrays


def unaligned(array: Any) -> Any:
    memory = np.zeros(array.nbytes + 1, np.uint8)[1:]
    held = memory.view(array.dtype).reshape(array.shape)
    held[...] = array
    return held


def read_only(array: Any) -> Any:
    array = array.copy()
    array.flags.writeable = False
    return array


class Subclass(np.ndarray):
    pass


ODD: dict[str, Callable[[Any], Any]] = {
    "at an odd address": unaligned,
    "read-only": read_only,
    "of a class of its own": lambda array: array.view(Subclass),
    "Fortran": np.asfortranarray,
    "with strides of 0": lambda array: np.broadcast_to(array[:1], array.shape),
    "backwards": lambda array: np.ascontiguousarray(array[::-1])[::-1],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", ODD)
def test_odd_arrays_give_the_bits_of_plain_ones(how: str, backend: str) -> None:
    weights, (x, h0, c0) = network(), (drawn(4, 2, 3), drawn(1, 2, 7), drawn(1, 2, 7))
    odd = [ODD[how](array) for array in (x, h0, c0)]
    strange = weights.map(ODD[how])
    plain = [np.array(array, order="C") for array in odd]
    usual = strange.map(lambda array: np.array(array, order="C"))
    options: dict[str, Any] = {"mode": "lstm", "lengths": [2, 4], "backend": backend}
    got, vjp = rnnop.rnn_vjp(odd[0], strange, *odd[1:], **options)
    wanted, right = rnnop.rnn_vjp(plain[0], usual, *plain[1:], **options)
    if backend == "cpu":  # NumPy multiplies another layout in another order
        assert bits(got) == bits(wanted)
        dy = drawn(4, 2, 7, seed=1)
        assert bits(vjp(ODD[how](dy))) == bits(right(np.array(ODD[how](dy), order="C")))
    for one, other in zip(arrays_of(got), arrays_of(wanted), strict=True):
        assert type(one) is np.ndarray
        assert one.flags.c_contiguous
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_final_states_lie_plainly_wherever_the_initial_ones_lay(backend: str) -> None:
    x, h0 = drawn(2, 2, 3), np.asfortranarray(drawn(2, 2, 7))
    packed = rnnop.pack(x, [2, 1])
    weights = network("gru", num_layers=2)
    for out in (
        rnnop.rnn(packed, weights, h0, backend=backend),
        rnnop.rnn(x, weights, h0, lengths=[0, 0], backend=backend),
        rnnop.rnn(x, weights, h0, lengths=[0, 2], backend=backend),
    ):
        assert out.h_n.flags.c_contiguous


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_world_model_returns_plain_arrays(backend: str) -> None:
    spec = rssm.RSSMSpec(2, 3, 1, 2, 4)
    weights = rssm.init_weights(spec, seed=0).map(ODD["of a class of its own"])
    actions, embeds = (ODD["of a class of its own"](drawn(4, 2, n)) for n in (1, 2))
    for array in rssm.observe(weights, None, None, actions, embeds, seed=0, backend=backend):
        assert type(array) is np.ndarray
        assert array.flags.c_contiguous


SWAPPED = np.dtype(np.float32).newbyteorder()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("where", ["x", "h0", "weights", "all"])
def test_another_byte_order_is_another_dtype(where: str, backend: str) -> None:
    weights, x, h0 = network("gru"), drawn(4, 2, 3), drawn(1, 2, 7)
    if where in ("x", "all"):
        x = x.astype(SWAPPED)
    if where in ("h0", "all"):
        h0 = h0.astype(SWAPPED)
    if where in ("weights", "all"):
        weights = weights.map(lambda array: array.astype(SWAPPED))
    with pytest.raises(rnnop.DTypeError, match=f"has dtype {SWAPPED}; expected one of float64"):
        rnnop.rnn(x, weights, h0, gate_clip=1.0, backend=backend)


@pytest.mark.parametrize(
    "value",
    [
        *(3.0, np.float32(3), "x", b"x", None, [[[0.0]]], memoryview(b"abcd"), object()),
        *(np.zeros((1, 1, 3), object), np.zeros((1, 1, 3), np.longdouble), np.ma.zeros((1, 1, 3))),
        *(np.zeros((1, 1, 3), np.complex64), np.zeros((1, 1, 3), "M8[s]"), np.zeros(1, "f4,f4")),
        np.zeros((1, 1, 3), np.dtype(("f4", (2,)))).astype("U3"),
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}".strip(),
)
def test_what_is_no_array_of_numbers_is_refused_by_name(value: Any) -> None:
    with pytest.raises(rnnop.DTypeError, match="`x`"):
        rnnop.rnn(value, network("gru"))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_denormal_numbers_are_kept(dtype: Any, backend: str) -> None:
    """A unit without an activation passes its input on."""
    tiny = np.finfo(dtype).smallest_subnormal
    one, zero = np.ones((1, 1), dtype), np.zeros((1, 1), dtype)
    x = (tiny * np.array([1, 3, -2, 1000], dtype)).reshape(4, 1, 1)
    weights = rnnop.RNNWeights((one,), (zero,))
    for mode in ("rnn_relu", "rnn_tanh"):
        wanted = np.maximum(x, 0) if mode == "rnn_relu" else x
        got = rnnop.rnn(x, weights, mode=mode, backend=backend).y
        assert np.array_equal(got, wanted)


# What changes after the call


@needs_engine
def test_lengths_that_change_in_place_are_read_again() -> None:
    """They hash by their identity, so a call with them looks like the one before."""

    class Lengths:
        """What many a framework's integers are: an array of its own, hashed by identity."""

        def __init__(self, *values: int) -> None:
            self.values = np.array(values)

        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            return self.values

    weights = network("gru")
    packed, x, lengths = rnnop.prepack(weights, backend="cpu"), drawn(4, 2, 3), Lengths(4, 4)
    for _ in range(2):
        rnnop.rnn(x, packed, lengths=lengths)
    lengths.values[0] = 1
    got = rnnop.rnn(x, packed, lengths=lengths)
    assert bits(got) == bits(rnnop.rnn(x, weights, lengths=[1, 4], backend="cpu"))
    assert (got.y[1:, 0] == 0).all()


# Weights from strangers


exploded: list[int] = []


def explode() -> None:
    exploded.append(1)


class Bomb:
    """Its pickle runs code when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return explode, ()


def test_nothing_in_the_package_reads_a_pickle() -> None:
    word = re.compile(r"pickle|marshal|shelve|joblib|torch\.load|\beval\(|\bexec\(")
    package = Path(rnnop.__file__).parent
    found = {
        str(file.relative_to(package)): lines
        for file in package.rglob("*.py")
        if (lines := [line for line in file.read_text().splitlines() if word.search(line)])
    }
    assert not found


def test_an_npz_with_a_pickle_is_refused(tmp_path: Path) -> None:
    """The demo's own data are read in this way, and weights of a user's as well."""
    file = tmp_path / "weights.npz"
    np.savez(file, weight_ih_l0=np.array([Bomb()], object), weight_hh_l0=drawn(12, 4))
    with np.load(file) as stored, pytest.raises(ValueError, match="allow_pickle=False"):
        layouts.from_pytorch(stored)
    assert not exploded
    pickle.loads(pickle.dumps(Bomb()))  # it would have run
    exploded.pop()


def state_dict() -> dict[str, Any]:
    return layouts.to_pytorch(network("lstm", 4, num_layers=2, bidirectional=True))


@pytest.mark.parametrize(
    "name",
    [
        *("weight_ih_l99999999999999999", "weight_ih_l" + "9" * 5000, "weight_ih_l-1"),
        *("weight_ih_l00", "weight_ih_l\u0663", "__class__", "../../weight_ih_l0", "", "\0"),
        *("weight_ih_l9999", "weight_ih_l2\n", "weight_ih_l0_reverse_reverse"),
    ],
    ids=lambda name: ascii(name)[:30],
)
def test_a_state_dict_with_a_corrupt_name_is_refused_at_once(name: str) -> None:
    with pytest.raises(rnnop.SpecError):
        layouts.from_pytorch(state_dict() | {name: drawn(16, 4)})


NOT_WEIGHTS = [
    *(None, 3, 2.5, "x", b"x", (), [], {}, object(), range(3), float("nan"), 10**400),
    *(np.array([[None]], object), np.array("x"), np.zeros(()), np.zeros((0,) * 40), np.zeros(3)),
    *(np.ma.zeros((2, 2)), np.zeros((16, 4), object), np.zeros(1, "f4,f4"), Bomb()),
]


def _readers() -> dict[str, tuple[Callable[[Any], Any], Any]]:
    """Return by name: what reads a mapping of names to arrays, and one that is right."""
    lstm, gru = network("lstm", 4), network("gru", 4)
    keras = layouts.to_keras(gru, mode="gru")
    (flax,) = layouts.to_flax(replace(lstm, b_ih=None), cell="linen.LSTMCell")
    return {
        "pytorch": (layouts.from_pytorch, state_dict()),
        "onnx": (
            lambda given: layouts.from_onnx(**given, mode="lstm"),
            layouts.to_onnx(lstm, mode="lstm")._asdict(),
        ),
        "tvm": (lambda given: layouts.from_tvm(**given), layouts.to_tvm(lstm)._asdict()),
        "keras": (
            lambda given: layouts.from_keras(list(given.values()), mode="gru"),
            dict(enumerate(keras)),
        ),
        "flax": (lambda given: layouts.from_flax(given, cell="linen.LSTMCell"), flax),
    }


MODELS = {
    "torchrl": rssm.RSSMSpec(4, 6, 2, 3, 5, std="max_softplus"),
    "torchrl v3": rssm.RSSMSpec.of(
        "torchrl_v3",
        **{"state_size": 4, "belief_size": 6, "action_size": 2, "embed_size": 3},
        **{"hidden_size": 5, "num_classes": 2, "cell": "block_gru", "num_blocks": 2},
        **{"norm": "rms", "prior_layers": 2, "dynamics_layers": 2},
    ),
}


@pytest.mark.parametrize("name", ["state_size", "embed_size", "hidden_size", "prior_layers"])
@pytest.mark.parametrize("digits", [19, 400, 5000])
def test_a_world_model_too_large_for_any_computer_is_refused(name: str, digits: int) -> None:
    sizes = {"state_size": 2, "belief_size": 3, "action_size": 1, "embed_size": 2}
    with pytest.raises(rnnop.SpecError, match=f"`{name}` has more than 63 bits"):
        rssm.RSSMSpec(**sizes | {name: 10**digits})


@pytest.mark.parametrize("model", MODELS)
def test_corrupt_state_dicts_of_torchrl_are_refused(model: str) -> None:
    spec = MODELS[model]
    dicts = rssm.to_torchrl(rssm.init_weights(spec, seed=0))._asdict()

    def read(**given: Any) -> Any:
        return rssm.from_torchrl(**given, num_classes=spec.num_classes)

    assert read(**dicts).spec.belief_size == 6
    for part, good in dicts.items():
        for name in good:
            fewer = {other: array for other, array in good.items() if other != name}
            shapes = [np.zeros(s, np.float32) for s in ((), (1,), (0, 0), (2, 2), (3, 1, 2))]
            for value in (*NOT_WEIGHTS, *shapes):
                with pytest.raises(rnnop.RnnopError):
                    read(**dicts | {part: good | {name: value}})
            try:
                read(**dicts | {part: fewer})
            except rnnop.RnnopError:
                continue
            assert ".1." in name  # the scale of a norm, which a model may be without
        head = "rnn_to_prior_projector" if part == "prior" else "obs_rnn_to_post_projector"
        for strange in (f"{head}.{'9' * 5000}.weight", f"{head}.\u0663.weight", 7, None, ""):
            read(**dicts | {part: good | {strange: drawn(2, 2)}})  # no name of theirs
        for value in NOT_WEIGHTS:
            if value is not None or part == "prior":
                with pytest.raises(rnnop.RnnopError):
                    read(**dicts | {part: value})
    for value in NOT_SIZES:
        if value is not None:
            with pytest.raises(rnnop.SpecError, match="`num_classes`"):
                rssm.from_torchrl(**dicts, num_classes=value)
    assert not exploded


@pytest.mark.parametrize("reader", _readers())
def test_corrupt_weights_are_refused_when_read_or_run(reader: str) -> None:
    """By an error of rnnop, and never by running what is in them."""
    read, good = _readers()[reader]
    x = drawn(2, 1, 3)
    mode = "gru" if reader == "keras" else "lstm"
    rnnop.rnn(x, read(good), mode=mode)
    runs = []
    for name, value in ((name, value) for name in good for value in NOT_WEIGHTS):
        try:
            rnnop.rnn(x, read({**good, name: value}), mode=mode)
        except rnnop.RnnopError:
            continue
        runs.append((name, value))
    assert all(value is None for _, value in runs), runs  # an array that is optional
    assert not exploded


FLAT: dict[str, Callable[..., Any]] = {
    "mxnet": lambda flat, **sizes: layouts.from_mxnet(flat, mode="gru", **sizes),
    "cudnn": lambda flat, **sizes: layouts.from_cudnn(flat, mode="gru", **sizes),
    "jax": layouts.from_jax,
}
NOT_SIZES = [
    *(0, -1, -(10**9), -(10**400), -(10**5000), 10**400, 10**5000, 2**63, True, False, np.True_),
    *(2.0, 0.5, float("nan"), float("inf"), np.float32(2), 1j, "2", b"2", "", None, [2], (), {}),
    *(np.array([2]), np.zeros(0), object()),
]
FLAT_SIZES = ("input_size", "hidden_size", "num_layers")


@pytest.mark.parametrize("reader", FLAT)
@pytest.mark.parametrize("name", FLAT_SIZES)
def test_a_flat_vector_with_a_size_that_is_none_is_refused_by_its_name(
    reader: str, name: str
) -> None:
    sizes = {"input_size": 2, "hidden_size": 3, "num_layers": 1}
    for value in NOT_SIZES:
        with pytest.raises(rnnop.SpecError, match=f"`{name}`"):
            FLAT[reader](np.zeros(63, np.float32), **sizes | {name: value})
    if reader != "jax":
        for value in NOT_SIZES:
            if value is not None:
                with pytest.raises(rnnop.SpecError, match="`proj_size`"):
                    FLAT[reader](np.zeros(63, np.float32), **sizes, proj_size=value)
    for value in (0, 1, -1, 10**9, 10**400, 1.0, float("nan"), "True", b"", None, [True], (), {}):
        with pytest.raises(rnnop.SpecError, match="`bidirectional`"):
            FLAT[reader](np.zeros(63, np.float32), **sizes, bidirectional=value)


@pytest.mark.parametrize("reader", FLAT)
@pytest.mark.parametrize("name", FLAT_SIZES)
@pytest.mark.parametrize("value", [9, 10**9, 2**63 - 1, np.int64(10**18), np.uint8(255)])
def test_a_flat_vector_that_is_too_short_is_refused_at_once(
    reader: str, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any layer is listed: a billion of them would keep a computer busy."""
    listed: list[int] = []
    good = layouts.common.flat_items

    def items(spec: rnnop.RNNSpec) -> Any:
        listed.append(spec.num_layers)
        return good(spec)

    monkeypatch.setattr(layouts.common, "flat_items", items)
    sizes: dict[str, Any] = {"input_size": 2, "hidden_size": 3, "num_layers": 1}
    with pytest.raises((rnnop.ShapeError, rnnop.UnsupportedError), match=r"shape|2\*\*31"):
        FLAT[reader](np.zeros(5, np.float32), **sizes | {name: value})
    assert set(listed) <= {1, 2}


def test_what_is_no_batch_size_is_refused() -> None:
    for value in NOT_SIZES:
        with pytest.raises(rnnop.SpecError, match="`batch_size`"):
            layouts.to_tvm(network("lstm", 4), batch_size=value)


WORDS: dict[str, Callable[[Any], Any]] = {
    "prefix": lambda value: layouts.from_pytorch(state_dict(), prefix=value),
    "onnx mode": lambda value: layouts.from_onnx(
        *layouts.to_onnx(network("lstm", 4), mode="lstm"), mode=value
    ),
    "keras mode": lambda value: layouts.from_keras(
        layouts.to_keras(network("gru", 4), mode="gru"), mode=value
    ),
    "flax cell": lambda value: layouts.from_flax({}, cell=value),
    "tvm weight_layout": lambda value: layouts.from_tvm(
        *layouts.to_tvm(network("lstm", 4)), weight_layout=value
    ),
    "mxnet mode": lambda value: layouts.from_mxnet(
        drawn(63), mode=value, input_size=2, hidden_size=3
    ),
    "cudnn mode": lambda value: layouts.from_cudnn(
        drawn(63), mode=value, input_size=2, hidden_size=3
    ),
    "cudnn bias": lambda value: layouts.from_cudnn(
        drawn(63), mode="gru", input_size=2, hidden_size=3, bias=value
    ),
}


@pytest.mark.parametrize("what", WORDS)
def test_a_number_where_a_word_should_be_is_refused_by_its_name(what: str) -> None:
    for value in (-1, 0, 10**9, 10**400, True, 0.5, float("nan"), None, b"gru", [], {}, object()):
        with pytest.raises(rnnop.SpecError, match=f"`{what.rpartition(' ')[2]}`"):
            WORDS[what](value)
