"""Train a speaker classifier on several processes, each with its share of every batch.

The network is `rnnop.torch.LSTM`, in both directions, and a linear layer on its final states. It is
wrapped in torch's DistributedDataParallel: each process computes the gradients of its own rows, and
gloo averages them. The utterances have unequal lengths and are neither sorted nor packed. The
result is that of one process, but for rounding.

    python examples/ddp.py --processes 2
"""

from __future__ import annotations

import argparse
import tempfile
from importlib import resources
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import rnnop.torch

CHANNELS, SPEAKERS, HIDDEN_SIZE, BATCH_SIZE = 12, 9, 24, 32


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = rnnop.torch.LSTM(CHANNELS, HIDDEN_SIZE, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * HIDDEN_SIZE, SPEAKERS)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        _, (h_n, _) = self.lstm(x, lengths=lengths)
        scores: Tensor = self.head(torch.cat([*h_n], dim=1))
        return scores


def load(part: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return the utterances (N, T, CHANNELS), padded with NaN, their lengths and their speakers."""
    file = resources.files("rnnop") / "data" / "japanese_vowels.npz"
    with file.open("rb") as stream, np.load(stream) as stored:
        mean, deviation = stored["train_x"].mean(axis=0), stored["train_x"].std(axis=0)
        steps = torch.tensor((stored[f"{part}_x"] - mean) / deviation, dtype=torch.float32)
        lengths = torch.tensor(stored[f"{part}_lengths"], dtype=torch.int64)
        speakers = torch.tensor(stored[f"{part}_y"], dtype=torch.int64)
    rows = torch.split(steps, lengths.tolist())
    x = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=float("nan"))
    return x, lengths, speakers


def train(rank: int, processes: int, folder: str, steps: int) -> None:
    """Train as process number `rank`; the first one writes the parameters to the folder."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes)
    torch.manual_seed(0)
    model = Classifier()
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.5)
    x, lengths, speakers = load("train")
    for _ in range(steps):
        batch = torch.randperm(len(x))[:BATCH_SIZE]  # the same in every process
        mine = batch[rank::processes]
        loss = nn.functional.cross_entropy(parallel(x[mine], lengths[mine]), speakers[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        x, lengths, speakers = load("test")
        with torch.no_grad():
            right = model(x, lengths).argmax(dim=1) == speakers
        print(f"{processes} processes, {steps} steps: {100 * right.float().mean():.1f} % right")
        torch.save(model.state_dict(), Path(folder) / "model.pt")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, choices=(1, 2, 4, 8), default=2)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--out", type=Path, help="folder for the parameters, model.pt")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(chosen.out or temporary)
        arguments = chosen.processes, folder, chosen.steps
        torch.multiprocessing.spawn(train, arguments, nprocs=chosen.processes)


if __name__ == "__main__":
    main()
