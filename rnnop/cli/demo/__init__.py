"""Train a speaker classifier on real utterances of unequal length.

A bidirectional GRU of 32 units learns, through rnnop.rnn_vjp and a small Adam, to tell nine
speakers apart. The accuracy is that on utterances it has not seen. A plot is written as PNG.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import rnnop

from ..extras import require
from ..progress import progress
from . import figure
from .classifier import (
    BATCH_SIZE,
    SPEAKERS,
    Epoch,
    Utterances,
    init_model,
    load,
    pad,
    padding_difference,
    predict,
    train,
)

PADDED_TO = 29  # steps of the longest utterance of all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--epochs", type=_from(1), default=60, help="default: %(default)s")
    parser.add_argument(
        "--seed",
        type=_from(0),
        default=0,
        help="of the weights and of the order of the utterances; default: %(default)s",
    )
    parser.add_argument(
        "--output",
        type=_png,
        default="rnnop-demo.png",
        metavar="PATH.png",
        help="where the plot is written; default: %(default)s",
    )


def run(options: argparse.Namespace) -> None:
    """Train, test, draw and report."""
    require("demo", "matplotlib", "tqdm")
    training, test = load()
    model = init_model(options.seed)
    some = training.pick(range(0, len(training.lengths), len(training.lengths) // BATCH_SIZE))
    how = rnnop.explain(pad(some.recordings), model.rnn, lengths=some.lengths, mode="gru")
    if not options.json:
        print(_what(training, test))
        print(f"network        {how.spec}, on backend {how.backend}")

    start = time.perf_counter()
    epochs = train(model, training, test, options.epochs, options.seed)
    history = list(_shown(epochs, options.epochs))
    seconds = time.perf_counter() - start

    result = {
        "rnnop": rnnop.__version__,
        "backend": how.backend,
        "network": str(how.spec),
        "parameters": sum(array.size for array in model.arrays()),
        "epochs": options.epochs,
        "seed": options.seed,
        "seconds": round(seconds, 3),
        "training_accuracy": history[-1].training_accuracy,
        "test_accuracy": history[-1].test_accuracy,
        "padding": {
            "steps": [int(some.lengths.max()), PADDED_TO],
            "largest_difference": padding_difference(model, some, PADDED_TO),
        },
        "plot": str(options.output),
        "history": [epoch._asdict() for epoch in history],
    }
    title = f"Japanese Vowels, {how.spec}: {100 * history[-1].test_accuracy:.1f} % right"
    confusion = np.zeros((SPEAKERS, SPEAKERS), np.int64)
    np.add.at(confusion, (test.speakers, predict(model, test)), 1)
    figure.draw(options.output, title, history, (training.lengths, test.lengths), confusion)
    print(json.dumps(result) if options.json else _text(result))


def _what(training: Utterances, test: Utterances) -> str:
    lengths = np.concatenate([training.lengths, test.lengths])
    return (
        f"utterances     {len(training.lengths)} to learn from, {len(test.lengths)} to test on, "
        f"{SPEAKERS} speakers, {lengths.min()} to {lengths.max()} steps"
    )


def _text(result: dict[str, Any]) -> str:
    padding = result["padding"]
    return "\n".join(
        [
            f"test accuracy  {100 * result['test_accuracy']:.1f} % "
            f"(training {100 * result['training_accuracy']:.1f} %)",
            f"time           {result['seconds']:.1f} s, epochs: {result['epochs']}",
            f"padding        a batch of {padding['steps'][0]} steps, padded with NaN to "
            f"{padding['steps'][1]}: outputs and gradients differ by "
            f"{padding['largest_difference']:g}",
            f"plot           {result['plot']}",
        ]
    )


def _shown(epochs: Iterator[Epoch], total: int) -> Iterator[Epoch]:
    """Show each epoch as it passes by."""
    with progress(total, "epoch") as show:
        for epoch in epochs:
            show(f"loss {epoch.loss:.4f}, test {100 * epoch.test_accuracy:.1f} %")
            yield epoch


def _from(least: int) -> Callable[[str], int]:
    """Return a reader of integers from `least` on."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer from {least} on")
        return value

    return read


def _png(text: str) -> Path:
    """Return a path that a PNG can be written to."""
    path = Path(text)
    if path.suffix.lower() != ".png":
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .png")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written to")
    return path
