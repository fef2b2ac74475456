"""PyTorch: `rnnop.rnn` as an operator of torch, and modules with the parameters of torch.nn's."""

from . import rssm
from .functional import VJP, explain, prepack, rnn, rnn_vjp
from .nn import GRU, LSTM, RNN

__all__ = ["GRU", "LSTM", "RNN", "VJP", "explain", "prepack", "rnn", "rnn_vjp", "rssm"]
