"""A speaker classifier, from its data to its optimiser: an example of training with rnnop.

The network is a bidirectional GRU, the mean of its outputs over the real steps of an utterance, and
a linear layer with a softmax. The utterances of a batch have unequal lengths, stand in any order,
and are padded with NaN: what lies there reaches nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import rnnop

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]

CHANNELS, SPEAKERS = 12, 9
HIDDEN_SIZE = 32
BATCH_SIZE = 32
LEARNING_RATE = 0.01


class Utterances(NamedTuple):
    """Recordings (length, CHANNELS), their lengths and their speakers, N of each."""

    recordings: list[Floats]
    lengths: Ints
    speakers: Ints

    def pick(self, rows: Sequence[int] | Ints) -> Utterances:
        """Return some of them, in the order of `rows`."""
        recordings = [self.recordings[n] for n in rows]
        return Utterances(recordings, self.lengths[rows], self.speakers[rows])


def load() -> tuple[Utterances, Utterances]:
    """Return the utterances to learn from and those to test on.

    Each channel has mean 0 and variance 1 over the utterances to learn from.
    """
    file = resources.files("rnnop") / "data" / "japanese_vowels.npz"
    with file.open("rb") as stream, np.load(stream) as stored:
        arrays: dict[str, npt.NDArray[Any]] = dict(stored)
    mean, deviation = arrays["train_x"].mean(axis=0), arrays["train_x"].std(axis=0)

    def part(name: str) -> Utterances:
        lengths = arrays[f"{name}_lengths"].astype(np.int64)
        steps = (arrays[f"{name}_x"] - mean) / deviation
        recordings = np.split(steps, np.cumsum(lengths)[:-1])
        return Utterances(recordings, lengths, arrays[f"{name}_y"].astype(np.int64))

    return part("train"), part("test")


def pad(recordings: Sequence[Floats], num_steps: int | None = None) -> Floats:
    """Return recordings side by side, (T, N, CHANNELS), with NaN where one has ended.

    T is `num_steps`, by default that of the longest recording.
    """
    num_steps = num_steps or max(map(len, recordings))
    x = np.full((num_steps, len(recordings), CHANNELS), np.nan, recordings[0].dtype)
    for n, recording in enumerate(recordings):
        x[: len(recording), n] = recording
    return x


class Model(NamedTuple):
    """The parameters: of the recurrent network, and of the linear layer on top of it.

    `head` is (SPEAKERS, 2 * HIDDEN_SIZE), `bias` is (SPEAKERS,).
    """

    rnn: rnnop.RNNWeights
    head: Floats
    bias: Floats

    def arrays(self) -> list[Floats]:
        """Return every array of parameters."""
        return [*(array for _, array in self.rnn.named()), self.head, self.bias]


def init_model(seed: int) -> Model:
    """Draw the parameters of the recurrent network; those of the linear layer start at 0."""
    weights = rnnop.init_weights(
        "gru", input_size=CHANNELS, hidden_size=HIDDEN_SIZE, bidirectional=True, seed=seed
    )
    head = np.zeros((SPEAKERS, 2 * HIDDEN_SIZE), np.float32)
    return Model(weights, head, np.zeros(SPEAKERS, np.float32))


def predict(model: Model, batch: Utterances) -> Ints:
    """Return the likeliest speaker of each utterance."""
    out = rnnop.rnn(pad(batch.recordings), model.rnn, lengths=batch.lengths, mode="gru")
    speakers: Ints = _logits(model, _mean(out.y, batch.lengths)).argmax(axis=1)
    return speakers


def loss_and_gradients(model: Model, batch: Utterances) -> tuple[float, Model]:
    """Return the mean cross-entropy of a batch, and its gradient for every parameter."""
    out, vjp = rnnop.rnn_vjp(pad(batch.recordings), model.rnn, lengths=batch.lengths, mode="gru")
    features = _mean(out.y, batch.lengths)
    loss, dlogits = cross_entropy(_logits(model, features), batch.speakers)
    dfeatures = dlogits @ model.head
    # Every step of an utterance has the same share. Beyond its end the value does not matter.
    dy = np.broadcast_to(dfeatures / _column(batch.lengths), out.y.shape)
    return loss, Model(vjp(dy).weights, head=dlogits.T @ features, bias=dlogits.sum(axis=0))


def cross_entropy(logits: Floats, speakers: Ints) -> tuple[float, Floats]:
    """Return the mean of -log softmax(logits)[speaker], and its gradient for the logits."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_softmax = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    rows = np.arange(len(speakers))
    dlogits = np.exp(log_softmax)
    dlogits[rows, speakers] -= 1.0
    return float(-log_softmax[rows, speakers].mean()), dlogits / len(speakers)


