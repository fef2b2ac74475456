"""One model for one shape: its memory on a device, and the work of its forward and backward."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ...arrays import Array
from ..backends import step_shapes
from ..spec import RSSMSpec
from .cells import make_transition
from .compiler import THREADS
from .device import Device
from .latents import Head
from .layers import Rows
from .work import Launch, Matrix, Pointer, Product, Section


@dataclass(frozen=True)
class Key:
    """What the work depends on.

    Attributes
    ----------
    form : str
        'rollout', 'imagine' or 'observe'.
    dtype : str
        That is computed in.
    keep : bool
        Whether there is a backward.
    episodes : bool
        Whether episodes may begin within it.
    tf32 : bool
        Whether products of float32 may be computed in it.
    shapes : tuple
        Names and shapes of the weights that there are.
    """

    spec: RSSMSpec
    form: str
    num_steps: int
    batch_size: int
    dtype: str
    keep: bool
    episodes: bool
    tf32: bool
    shapes: tuple[tuple[str, tuple[int, ...]], ...]


class Model:
    """The arrays of a key, and its work in sections.

    'forward' and 'backward' are one section each, but of `imagine`: there each step has its own,
    ('forward', t) and ('backward', t), and ('sums',) stands at the end.

    Attributes
    ----------
    weights, gradients : dict of str to array
        By the names of `RSSMWeights.named`.
    inputs : dict of str to array
        (T, N, .): actions, embeds, noise, and first, (T, N, 1), where an episode begins.
    begins : dict of str to array
        (N, .): state and belief before the first step.
    results, given : dict of str to array
        Outputs and their cotangents, (T, N, .).
    d : dict of str to Rows
        Gradients of state and belief before each step, and of action and embed.
    """

    def __init__(self, key: Key, device: Device, like: Array) -> None:
        self.key, self.spec, self.device, self.like = key, key.spec, device, like
        self.num_steps, self.batch_size, self.keep = key.num_steps, key.batch_size, key.keep
        self.hoists = key.form != "imagine"
        self.size = 8 if key.dtype == "float64" else 4
        self.functions: dict[str, int] = {}
        self.arrays: dict[int, Array] = {}
        self.sections: dict[tuple[Any, ...], Section] = {}
        self._make_data()
        self._make_parts()
        self.write()

    # Memory

    def room(self, rows: int, columns: int) -> Matrix:
        """Return fresh memory."""
        dtype = getattr(self.device.memory.xp, self.key.dtype)
        array = self.device.room((rows, columns), dtype, self.like)
        pointer = self.device.memory.pointer(array)
        self.arrays[pointer] = array
        return Matrix(pointer, rows, columns, columns, self.size)

    def rows(self, width: int, every: bool = False) -> Rows:
        """Return memory for the rows of every step, or of one after another."""
        steps = self.num_steps if every else 1
        return Rows(self.room(steps * self.batch_size, width), self.batch_size, steps)

    def kept_rows(self, width: int) -> Rows:
        """Return memory for what the backward needs of every step; null pointers without one."""
        return self.rows(width, every=True) if self.keep else self._nothing(width)

    def scratch(self, width: int, every: bool = False) -> Rows:
        """Return memory for what the backward needs for a while."""
        return self.rows(width, every) if self.keep else self._nothing(width)

    def _nothing(self, width: int) -> Rows:
        return Rows(Matrix(0, self.batch_size, width, width, self.size), self.batch_size, 1)

    def array(self, rows: Rows, *shape: int) -> Array:
        """Return rows as an array (steps, N, .) of the family."""
        flat = self.arrays[rows.all.pointer]
        steps = rows.all.rows // self.batch_size
        return self.device.memory.xp.reshape(flat, (steps, self.batch_size, *shape))

    def _make_data(self) -> None:
        spec, key = self.spec, self.key
        xp, N, T = self.device.memory.xp, self.batch_size, self.num_steps
        of = {name: self.room(1, math.prod(shape)) for name, shape in key.shapes}
        shapes = dict(key.shapes)
        self._weights = of
        self._gradients: dict[str, Matrix] = {}
        self.weights = {
            name: xp.reshape(self.arrays[each.pointer], shapes[name]) for name, each in of.items()
        }
        self.ones = self.room(1, T * N)
        self.arrays[self.ones.pointer][...] = 1
        self.actions, self.noise = (
            self.rows(spec.action_size, True),
            self.rows(spec.noise_size, True),
        )
        self.inputs = {
            "actions": self.array(self.actions, spec.action_size),
            "noise": self.array(self.noise, spec.noise_size),
        }
        self.embeds = self.first = None
        if key.form == "observe":
            self.embeds = self.rows(spec.embed_size, True)
            self.inputs["embeds"] = self.array(self.embeds, spec.embed_size)
        if key.episodes:
            self.first = self.rows(1, True)
            self.inputs["first"] = self.array(self.first, 1)
        self._make_states()
        self._make_outputs()
        if key.keep:
            self._make_gradients(shapes)

    def _make_states(self) -> None:
        """Make state and belief before and after each step; where episodes begin, apart."""
        N, T = self.batch_size, self.num_steps
        self.after, self.begun, self.begins = {}, {}, {}
        for name, width in (("state", self.spec.state_size), ("belief", self.spec.belief_size)):
            self.after[name] = Rows(self.room((T + 1) * N, width), N, T + 1)
            self.begins[name] = self.array(self.after[name], width)[0]
            if self.key.episodes:
                self.begun[name] = self.rows(width, every=True)

    def _make_outputs(self) -> None:
        self.outputs, self.cotangents, self.results, self.given = {}, {}, {}, {}
        for name, shape in step_shapes(self.spec, self.key.form).items():
            width = math.prod(shape)
            if name in self.after:
                self.results[name] = self.array(self.after[name], *shape)[1:]
            elif name == "action":
                self.results[name] = self.inputs["actions"]
            else:
                self.outputs[name] = self.rows(width, every=True)
                self.results[name] = self.array(self.outputs[name], *shape)
            if self.key.keep and name != "action":
                self.cotangents[name] = self.rows(width, every=True)
                self.given[name] = self.array(self.cotangents[name], *shape)

    def _make_gradients(self, shapes: dict[str, tuple[int, ...]]) -> None:
        spec, xp = self.spec, self.device.memory.xp
        sizes = {"state": spec.state_size, "belief": spec.belief_size, "action": spec.action_size}
        if self.embeds is not None:
            sizes["embed"] = spec.embed_size
        self.d = {name: self.rows(width, every=True) for name, width in sizes.items()}
        self.of_d = {name: self.array(self.d[name], width) for name, width in sizes.items()}
        self.d_head = self.scratch(spec.belief_size)
        self.d_prior = self.kept_rows(spec.belief_size) if self.key.form == "observe" else None
        self._gradients = {name: self.room(1, math.prod(shape)) for name, shape in shapes.items()}
        self.gradients = {}
        for name, each in self._gradients.items():
            array = self.arrays[each.pointer]
            array[...] = 0  # what no work fills in stays so
            self.gradients[name] = xp.reshape(array, shapes[name])

    # Weights by name

    def vector(self, name: str) -> int | None:
        """Return where a vector lies; None for one that is not given."""
        return self._weights[name].pointer if name in self._weights else None

    def weight(self, name: str) -> Matrix:
        """Return a matrix, or a vector as a row."""
        return self._matrix(name, self._weights[name])

    def gradient(self, name: str) -> Matrix:
        """Return where its gradient goes."""
        return self._matrix(name, self._gradients[name])

    def _matrix(self, name: str, flat: Matrix) -> Matrix:
        """Read (blocks, rows, columns) as (blocks * rows, columns)."""
        columns = dict(self.key.shapes)[name][-1]
        return Matrix(flat.pointer, flat.columns // columns, columns, columns, self.size)

    def in_blocks(self, whole: Matrix) -> Matrix:
        """Return the rows of a matrix as those of as many matrices as there are blocks."""
        count = self.spec.num_blocks
        rows = whole.rows // count
        return Matrix(
            *(whole.pointer, rows, whole.columns, whole.stride, self.size),
            *(False, count, rows * whole.stride),
        )

    # State and belief between steps

    def before(self, name: str, t: int) -> Matrix:
        """Return the state or belief that step t starts from."""
        return (self.begun if self.key.episodes else self.after)[name].of(t)

    def all_before(self, name: str) -> Matrix:
        """Return those of all steps."""
        rows = (self.begun if self.key.episodes else self.after)[name]
        return rows.between(0, self.num_steps)

    def gives(self, name: str, t: int) -> tuple[Pointer, ...]:
        """Return where the state or belief after step t goes: to, begun, first, initial."""
        to = self.after[name].of(t + 1)
        if self.first is None or t + 1 == self.num_steps:
            return to, None, None, None
        return (
            *(to, self.begun[name].of(t + 1), self.first.of(t + 1)),
            self.vector(f"initial_{name}"),
        )

    def comes_back(self, name: str, t: int) -> tuple[Pointer, Pointer]:
        """Return what comes back to the state or belief after step t: its gradient, and first."""
        if t + 1 == self.num_steps:
            return None, None
        return self.d[name].of(t + 1), None if self.first is None else self.first.of(t + 1)

    def arrives(self, t: int) -> tuple[Pointer, ...]:
        """Return all that arrives at the belief after step t."""
        prior = None if self.d_prior is None else self.d_prior.of(t)
        given = self.cotangents["belief"].of(t)
        return given, self.d_head.of(t), prior, *self.comes_back("belief", t)

    # Work

    def product(self, c: Matrix, a: Matrix, b: Matrix, add: bool = False) -> None:
        """Let C = A B, or C = C + A B, follow."""
        self.section.work.append(Product(self.key.dtype, c, a, b, add))

    def launch(self, kernel: str, blocks: int, *arguments: Pointer | float) -> None:
        """Let a kernel follow."""
        if kernel not in self.functions:
            self.functions[kernel] = self.device.function(kernel, self.key.dtype)
        plain = (each.pointer if isinstance(each, Matrix) else each for each in arguments)
        self.section.work.append(Launch(self.functions[kernel], blocks, tuple(plain)))

    def each(
        self,
        kernel: str,
        shape: tuple[int, int],
        *pointers: Pointer,
        more: tuple[int | float, ...] = (),
    ) -> None:
        """Let a kernel follow that has a thread for each element."""
        self.launch(kernel, -(-math.prod(shape) // THREADS), *pointers, *shape, *more)

    def column_sums(self, name: str, rows: Matrix) -> None:
        """Let the gradient of a vector follow, if that is given: the sum of rows."""
        if name in self._gradients:
            self.product(self.gradient(name), self.ones.cut(0, rows.rows), rows)

    def begin(self, *name: Any) -> None:
        """Let a section follow."""
        self.section = self.sections[name] = Section()

    def _make_parts(self) -> None:
        observes = self.key.form == "observe"
        self.transition = make_transition(self)
        field, prefix = ("posterior", "posterior_") if observes else ("prior", "")
        self.head = Head(self, field, prefix, draws=True)
        self.prior = Head(self, "prior", "prior_", draws=False) if observes else None

    def write(self) -> None:
        """Write all sections down."""
        steps = range(self.num_steps)
        if self.hoists:
            self.begin("forward")
            self._known()
        for t in steps:
            self._step(t)
        if self.prior is not None:
            beliefs = self.after["belief"].between(1, self.num_steps + 1)
            self.prior.chain.forward(None, beliefs)
            self.prior.parameters(None)
        if not self.keep:
            return
        if self.hoists:
            self.begin("backward")
        if self.prior is not None and self.d_prior is not None:
            self.prior.parameters_backward(None)
            self.prior.chain.backward(None, None, self.d_prior.all)
        for t in reversed(steps):
            self._step_backward(t)
        if not self.hoists:
            self.begin("sums")
        self._sums()

    def _known(self) -> None:
        """Write what is known before the loop: where to begin, actions, embeddings."""
        if self.first is not None:
            for name, begun in self.begun.items():
                given, to = self.after[name].of(0), begun.of(0)
                initial = self.vector(f"initial_{name}")
                shape = (given.rows, given.columns)
                self.each("begin", shape, given, to, self.first.of(0), initial)
        self.transition.part(None)
        if self.embeds is not None:
            self.head.chain.part(None, self.embeds.all)

    def _step(self, t: int) -> None:
        if not self.hoists:
            self.begin("forward", t)
            self.transition.part(t)
        self.transition.step(t)
        self.head.chain.forward(t, self.after["belief"].of(t + 1), add=self.embeds is not None)
        self.head.parameters(t)

    def _step_backward(self, t: int) -> None:
        if not self.hoists:
            self.begin("backward", t)
        self.head.parameters_backward(t)
        self.head.chain.backward(t, None, self.d_head.of(t))
        self.transition.step_backward(t)
        if not self.hoists:
            self.transition.part_backward(t)

    def _sums(self) -> None:
        """Write what waits for no step: actions and embeddings again, and the weights."""
        beliefs = self.after["belief"].between(1, self.num_steps + 1)
        if self.hoists:
            self.transition.part_backward(None)
        self.transition.sums()
        if self.embeds is not None:
            self.head.chain.part_backward(None, self.d["embed"].all)
        self.head.chain.sums(beliefs, None if self.embeds is None else self.embeds.all)
        if self.prior is not None:
            self.prior.chain.sums(beliefs)
