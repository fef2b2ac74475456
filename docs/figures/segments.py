"""A ragged batch, its segments and their packed order, by the plan of rnnop."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyArrowPatch, Rectangle

from rnnop.ragged import make_plan

# The batch of the page: a letter is a real step, a dot a masked one.
BATCH = ["ab.c.", ".....", ".de.f", "gh.ij"]
RESET_AT = (2, 2)  # row, step

COLOURS = ["#9ecae9", "#ffcb8f", "#a8dba0", "#e2b8e6"]  # of segments 0, 1, 2, ...
INK, FAINT, RESET = "#222222", "#8a8a8a", "#c62828"

letters = np.array([list(row) for row in BATCH]).T  # (T, N)
resets = np.zeros(letters.shape, bool)
resets[RESET_AT[::-1]] = True
plan = make_plan(*letters.shape, mask=letters != ".", resets=resets)

figure, axes = plt.subplots(figsize=(8.4, 5), layout="constrained")
axes.set_aspect("equal")
axes.axis("off")


def text(x, y, words, **options):
    """Write at a place, small and in the middle unless told otherwise."""
    options = {
        "ha": "center",
        "va": "center",
        "fontsize": 11,
        "color": INK,
    } | options
    axes.text(x, y, words, **options)


def cell(x, y, letter, segment=None):
    """Draw one step: coloured by its segment, or blank when it is masked."""
    face = "white" if segment is None else COLOURS[segment]
    edge = "#cccccc" if segment is None else "#666666"
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=face, edgecolor=edge))
    colour = FAINT if segment is None else INK
    text(x + 0.5, y + 0.5, letter, fontsize=13, color=colour)


def head(left, width, title, label):
    """Write a title over columns, and their numbers."""
    text(left + width / 2, num_rows + 1.3, title, fontsize=13, weight="bold")
    text(left - 0.25, num_rows + 0.4, label, ha="right", color=FAINT)
    for k in range(width):
        text(left + k + 0.5, num_rows + 0.4, k, color=FAINT)


# Left: the batch as it is given. A segment has the same place in each of its steps.
segment_of = np.concatenate([np.arange(n) for n in plan.batch_sizes])
num_steps, num_rows = letters.shape
head(0, num_steps, "the batch", "step")
for n in range(num_rows):
    y = num_rows - 1 - n
    text(-0.25, y + 0.5, f"row {n}", ha="right", color=FAINT)
    for t in range(num_steps):
        position = plan.positions[t, n]
        cell(t, y, letters[t, n], None if position < 0 else segment_of[position])
for t, n in np.argwhere(resets):
    y = num_rows - 1 - n
    axes.plot([t, t], [y + 0.05, y + 0.95], color=RESET, linewidth=4)
axes.plot([0.15, 0.15], [-0.85, -0.15], color=RESET, linewidth=4)
text(0.45, -0.5, "a reset", ha="left", color=FAINT)

# Right: its segments, longest first.
left = num_steps + 4
longest = len(plan.batch_sizes)
middle = num_rows / 2
arrow = FancyArrowPatch(
    (num_steps + 0.4, middle),
    (left - 1.9, middle),
    color=FAINT,
    arrowstyle="-|>",
    mutation_scale=16,
)
axes.add_patch(arrow)
head(left, longest, "its segments", "step")
packed = letters.ravel()[plan.steps]
for s in range(plan.num_segments):
    y = num_rows - 1 - s
    text(left - 0.25, y + 0.5, f"of row {plan.rows[s]}", ha="right", color=FAINT)
    for k in range(plan.lengths[s]):
        cell(left + k, y, packed[plan.offsets[k] + s], s)
text(left - 0.25, -0.5, "batch size", ha="right", color=FAINT)
for k, count in enumerate(plan.batch_sizes):
    text(left + k + 0.5, -0.5, count)

# Below: the same steps in packed order, step after step.
left, y = 1.5, -3.2
text(left - 0.3, y + 0.5, "packed", ha="right", fontsize=13, weight="bold")
for position, letter in enumerate(packed):
    cell(left + position, y, letter, segment_of[position])
for k, (begin, count) in enumerate(
    zip(plan.offsets, plan.batch_sizes, strict=True)
):
    a, b = left + begin + 0.08, left + begin + count - 0.08
    axes.plot([a, a, b, b], [y - 0.1, y - 0.25, y - 0.25, y - 0.1], color=FAINT)
    text((a + b) / 2, y - 0.65, f"step {k}" if count > 1 else k, color=FAINT)

axes.set_xlim(-1.5, num_steps + 4 + longest + 0.1)
axes.set_ylim(-4.2, num_rows + 1.7)
