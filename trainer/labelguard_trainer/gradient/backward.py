"""Gradients of single labelers: a backward pass for each, or one for several.

Where all that is trained are weights of linear layers that see a batch row by row (LoRA's two
matrices, a reward model's head), the gradient of one row's loss is Σ_t δ_t x_tᵀ of the layer's
inputs x and the loss' gradients δ at its outputs. So one backward pass to the outputs serves
several labelers, at the price of one batch. Any other model gets a pass for each labeler.

Passes are shared by nothing but work: the rows of a batch do not meet in the model, which
`SharedBackward.of` makes sure of, so another label of one labeler changes no one else's gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

__all__ = ["Backward", "OwnBackward", "SharedBackward", "views"]

Forward: TypeAlias = Callable[[], Tensor]
"""Makes margins of k pairs, shape (k,), from 2k texts: the first sides, then the second."""


class Backward(Protocol):
    """Adds gradients of labelers' records to a matrix of them."""

    together: bool
    """whether records of several labelers may be passed at once"""

    def accumulate(
        self, gradients: Tensor, owners: Tensor, forward: Forward, loss: Callable[[Tensor], Tensor]
    ) -> None:
        """Add Σ over the records of each labeler to their row of `gradients`, (labelers, size).

        `owners`, shape (k,), are the rows of k records, whose margins `forward` makes; `loss` is
        the sum of their weighted losses.
        """
        ...


class OwnBackward:
    """A backward pass for one labeler at a time, whatever the model is."""

    together = False

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters

    def accumulate(
        self, gradients: Tensor, owners: Tensor, forward: Forward, loss: Callable[[Tensor], Tensor]
    ) -> None:
        """See `Backward`; there is one labeler."""
        if len(gradients) != 1:
            raise ValueError(f"a backward pass is of one labeler, found {len(gradients)}")
        for parameter, place in zip(
            self._parameters, views(gradients[0], self._parameters), strict=True
        ):
            parameter.grad = place  # autograd adds to what is there
        loss(forward()).backward()  # type: ignore[no-untyped-call]
        for parameter in self._parameters:
            parameter.grad = None


class SharedBackward:
    """One backward pass for the records of several labelers. The layers are no longer `trainable`.

    Autograd then keeps nothing for gradients of weights, which are made here of the same inputs: a
    pass takes the memory of plain training.
    """

    together = True

    def __init__(self, layers: Sequence[nn.Linear], parameters: Sequence[nn.Parameter]) -> None:
        self._places: dict[int, slice] = {}
        at = 0
        for parameter in parameters:
            self._places[id(parameter)] = slice(at, at + parameter.numel())
            at += parameter.numel()
        self._calls: list[_Call] | None = None
        self._hooks = [layer.register_forward_hook(self._heard) for layer in layers]
        self._parameters = parameters
        for parameter in parameters:
            parameter.requires_grad_(False)

    @classmethod
    def of(
        cls, model: nn.Module, parameters: Sequence[nn.Parameter], forward: Forward, shape: Any
    ) -> SharedBackward | None:
        """For a model whose rows do not meet, or None if it cannot be used.

        `forward` makes margins of two pairs or more from texts of `shape`, (rows, tokens), with
        rows ≠ tokens.
        """
        layers = [m for m in model.modules() if type(m) is nn.Linear and m.weight.requires_grad]
        linear = {id(p) for layer in layers for p in layer.parameters(recurse=False)}
        if linear != {id(p) for p in parameters}:
            return None
        found = cls(layers, parameters)
        if not found._rows_do_not_meet(forward, shape):
            found.close()
            return None
        return found

    def close(self) -> None:
        """Leave the model as it was."""
        for hook in self._hooks:
            hook.remove()
        for parameter in self._parameters:
            parameter.requires_grad_(True)

    def accumulate(
        self, gradients: Tensor, owners: Tensor, forward: Forward, loss: Callable[[Tensor], Tensor]
    ) -> None:
        """See `Backward`."""
        margins, calls = self._listened(forward)
        slopes = torch.autograd.grad(
            loss(margins), [call.output for call in calls], materialize_grads=True
        )
        rows = owners.repeat(2)
        for call, slope in zip(calls, slopes, strict=True):
            call.check(len(rows))
            self._add(gradients, call.layer.weight, rows, slope.mT @ call.inputs)
            if call.layer.bias is not None:
                self._add(gradients, call.layer.bias, rows, slope.sum(1))

    def _add(self, gradients: Tensor, parameter: Tensor, rows: Tensor, of_rows: Tensor) -> None:
        place = gradients[:, self._places[id(parameter)]]
        place.index_add_(0, rows, of_rows.flatten(1).float())

    def _listened(self, forward: Forward) -> tuple[Tensor, list[_Call]]:
        calls: list[_Call] = []
        self._calls = calls
        try:
            return forward(), calls
        finally:
            self._calls = None

    def _heard(self, layer: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if self._calls is not None:
            if not output.requires_grad:
                output.requires_grad_()
            self._calls.append(_Call(layer, inputs[0].detach().to(output.dtype), output))

    def _rows_do_not_meet(self, forward: Forward, shape: Any) -> bool:
        """Whether every layer sees rows of tokens, and one pair's margin is its own rows' alone."""
        margins, calls = self._listened(forward)
        if not calls or any(call.inputs.shape[:-1] != shape for call in calls):
            return False
        slopes = torch.autograd.grad(
            margins[0], [call.output for call in calls], materialize_grads=True
        )
        own = torch.arange(shape[0], device=margins.device) % len(margins) == 0
        seen = any(slope[own].any() for slope in slopes)
        return seen and not any(slope[~own].any() for slope in slopes)


class _Call:
    """One use of a layer: `inputs`, shape (rows, tokens, d), and `output`."""

    def __init__(self, layer: nn.Linear, inputs: Tensor, output: Tensor) -> None:
        self.layer, self.inputs, self.output = layer, inputs, output

    def check(self, rows: int) -> None:
        """Raises `RuntimeError` unless there are so many rows of tokens."""
        if self.inputs.ndim != 3 or len(self.inputs) != rows:
            raise RuntimeError(f"a layer saw {tuple(self.inputs.shape)} in place of {rows} rows")


def views(flat: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """The parts of a flat tensor, in the parameters' shapes."""
    parts = torch.split(flat, [parameter.numel() for parameter in parameters])
    return [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]
