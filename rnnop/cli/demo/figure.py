"""The plot of the demo."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .classifier import SPEAKERS, Epoch, Ints

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Two of the colours of Okabe and Ito, which most people can tell apart.
TRAIN, TEST = "#0072B2", "#D55E00"


def draw(
    path: Path, title: str, history: Sequence[Epoch], lengths: tuple[Ints, Ints], confusion: Ints
) -> None:
    """Write a PNG with the loss, the accuracy, the lengths and who was taken for whom.

    `lengths` are those of training and of test; `confusion` counts (speaker, answer).
    """
    from matplotlib.figure import Figure  # without pyplot: no window, no global state

    figure = Figure(figsize=(10.0, 7.5), dpi=120, layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(2, 2)
    _loss(axes[0, 0], history)
    _accuracy(axes[0, 1], history)
    _lengths(axes[1, 0], lengths)
    _confusion(axes[1, 1], confusion)
    figure.savefig(path, format="png")


def _loss(axes: Axes, history: Sequence[Epoch]) -> None:
    axes.semilogy(range(1, len(history) + 1), [epoch.loss for epoch in history], ".-", color=TRAIN)
    axes.set(title="Loss", xlabel="epoch", ylabel="mean cross-entropy")
    _quiet(axes)


def _accuracy(axes: Axes, history: Sequence[Epoch]) -> None:
    epochs = range(1, len(history) + 1)
    for label, color in (("training", TRAIN), ("test", TEST)):
        percent = [100.0 * getattr(epoch, f"{label}_accuracy") for epoch in history]
        axes.plot(epochs, percent, ".-", color=color, label=label)
    axes.set(title="Accuracy", xlabel="epoch", ylabel="right answers (%)")
    axes.legend(loc="lower right", frameon=False)
    _quiet(axes)


def _lengths(axes: Axes, lengths: tuple[Ints, Ints]) -> None:
    longest = max(int(each.max()) for each in lengths)
    shortest = min(int(each.min()) for each in lengths)
    bins = [steps - 0.5 for steps in range(shortest, longest + 2)]
    axes.hist(lengths, bins=bins, color=[TRAIN, TEST], label=["training", "test"])
    axes.set(title="Lengths", xlabel="steps of an utterance", ylabel="utterances")
    axes.legend(loc="upper right", frameon=False)
    _quiet(axes)


def _confusion(axes: Axes, confusion: Ints) -> None:
    share = confusion / confusion.sum(axis=1, keepdims=True)
    axes.imshow(share, cmap="Blues", vmin=0.0, vmax=1.0)
    for speaker, answer in np.argwhere(confusion):
        colour = "white" if share[speaker, answer] > 0.5 else "black"
        count = str(confusion[speaker, answer])
        axes.text(answer, speaker, count, ha="center", va="center", color=colour, fontsize=9)
    names = [str(speaker) for speaker in range(1, SPEAKERS + 1)]
    axes.set_xticks(range(SPEAKERS), names)
    axes.set_yticks(range(SPEAKERS), names)
    axes.set(title="Who was taken for whom (test)", xlabel="answer", ylabel="speaker")


def _quiet(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
