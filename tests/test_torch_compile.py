"""The operator under torch's own tools: opcheck, torch.compile and torch.export."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

import rnnop

torch = pytest.importorskip(
    "torch", reason="there is nothing to adapt to: pip install rnnop[torch]"
)

import rnnop.torch  # noqa: E402
from rnnop.torch import functional, op  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),  # inductor's own
]

T, N, I, H = 5, 3, 3, 4
MASK = torch.tensor([[1, 0, 1], [1, 1, 0], [0, 1, 1], [1, 1, 0], [1, 0, 0]], dtype=torch.bool)


def weights(mode: str = "gru", grad: bool = True, **sizes: Any) -> rnnop.RNNWeights:
    drawn = rnnop.init_weights(mode, input_size=I, hidden_size=H, seed=0, **sizes)
    return drawn.map(lambda each: torch.from_numpy(each).requires_grad_(grad))


def random(*shape: int, grad: bool = True) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_(grad)


# opcheck

OPTIONS: dict[str, dict[str, Any]] = {
    "rnn_tanh": {"mode": "rnn_tanh", "mask": MASK, "resets": ~MASK},
    "gru": {"mode": "gru", "lengths": [2, 5, 0], "masked_output": "hold"},
    "lstm": {"mode": "lstm", "return_cell_states": True, "cell_clip": (-0.2, float("inf"))},
    "dropout": {"mode": "gru", "dropout": 0.5, "training": True},
    "batch_first": {"mode": "rnn_relu", "batch_first": True, "mask": MASK.T},
    "activations": {"mode": "gru", "activations": ["Sigmoid", rnnop.Activation("Elu", 0.5)]},
}


def inputs(name: str, grad: bool = True) -> Any:
    options = OPTIONS[name]
    net = weights(options["mode"], grad, num_layers=2, bidirectional=True)
    x = random(N, T, I, grad=grad) if name == "batch_first" else random(T, N, I, grad=grad)
    return functional._inputs(
        x, functional._listed(net, options), random(4, N, H, grad=grad), None, options
    )


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", OPTIONS)
def test_opcheck(name: str, grad: bool) -> None:
    results = torch.library.opcheck(op.RNN.op, tuple(inputs(name, grad)))
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", OPTIONS)
def test_opcheck_of_the_gradient(name: str) -> None:
    given = inputs(name, grad=False)
    *outputs, token = op.RNN.op(*given, True)
    cotangents = [outputs[0] * 1, None, *[each * 1 for each in outputs[2:]]]
    cotangents += [None] * (4 - len(cotangents))
    wanted = [True, *[True, False] * (len(given.weights) // 2), True, False]
    arguments = cotangents, op.RNN.read_again(outputs), token, wanted, *given
    results = torch.library.opcheck(op.RNN.backward_op, arguments)
    assert set(results.values()) == {"SUCCESS"}


# torch.compile


def assert_compiles(function: Callable[..., Any], *given: Any, backend: str = "aot_eager") -> None:
    """Fail unless a function, compiled as one graph, has the same results and gradients."""
    leaves = [each for each in given if torch.is_tensor(each) and each.requires_grad]
    torch._dynamo.reset()
    found = []
    for each in (function, torch.compile(function, fullgraph=True, backend=backend)):
        torch.manual_seed(0)
        outputs = each(*given)
        total = sum(each.sin().sum() for each in outputs)
        found.append([*outputs, *torch.autograd.grad(total, leaves)])
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, eager)


def packed(lengths: list[int], enforce_sorted: bool) -> Any:
    return torch.nn.utils.rnn.pack_padded_sequence(
        random(T, N, I, grad=False), torch.tensor(lengths), enforce_sorted=enforce_sorted
    )


W, X, H0 = weights(), random(T, N, I), random(1, N, H)
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "plain": (lambda x: rnnop.rnn(x, W)[:2], (X,)),
    "weights_given": (lambda x, w, h0: rnnop.rnn(x, w, h0)[:2], (X, W, H0)),
    "lengths": (lambda x: rnnop.rnn(x, W, lengths=[2, 5, 0])[:2], (X,)),
    "lengths_given": (
        lambda x, lengths: rnnop.rnn(x, W, lengths=lengths)[:2],
        (X, torch.tensor([2, 5, 0])),
    ),
    "mask": (
        lambda x, mask: rnnop.rnn(x, W, mask=mask, resets=~mask, masked_output="hold")[:2],
        (X, MASK),
    ),
    "activations": (
        lambda x: rnnop.rnn(x, W, activations=["Sigmoid", ("Elu", 0.5)])[:2],
        (X,),
    ),
    "activation": (
        lambda x: rnnop.rnn(x, W, activations=OPTIONS["activations"]["activations"])[:2],
        (X,),
    ),
    "twice": (lambda x: rnnop.rnn(rnnop.rnn(x, W).y[..., :I], W)[:2], (X,)),
    "recomputed": (lambda x: rnnop.rnn((x * 2).cos(), W)[:2], (X,)),
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_compile_as_one_graph(name: str, backend: str) -> None:
    function, given = FUNCTIONS[name]
    assert_compiles(function, *given, backend=backend)


def modules() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    def flat(module: Any, *given: Any) -> Any:
        y, final = module(*given)
        y = y.data if isinstance(y, torch.nn.utils.rnn.PackedSequence) else y
        return (y, *final) if isinstance(final, tuple) else (y, final)

    def forward(module: Any) -> Callable[..., Any]:
        return lambda *given: flat(module, *given)

    torch.manual_seed(0)
    stack = rnnop.torch.LSTM(I, H, 2, bidirectional=True, cell_clip=0.3, masked_output="hold")
    x = random(T, N, I)
    return {
        "RNN": (forward(rnnop.torch.RNN(I, H, nonlinearity="relu")), (x, random(1, N, H))),
        "GRU": (forward(rnnop.torch.GRU(I, H, batch_first=True)), (x,)),
        "LSTM": (forward(stack), (x, (random(4, N, H), random(4, N, H)))),
        "unbatched": (forward(rnnop.torch.GRU(I, H)), (random(T, I),)),
        "packed": (forward(rnnop.torch.GRU(I, H)), (packed([2, 5, 1], False),)),
        "packed_sorted": (forward(rnnop.torch.LSTM(I, H)), (packed([5, 2, 1], True),)),
    }


@pytest.mark.parametrize("name", modules())
def test_modules_compile_as_one_graph(name: str) -> None:
    function, given = modules()[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*given), function(*given))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_training_step_compiles(backend: str) -> None:
    torch.manual_seed(0)
    module = rnnop.torch.LSTM(I, H, 2, dropout=0.5)
    parameters = list(module.parameters())

    def loss(x: Any) -> Any:
        y, (h_n, _) = module(x * 2)
        return y.square().sum() + h_n.sum()

    module.eval()
    assert_compiles(lambda x, *_: (loss(x),), X, *parameters, backend=backend)
    module.train()
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    assert compiled(X) != compiled(X), "the mask of dropout is drawn at every call"


def test_other_lengths_and_sizes_need_no_new_graph() -> None:
    graphs = []

    def count(graph: Any, given: Any) -> Any:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, lengths: rnnop.rnn(x, W, lengths=lengths).y,
        fullgraph=True,
        dynamic=True,
        backend=count,
    )
    for num_steps, rows in ((5, 7), (9, 2), (8, 6)):
        x, lengths = random(num_steps, rows, I), torch.arange(rows) % num_steps
        assert torch.equal(compiled(x, lengths), rnnop.rnn(x, W, lengths=lengths).y)
    assert len(graphs) == 1
    nodes = [node for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert [node.target for node in nodes].count(op.RNN.op) == 1


def test_autocast_compiles() -> None:
    def function(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return rnnop.rnn(x, W).y

    torch._dynamo.reset()
    got = torch.compile(function, fullgraph=True, backend="aot_eager")(X)
    assert got.dtype is torch.bfloat16
    assert torch.equal(got, function(X))


FIRST = """
import torch, rnnop
weights = rnnop.init_weights("gru", input_size=3, hidden_size=4, seed=0).map(torch.from_numpy)
compiled = torch.compile(lambda x: rnnop.rnn(x, weights).y, fullgraph=True, backend="aot_eager")
x = torch.ones(5, 2, 3)
assert torch.equal(compiled(x), rnnop.rnn(x, weights).y)
"""


def test_the_reference_compiles_without_a_warning() -> None:
    """pytest makes an error of those that Dynamo has for an lru_cache."""
    net, x = weights("gru", grad=False, num_layers=2), random(T, N, I, grad=False)
    kept = [torch.tensor(0.5).lt(torch.rand(T, N, H, generator=torch.Generator().manual_seed(2)))]

    def loss(x: Any) -> Any:
        options = {"dropout": 0.5, "training": True, "dropout_masks": kept}
        return rnnop.rnn(x, net, backend="reference", **options).y.sum()

    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(loss, backend="eager")(x), loss(x))


def test_dropout_on_one_layer_warns_outside_of_what_is_compiled() -> None:
    torch._dynamo.reset()
    net = weights("gru")
    call = torch.compile(
        lambda x: rnnop.rnn(x, net, dropout=0.5, training=True).y, backend="eager", fullgraph=True
    )
    with pytest.warns(UserWarning, match="no effect on a single layer") as caught:
        call(random(T, N, I))
    assert [each.filename for each in caught] == [__file__]


def test_the_first_call_of_all_may_be_a_compiled_one() -> None:
    import subprocess
    import sys

    subprocess.run([sys.executable, "-W", "error", "-c", FIRST], check=True)


# torch.export


@pytest.mark.parametrize("strict", [True, False])
def test_export_keeps_one_node(strict: bool) -> None:
    torch.manual_seed(0)
    module = rnnop.torch.GRU(I, H, 2, bidirectional=True).eval()
    steps, rows = torch.export.Dim("steps", min=2), torch.export.Dim("rows", min=2)
    shapes = {"input": {0: steps, 1: rows}, "lengths": {0: rows}}
    given = {"lengths": torch.tensor([2, 5, 0])}
    program = torch.export.export(
        module, (random(T, N, I, grad=False),), given, dynamic_shapes=shapes, strict=strict
    )
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert called.count(op.RNN.op) == 1
    assert {str(each) for each in called} == {"rnnop.rnn.default", str(called[-1])}
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for num_steps, size in ((5, 3), (9, 4)):
        x, lengths = random(num_steps, size, I, grad=False), torch.arange(size)
        for got, wanted in zip(loaded(x, lengths=lengths), module(x, lengths=lengths), strict=True):
            assert torch.equal(got, wanted)
