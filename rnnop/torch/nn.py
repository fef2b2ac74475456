"""`RNN`, `GRU` and `LSTM`: modules with the arguments and the parameters of torch.nn's own."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from .. import api, backends, packing
from ..errors import DTypeError, ShapeError
from . import host
from .call import Listed, direct
from .functional import rnn_of_list

# What the module itself says, or is told with each input, or does not return.
_NOT_OPTIONS = {"x", "weights", "h0", "c0", "mode", "mask", "lengths", "resets", "batch_first"}
_NOT_OPTIONS |= {"dropout", "training", "seed", "dropout_masks", "return_cell_states"}
_OPTIONS = [name for name in inspect.signature(api.rnn).parameters if name not in _NOT_OPTIONS]


class _Module(torch.nn.RNNBase):
    """What the three share. Initialization, state and checks are those of torch."""

    def __init__(self, mode: str, *args: Any, **kwargs: Any) -> None:
        options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
        if mode != "LSTM" and "proj_size" in kwargs:
            raise ValueError(f"`proj_size` is given to {type(self).__name__}; only LSTM has it")
        super().__init__(mode, *args, **kwargs)
        self.options = options

    @property
    def _flat_weights(self) -> list[Any]:
        """The parameters, anew: what torch keeps goes stale where others are put in their place."""
        return [getattr(self, name, None) for name in self._flat_weights_names]

    @_flat_weights.setter
    def _flat_weights(self, _: list[Any]) -> None:
        pass

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Any = None,
        *,
        mask: Any = None,
        lengths: Any = None,
        resets: Any = None,
    ) -> Any:
        """Run the network.

        Parameters
        ----------
        input : Tensor (T, N, I), (N, T, I) with `batch_first`, (T, I), or torch's PackedSequence
            Input.
        hx : Tensor (L*D, N, P), of an LSTM (h0, c0), optional
            Initial state, zeros by default. Of a (T, I) input it has no axis N either.
        mask, lengths, resets : optional
            As of `rnnop.rnn`. Of a (T, I) input they have no axis N either.

        Returns
        -------
        output : Tensor or PackedSequence
            As `input`, with D*P features.
        h_n : Tensor, of an LSTM (h_n, c_n)
            As `hx`.
        """
        states = self._states(hx)
        steps = {"mask": mask, "lengths": lengths, "resets": resets}
        if isinstance(input, PackedSequence):
            out = self._run(packing.PackedSequence(*input), states, steps)
            return PackedSequence(*out.y), self._final(out)
        if input.dim() == 3:
            out = self._run(input, states, steps)
            return out.y, self._final(out)
        if input.dim() != 2:
            raise ShapeError(f"`input` has {input.dim()} axes; expected 3, or 2 for a single row")
        axis = 0 if self.batch_first else 1
        for name, value in steps.items():
            if value is not None:
                steps[name] = torch.as_tensor(value).unsqueeze(0 if name == "lengths" else axis)
        states = [state.unsqueeze(1) for state in states]
        out = self._run(input.unsqueeze(axis), states, steps)
        c_n = None if out.c_n is None else out.c_n.squeeze(1)
        return out.y.squeeze(axis), self._final(out._replace(h_n=out.h_n.squeeze(1), c_n=c_n))

    def _states(self, hx: Any) -> list[Any]:
        """Return what is given of (h0, c0)."""
        if hx is None:
            return []
        if self.mode != "LSTM":
            return [hx]
        if isinstance(hx, tuple | list) and len(hx) == 2:
            return list(hx)
        raise DTypeError(
            f"`hx` is {type(hx).__name__}; expected the two states (h0, c0) of an LSTM"
        )

    def _final(self, out: api.RNNOutput) -> Any:
        return out.h_n if self.mode != "LSTM" else (out.h_n, out.c_n)

    def _run(self, x: Any, states: list[Any], steps: dict[str, Any]) -> api.RNNOutput:
        """Run a batch, after torch's own checks."""
        packed = isinstance(x, packing.PackedSequence)
        data, batch_sizes = (x.data, x.batch_sizes) if packed else (x, None)
        if not states:
            self.check_input(data, batch_sizes)
        else:
            hidden = states[0] if self.mode != "LSTM" else tuple(states)
            self.check_forward_args(data, hidden, batch_sizes)
        options = {**self.options, **steps, "mode": self.mode.lower()}
        options["batch_first"] = self.batch_first and not packed
        if self.training and self.num_layers > 1:
            options |= {"dropout": self.dropout, "training": True}
        fields = "w_ih w_hh" + " b_ih b_hh" * self.bias + " w_hr" * (self.proj_size > 0)
        weights = Listed(self._flat_weights, fields, self.bidirectional)
        h0, c0 = [*states, None, None][:2]
        if backends.wanted(options.get("backend", "auto")) != "reference":
            return rnn_of_list(x, weights, h0, c0, options)
        arrays = host.of_list(weights.tensors, fields, self.bidirectional)
        return api.RNNOutput(*direct("rnn", x, arrays, h0, c0, **options))

    def extra_repr(self) -> str:
        """Return the arguments that are not the default."""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"{super().extra_repr()}{options}"


class RNN(_Module):
    """A plain RNN in place of `torch.nn.RNN`.

    Parameters
    ----------
    input_size, hidden_size, num_layers, nonlinearity : int, int, int, {'tanh', 'relu'}
        As of `torch.nn.RNN`.
    *args, **kwargs
        The other arguments of `torch.nn.RNN`; and, by name, those of `rnnop.rnn` that do not change
        with the input: `gate_clip`, `activations`, `reverse`, `masked_output`, `backend`.

    Notes
    -----
    It is called as `torch.nn.RNN` is, with `mask`, `lengths` and `resets` if wanted, as of
    `rnnop.rnn`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"`nonlinearity` is {nonlinearity!r}; expected 'tanh' or 'relu'")
        self.nonlinearity = nonlinearity
        mode = f"RNN_{nonlinearity.upper()}"
        super().__init__(mode, input_size, hidden_size, num_layers, *args, **kwargs)


class GRU(_Module):
    """A GRU in place of `torch.nn.GRU`.

    Parameters
    ----------
    *args, **kwargs
        The arguments of `torch.nn.GRU`; and, by name, those of `rnnop.rnn` that do not change with
        the input: `reset_after`, `gate_clip`, `activations`, `reverse`, `masked_output`, `backend`.

    Notes
    -----
    It is called as `torch.nn.GRU` is, with `mask`, `lengths` and `resets` if wanted, as of
    `rnnop.rnn`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("GRU", *args, **kwargs)


class LSTM(_Module):
    """An LSTM in place of `torch.nn.LSTM`.

    Parameters
    ----------
    *args, **kwargs
        The arguments of `torch.nn.LSTM`; and, by name, those of `rnnop.rnn` that do not change with
        the input: `cell_clip`, `cell_clip_nan`, `proj_clip`, `gate_clip`, `activations`,
        `input_forget`, `reverse`, `masked_output`, `backend`.

    Notes
    -----
    It is called as `torch.nn.LSTM` is, with `mask`, `lengths` and `resets` if wanted, as of
    `rnnop.rnn`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("LSTM", *args, **kwargs)

    check_forward_args = torch.nn.LSTM.check_forward_args
    get_expected_cell_size = torch.nn.LSTM.get_expected_cell_size
