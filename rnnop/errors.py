"""Every error that rnnop raises.

The text has a fixed order: function, the fact (argument, what it has, the rule with its numbers),
the spec of the network, a hint. The room that finds a fault states the fact and the hint; the
public function that was called adds its own name and the spec.
"""

from __future__ import annotations


class RnnopError(Exception):
    """Base of all errors of rnnop.

    Parameters
    ----------
    fact : str
        Which argument has what, and the rule it breaks, with its numbers.
    hint : str, optional
        What to do about it.

    Attributes
    ----------
    function : str or None
        The public function that was called.
    spec : str or None
        The network that was asked for, once it is known.
    """

    def __init__(self, fact: str, hint: str | None = None) -> None:
        super().__init__(fact, hint)
        self.fact = fact
        self.hint = hint
        self.function: str | None = None
        self.spec: str | None = None

    def __str__(self) -> str:
        text = f"{self.function}: {self.fact}" if self.function else self.fact
        parts = [text, f"spec: {self.spec}" if self.spec else None, self.hint]
        return ". ".join(part.rstrip(".") for part in parts if part) + "."


class ShapeError(RnnopError, ValueError):
    """An array has the wrong shape, or holds values out of their range."""


class SpecError(RnnopError, ValueError):
    """An option is unknown, out of range, or contradicts another."""


class DTypeError(RnnopError, TypeError):
    """An argument has the wrong type, dtype, device or array family."""


class UnsupportedError(RnnopError, NotImplementedError):
    """A backend that was named cannot run this call."""


class BackendUnavailable(RnnopError, RuntimeError):
    """A backend that was named is not usable on this machine."""


class LibraryError(RnnopError, RuntimeError):
    """A foreign function failed.

    Attributes
    ----------
    function : str
        Its name.
    status : int
        What it returned.
    name : str
        The name of that status.
    detail : str
        What else is known; whoever knows more of the call adds it.
    """

    def __init__(self, function: str, status: int, name: str, detail: str) -> None:
        super().__init__(f"{function}: {name} ({status})")
        self.function, self.status, self.name, self.detail = function, status, name, detail

    def __str__(self) -> str:
        parts = [f"{self.fact}: {self.detail}", f"spec: {self.spec}" if self.spec else None]
        return ". ".join(part.rstrip(".") for part in parts if part) + "."


class blame:  # a verb: with blame("rnn"): ...
    """Name the public function, and the network once it is known, in errors that pass through."""

    def __init__(self, function: str | None = None, spec: object = None) -> None:
        self.function = function
        self.spec = spec

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Fill in what an error does not know yet."""
        if isinstance(error, RnnopError):
            error.function = error.function or self.function
            error.spec = error.spec or (None if self.spec is None else str(self.spec))
