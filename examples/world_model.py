"""Learn a world model of a pendulum, and let it predict 50 steps with its eyes closed.

Episodes of gymnasium's Pendulum-v1, of unequal length, stand one after another in a stream. A batch
is windows of it, with `is_first` where an episode begins. A Gaussian RSSM learns from them through
rnnop.rssm.observe_vjp; all else is NumPy. Of episodes that it has not seen it then watches 20
steps, and rnnop.rssm.rollout predicts the next 50 from their torques alone. A plot is written as
PNG. Errors are in standard deviations of the observations.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt
from tqdm import tqdm

import rnnop
from rnnop import rssm

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array: TypeAlias = npt.NDArray[np.floating[Any]]
Bools: TypeAlias = npt.NDArray[np.bool_]
Random: TypeAlias = np.random.Generator

CONTEXT, HORIZON = 20, 50  # steps that the model watches, and that it then predicts
SHORTEST, LONGEST = 60, 200  # episodes
TEST_EPISODES = 40
SAMPLES = 50  # futures drawn for each prediction
BAND = 0.9  # share of them in the band of the plot

STEPS, ROWS = 50, 32  # of a batch
LEARNING_RATE = 3e-3  # at first; it falls to 0
NOISE = 0.05  # standard deviation of an observation around what is decoded

OBSERVATION_SIZE = 3  # cos(angle), sin(angle), velocity
SIZES = {"state_size": 6, "action_size": 1, "embed_size": 32}


# The episodes


class Stream(NamedTuple):
    """Steps of episodes one after another, (M, .); or windows of such a stream, (T, N, .).

    An action is the torque that led to its observation. The first of an episode has none: 0.
    """

    observations: Array
    actions: Array
    is_first: Bools

    def windows(self, starts: npt.ArrayLike, steps: int) -> Stream:
        """Return the windows that begin at `starts`, time-major."""
        index = np.arange(steps)[:, None] + np.asarray(starts)
        return Stream._make(array[index] for array in self)

    def steps(self, which: slice) -> Stream:
        """Return some of the steps."""
        return Stream._make(array[which] for array in self)


class Scale(NamedTuple):
    """Mean and standard deviation of each number of an observation."""

    mean: Array
    deviation: Array

    def standardised(self, stream: Stream) -> Stream:
        """Return the stream with observations of mean 0 and deviation 1."""
        return stream._replace(observations=(stream.observations - self.mean) / self.deviation)

    def undo(self, observations: Array) -> Array:
        """Return standardised observations in their own units."""
        return observations * self.deviation + self.mean


def collect(lengths: Iterable[int], rng: Random) -> Stream:
    """Play episodes of these lengths, with the `POLICIES` in turn."""
    env = gymnasium.make("Pendulum-v1", max_episode_steps=LONGEST)
    steps = []
    for length, act in zip(lengths, cycle(POLICIES.values())):
        observation, _ = env.reset(seed=int(rng.integers(2**31)))
        action = np.zeros(1, np.float32)
        for step in range(length):
            steps.append((observation, action, step == 0))
            action = act(rng, observation, action)
            observation = env.step(action)[0]
    env.close()
    return Stream(*(np.array(column) for column in zip(*steps, strict=True)))


def random_torque(rng: Random, observation: Array, last: Array) -> Array:
    """Keep a torque for five steps or so, then draw another."""
    return last if rng.random() < 0.8 else rng.uniform(-2, 2, 1).astype(np.float32)


def swing_up(rng: Random, observation: Array, last: Array) -> Array:
    """Pump energy into the pendulum until it is almost upright, and hold it there, with a tremor.

    Its acceleration is 15 sin(angle) + 3 torque, so that its energy is velocity^2 / 2 + 15
    cos(angle), which is 15 where it stands upright.
    """
    cos, sin, velocity = observation
    if cos > 0.9 and abs(velocity) < 2:
        torque = -10 * sin - 2 * velocity
    else:
        torque = (15 - 15 * cos - velocity**2 / 2) * velocity
    noisy: Array = np.clip([torque + rng.normal()], -2, 2).astype(np.float32)
    return noisy


POLICIES = {"swing-up": swing_up, "random torques": random_torque}


# The model


class MLP(NamedTuple):
    """Two layers, y = w_out elu(w_in x + b_in) + b_out."""

    w_in: Array
    b_in: Array
    w_out: Array
    b_out: Array


class Model(NamedTuple):
    """The RSSM between an encoder of observations and a decoder of (state, belief)."""

    rssm: rssm.RSSMWeights
    encoder: MLP
    decoder: MLP

    def arrays(self) -> list[Array]:
        """Return every array of parameters."""
        return [*(array for _, array in self.rssm.named()), *self.encoder, *self.decoder]


def init_model(hidden: int, seed: int) -> Model:
    """Draw the parameters of a model whose belief and hidden layers have this size."""
    spec = rssm.RSSMSpec.of("dreamer_v1", belief_size=hidden, hidden_size=hidden, **SIZES)
    rng = np.random.default_rng(seed)
    encoder = init_mlp(rng, OBSERVATION_SIZE, hidden, spec.embed_size)
    decoder = init_mlp(rng, spec.state_size + hidden, hidden, OBSERVATION_SIZE)
    return Model(rssm.init_weights(spec, seed=seed), encoder, decoder)


def init_mlp(rng: Random, inputs: int, hidden: int, outputs: int) -> MLP:
    """Draw matrices with variance 1 / (size of what they read)."""
    w_in, w_out = (
        rng.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)
        for rows, columns in ((hidden, inputs), (outputs, hidden))
    )
    return MLP(w_in, np.zeros(hidden, np.float32), w_out, np.zeros(outputs, np.float32))


def mlp_vjp(weights: MLP, x: Array) -> tuple[Array, Callable[[Any], tuple[Array, MLP]]]:
    """Return y (..., outputs), and a function from dy to the gradients of x and of the weights."""
    rows = x.reshape(-1, x.shape[-1])
    a = rows @ weights.w_in.T + weights.b_in
    hidden = np.where(a > 0, a, np.expm1(np.minimum(a, 0)))
    y = hidden @ weights.w_out.T + weights.b_out

    def vjp(dy: Any) -> tuple[Array, MLP]:
        dy = dy.reshape(y.shape)
        da = (dy @ weights.w_out) * np.where(a > 0, 1, hidden + 1)  # elu' is elu + 1 below 0
        dweights = MLP(da.T @ rows, da.sum(axis=0), dy.T @ hidden, dy.sum(axis=0))
        return (da @ weights.w_in).reshape(x.shape), dweights

    return y.reshape(*x.shape[:-1], -1), vjp


# Its loss


class Loss(NamedTuple):
    """The mean over all steps: -log p(observation), up to a constant, and the divergence."""

    reconstruction: float
    kl: float


def loss_and_gradients(model: Model, batch: Stream, noise: Array) -> tuple[Loss, Model]:
    """Return the loss of a batch, and the gradient of its sum for every parameter.

    `noise` (T, N, S), standard normal, draws the states.
    """
    embeds, encoder_vjp = mlp_vjp(model.encoder, batch.observations)
    out, rssm_vjp = rssm.observe_vjp(
        model.rssm, None, None, batch.actions, embeds, batch.is_first, noise
    )
    decoded, decoder_vjp = mlp_vjp(model.decoder, features(out.state, out.belief))
    error = (decoded - batch.observations) / NOISE
    reconstruction = 0.5 * (error**2).sum(axis=-1)
    divergence, kl_vjp = gaussian_kl_vjp(*out[:4])

    share = 1 / reconstruction.size  # of each step in the mean
    dfeatures, ddecoder = decoder_vjp(share / NOISE * error)
    dstate, dbelief = np.split(dfeatures, [out.state.shape[-1]], axis=-1)
    grads = rssm_vjp(*kl_vjp(share), dstate, dbelief)
    _, dencoder = encoder_vjp(grads.embeds)
    loss = Loss(float(reconstruction.mean()), float(divergence.mean()))
    return loss, Model(grads.weights, dencoder, ddecoder)


def features(state: Array, belief: Array) -> Array:
    """Return what the decoder reads."""
    return np.concatenate([state, belief], axis=-1)


def gaussian_kl_vjp(
    prior_mean: Array, prior_std: Array, mean: Array, std: Array
) -> tuple[Array, Callable[[float], tuple[Array, ...]]]:
    """Return KL(posterior || prior) of every step, and its vjp to all four, in their order.

    log(s_p / s) + (s^2 + (m - m_p)^2) / (2 s_p^2) - 1/2, summed over the state.
    """
    distance, ratio = (mean - prior_mean) / prior_std, std / prior_std
    kl = (0.5 * (ratio**2 + distance**2 - 1) - np.log(ratio)).sum(axis=-1)

    def vjp(dkl: float) -> tuple[Array, ...]:
        d = dkl / prior_std
        dmean = d * distance
        return -dmean, d * (1 - ratio**2 - distance**2), dmean, d * (ratio - 1 / ratio)

    return kl, vjp


# Its training


class Adam:
    """The optimiser of Kingma and Ba, which changes the parameters in place."""

    def __init__(self, parameters: list[Array]) -> None:
        self.parameters = parameters
        self.steps = 0
        self.moments = [(np.zeros_like(p), np.zeros_like(p)) for p in parameters]

    def step(self, gradients: list[Array], rate: float) -> None:
        """Go one step down the gradients."""
        self.steps += 1
        # Both moments start at 0: this is what makes up for it.
        rate *= (1 - 0.999**self.steps) ** 0.5 / (1 - 0.9**self.steps)
        for p, g, (mean, square) in zip(self.parameters, gradients, self.moments, strict=True):
            mean += 0.1 * (g - mean)
            square += 0.001 * (g * g - square)
            p -= rate * mean / (np.sqrt(square) + 1e-8)


def train(model: Model, stream: Stream, updates: int, rng: Random) -> Iterator[Loss]:
    """Train a model in place, and yield the loss of each update."""
    adam = Adam(model.arrays())
    noise_shape = (STEPS, ROWS, model.rssm.spec.state_size)
    for update in range(updates):
        starts = rng.integers(0, len(stream.is_first) - STEPS, ROWS, endpoint=True)
        noise = rng.standard_normal(noise_shape, np.float32)
        loss, gradients = loss_and_gradients(model, stream.windows(starts, STEPS), noise)
        adam.step(gradients.arrays(), LEARNING_RATE * (1 - update / updates))
        yield loss


def shown(losses: Iterator[Loss], total: int) -> Iterator[Loss]:
    """Show the losses as they pass by: a bar on a terminal, else ten lines, on stderr."""
    with tqdm(total=total, unit="update", disable=not sys.stderr.isatty()) as bar:
        for number, loss in enumerate(losses, start=1):
            if number % max(1, total // 10) == 0:
                text = f"reconstruction {loss.reconstruction:.3f}, KL {loss.kl:.3f}"
                bar.set_postfix_str(text, refresh=False)
                if bar.disable:
                    print(f"update {number:{len(str(total))}}/{total}  {text}", file=sys.stderr)
            bar.update()
            yield loss


# Its predictions


class Forecast(NamedTuple):
    """What was seen (CONTEXT, N, .), what came (HORIZON, N, .), what may come by the model.

    `samples` are (HORIZON, N, SAMPLES, .).
    """

    seen: Array
    truth: Array
    samples: Array

    def band(self) -> tuple[Array, Array]:
        """Return the bounds of the band that holds the middle `BAND` of the samples."""
        low, high = np.quantile(self.samples, [(1 - BAND) / 2, (1 + BAND) / 2], axis=2)
        return low, high

    def inside(self) -> Array:
        """Return the share of the truth that lies in the band, by steps ahead."""
        low, high = self.band()
        share: Array = ((low < self.truth) & (self.truth < high)).mean(axis=(1, 2))
        return share

    def errors(self) -> dict[str, Array]:
        """Return the RMS error of the model, of the last value and of the mean, by steps ahead."""
        guesses = {
            "model": self.samples.mean(axis=2),
            "last_value": self.seen[-1],
            "mean": np.zeros(OBSERVATION_SIZE),  # observations are standardised
        }
        return {
            name: np.sqrt(((guess - self.truth) ** 2).mean(axis=(1, 2)))
            for name, guess in guesses.items()
        }


def forecast(model: Model, windows: Stream, seed: int) -> Forecast:
    """Watch the first steps of windows, and predict the others from their actions alone.

    Every sample draws its own states, while it watches and after it, and its own noise around what
    it decodes.
    """

    def repeated(array: Array) -> Array:
        return np.repeat(array, SAMPLES, axis=1)

    seen, future = windows.steps(slice(CONTEXT)), windows.steps(slice(CONTEXT, None))
    embeds, _ = mlp_vjp(model.encoder, seen.observations)
    # No is_first: a window begins anywhere in its episode, and does not reach into the next.
    known = rssm.observe(
        model.rssm, None, None, repeated(seen.actions), repeated(embeds), seed=seed
    )
    out = rssm.rollout(
        model.rssm, known.state[-1], known.belief[-1], repeated(future.actions), seed=seed + 1
    )
    decoded, _ = mlp_vjp(model.decoder, features(out.state, out.belief))
    samples = decoded + np.random.default_rng(seed).normal(0, NOISE, decoded.shape)
    shape = (*future.observations.shape[:2], SAMPLES, OBSERVATION_SIZE)
    return Forecast(seen.observations, future.observations, samples.reshape(shape))


# The plot

# Three of the colours of Okabe and Ito, which most people can tell apart.
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"


def draw(path: Path, title: str, losses: Sequence[Loss], result: Forecast, scale: Scale) -> None:
    """Write a PNG: three predictions against the truth, and how good all of them are."""
    from matplotlib.figure import Figure  # without pyplot: no window, no global state

    figure = Figure(figsize=(11, 8), dpi=100, layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(3, 3)
    low, high = result.band()
    curves = [scale.undo(each) for each in (result.samples.mean(axis=2), low, high)]
    truth = scale.undo(np.concatenate([result.seen, result.truth]))
    for row, (channel, name) in enumerate({0: "cos(angle)", 2: "velocity (rad/s)"}.items()):
        for n in range(3):
            draw_window(axes[row, n], truth[:, n, channel], *(c[:, n, channel] for c in curves))
            axes[row, n].sharey(axes[row, 0])
        axes[row, 0].set_ylabel(name)
    for column, policy in zip(axes[0], cycle(POLICIES)):
        column.set_title(policy)
    axes[0, 0].legend(loc="lower left", fontsize="small")
    draw_errors(axes[2, 0], result.errors())
    draw_inside(axes[2, 1], result.inside())
    draw_losses(axes[2, 2], losses)
    for each in axes.flat:
        each.grid(alpha=0.3)
        each.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="png")


def draw_window(axes: Axes, truth: Array, mean: Array, low: Array, high: Array) -> None:
    """Draw what came, and from the last step that was seen on what was predicted."""
    ahead = np.arange(1, HORIZON + 1)
    axes.axvspan(1 - CONTEXT, 0, color="0.93")
    label = f"{100 * BAND:.0f} % of samples"
    axes.fill_between(ahead, low, high, color=BLUE, alpha=0.25, linewidth=0, label=label)
    axes.plot(ahead, mean, color=BLUE, label="their mean")
    axes.plot(np.arange(1 - CONTEXT, HORIZON + 1), truth, "k--", linewidth=1, label="truth")
    axes.set(xlabel="steps ahead")


def draw_errors(axes: Axes, errors: dict[str, Array]) -> None:
    """Draw the errors by how far ahead they are."""
    for (name, error), color in zip(errors.items(), (BLUE, ORANGE, GREEN), strict=True):
        axes.plot(np.arange(1, HORIZON + 1), error, color=color, label=name.replace("_", " "))
    above = 1.3 * max(error.max() for error in errors.values())  # room for the legend
    axes.set(title="RMS error", xlabel="steps ahead", ylabel="standard deviations", ylim=(0, above))
    axes.legend(loc="upper center", ncols=3, fontsize="small")


def draw_inside(axes: Axes, inside: Array) -> None:
    """Draw how much of the truth is in the band, by how far ahead it is."""
    axes.plot(np.arange(1, HORIZON + 1), 100 * inside, color=BLUE)
    axes.axhline(100 * BAND, color="k", linestyle="--", linewidth=1)
    axes.set(title="Truth within the band", xlabel="steps ahead", ylabel="%", ylim=(0, 100))


def draw_losses(axes: Axes, losses: Sequence[Loss]) -> None:
    """Draw both parts of the loss by update."""
    for part, color in zip(zip(*losses, strict=True), (BLUE, ORANGE), strict=True):
        axes.semilogy(range(1, len(losses) + 1), part, color=color, linewidth=0.8)
    axes.legend(["reconstruction", "KL"], fontsize="small")
    axes.set(title="Loss", xlabel="update", ylabel="per step (nats)")


# The command


def main(arguments: Sequence[str] | None = None) -> None:
    """Collect, train, predict, draw and report."""
    options = parse(arguments)
    rng = np.random.default_rng(options.seed)
    stream = collect(rng.integers(SHORTEST, LONGEST, options.episodes, endpoint=True), rng)
    test = collect([LONGEST] * TEST_EPISODES, rng)
    starts = rng.integers(0, LONGEST - CONTEXT - HORIZON, TEST_EPISODES, endpoint=True)
    windows = test.windows(np.flatnonzero(test.is_first) + starts, CONTEXT + HORIZON)
    scale = Scale(stream.observations.mean(axis=0), stream.observations.std(axis=0))
    model = init_model(options.hidden, options.seed)

    start = time.perf_counter()
    updates = train(model, scale.standardised(stream), options.updates, rng)
    losses = list(shown(updates, options.updates))
    seconds = time.perf_counter() - start

    result = forecast(model, scale.standardised(windows), options.seed)
    errors = {name: float(np.sqrt((e**2).mean())) for name, e in result.errors().items()}
    report = {
        "rnnop": rnnop.__version__,
        "network": str(model.rssm.spec),
        "parameters": sum(array.size for array in model.arrays()),
        "episodes": options.episodes,
        "steps": len(stream.is_first),
        "updates": options.updates,
        "seed": options.seed,
        "seconds": round(seconds, 3),
        "loss": losses[-1]._asdict(),
        "error": errors,
        "inside_band": float(result.inside().mean()),
        "plot": str(options.output),
    }
    title = f"Pendulum-v1, {HORIZON} steps open loop: {model.rssm.spec}"
    draw(options.output, title, losses, result, scale)
    print(json.dumps(report) if options.json else text(report))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    numbers = {
        "updates": (1000, "of the weights"),
        "episodes": (100, "to learn from"),
        "hidden": (64, "size of the belief and of every hidden layer"),
        "seed": (0, "of everything that is drawn"),
    }
    for name, (default, what) in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what}; %(default)s")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("world-model.png"),
        metavar="PATH.png",
        help="where the plot is written; %(default)s",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args(arguments)
    for name in ("updates", "episodes", "hidden"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; expected at least 1")
    if options.seed < 0:
        parser.error(f"--seed is {options.seed}; expected at least 0")
    if options.output.suffix != ".png" or not options.output.parent.is_dir():
        parser.error(f"--output is {options.output}; expected a .png in a folder that is there")
    return options


def text(report: dict[str, Any]) -> str:
    """Return the report for people."""
    error = report["error"]
    return "\n".join(
        [
            f"episodes       {report['episodes']}, {report['steps']:,} steps",
            f"network        {report['network']}, {report['parameters']:,} parameters in all",
            f"training       {report['updates']} updates, {report['seconds']:.1f} s",
            f"error          {error['model']:.3f} over {HORIZON} steps "
            f"(last value {error['last_value']:.3f}, mean {error['mean']:.3f})",
            f"inside band    {100 * report['inside_band']:.0f} % (of {100 * BAND:.0f} %)",
            f"plot           {report['plot']}",
        ]
    )


if __name__ == "__main__":
    main()