def _mean(y: Floats, lengths: Ints) -> Floats:
    """Return the mean of y (T, N, F) over the real steps, (N, F). Beyond a row's end y is 0."""
    mean: Floats = y.sum(axis=0) / _column(lengths)
    return mean


def _logits(model: Model, features: Floats) -> Floats:
    return features @ model.head.T + model.bias


def _column(lengths: Ints) -> Floats:
    return lengths[:, None].astype(np.float32)


class Adam:
    """The optimiser of Kingma and Ba, which changes the parameters in place."""

    def __init__(self, parameters: list[Floats], learning_rate: float) -> None:
        self.parameters = parameters
        self.learning_rate = learning_rate
        self.steps = 0
        self.moments = [(np.zeros_like(p), np.zeros_like(p)) for p in parameters]

    def step(self, gradients: list[Floats]) -> None:
        """Go one step down the gradients."""
        self.steps += 1
        # Both moments start at 0: this is what makes up for it.
        scale = np.sqrt(1.0 - 0.999**self.steps) / (1.0 - 0.9**self.steps)
        for p, g, (mean, square) in zip(self.parameters, gradients, self.moments, strict=True):
            mean += 0.1 * (g - mean)
            square += 0.001 * (g * g - square)
            p -= self.learning_rate * scale * mean / (np.sqrt(square) + 1e-8)


class Epoch(NamedTuple):
    """What an epoch came to: the mean loss of its batches, the share of right answers after it."""

    loss: float
    training_accuracy: float
    test_accuracy: float


def train(
    model: Model, data: Utterances, test: Utterances, epochs: int, seed: int
) -> Iterator[Epoch]:
    """Train a model in place, epoch after epoch, on batches drawn anew for each."""
    generator = np.random.default_rng(seed)
    adam = Adam(model.arrays(), LEARNING_RATE)
    for _ in range(epochs):
        order = generator.permutation(len(data.lengths))
        losses = []
        for rows in np.split(order, range(BATCH_SIZE, len(order), BATCH_SIZE)):
            loss, gradients = loss_and_gradients(model, data.pick(rows))
            adam.step(gradients.arrays())
            losses.append(loss)
        yield Epoch(float(np.mean(losses)), accuracy(model, data), accuracy(model, test))


def accuracy(model: Model, data: Utterances) -> float:
    """Return the share of utterances whose speaker is found."""
    return float(np.mean(predict(model, data) == data.speakers))


def padding_difference(model: Model, batch: Utterances, num_steps: int) -> float:
    """Return how far more padding changes outputs and gradients: it should be exactly 0.

    The batch runs as it is, and with NaN up to `num_steps` in x and in the cotangent of y. The
    cotangents are no gradients of anything; they only differ from step to step.
    """
    longest = int(batch.lengths.max())
    results = []
    for steps in (longest, num_steps):
        x = pad(batch.recordings, steps)
        out, vjp = rnnop.rnn_vjp(x, model.rnn, lengths=batch.lengths, mode="gru")
        dy = np.where(np.isnan(x[:, :, :1]), x[:, :, :1], np.cos(out.y))
        grads = vjp(dy, dh_n=np.sin(out.h_n))
        weights = [array for _, array in grads.weights.named()]
        results.append([out.y[:longest], out.h_n, grads.x[:longest], grads.h0, *weights])
    return float(np.max([np.abs(a - b).max() for a, b in zip(*results, strict=True)]))
