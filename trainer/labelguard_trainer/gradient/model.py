"""Language models as a `Problem`, whatever they learn: parameters, optimizer, clipped sums, noise.

There is no dropout. Every unit has passes of their own: in a batch that several share, the
gradients of all depend on who is in it, in their last bits, or far more in bfloat16. What a unit's
records say is the loss of a subclass.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from peft import get_peft_model
from torch import Tensor
from trl.trainer.utils import add_fused_lm_head

from labelguard.accounting import gaussian
from labelguard.errors import LabelguardError
from labelguard_trainer.gradient.records import Records, StepRecords
from labelguard_trainer.gradient.sums import ClippedSum, add_normals, bound_norm
from labelguard_trainer.training import guard
from labelguard_trainer.training.reporting import silence_libraries
from labelguard_trainer.training.reward import HEAD
from labelguard_trainer.training.stage_training import StageTraining, build_lora_config


class Sgd:
    """The gradient times the rate (aup-rlhf Alg. 4, line 12).

    Optimizers see noised gradients only: what they do with them is post-processing. What they keep
    is flat, so that a checkpoint is a few arrays.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        pass

    def update(self, gradient: Tensor, rate: float, step: int) -> Tensor:
        """Return what to subtract from the parameters, shape (size,), at a step counted from 1."""
        return gradient * rate

    def state(self) -> Mapping[str, Tensor]:
        """Return what it keeps between steps, tensors to be copied from, and into: nothing."""
        return {}


class Adam:
    """Kingma and Ba 2015, algorithm 1, with its usual constants and no weight decay."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._first = torch.zeros(size, device=device)
        self._second = torch.zeros(size, device=device)

    def update(self, gradient: Tensor, rate: float, step: int) -> Tensor:
        """As `Sgd.update`."""
        slow, slower, least = 0.9, 0.999, 1e-8
        self._first.lerp_(gradient, 1 - slow)
        self._second.mul_(slower).addcmul_(gradient, gradient, value=1 - slower)
        size = (self._second / (1 - slower**step)).sqrt_().add_(least)
        return torch.div(self._first, size, out=size).mul_(rate / (1 - slow**step))

    def state(self) -> Mapping[str, Tensor]:
        """Return the two moments."""
        return {"first_moment": self._first, "second_moment": self._second}


# By the names that they have in a training configuration.
OPTIMIZERS: Mapping[str, type[Adam | Sgd]] = {"adamw_torch": Adam, "sgd": Sgd}


Floats: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.intp]

_RATE, _RATE_OF_LORA = 1e-5, 1e-3
_USUAL = {
    "beta": 0.1,
    "learning_rate": None,
    "bf16": None,
    "max_length": None,
    "optim": "adamw_torch",
    "per_device_eval_batch_size": 16,
    "per_device_train_batch_size": 16,
    "seed": 42,
    "use_cpu": False,
}


class ModelProblem(ABC):
    """A `Problem`: the base model of `base` and whose records it learns from.

    It runs on a GPU if there is one, unless the settings of `base` say `use_cpu`. Of these it
    reads `learning_rate`, `max_length`, `bf16` (of the arithmetic; what is trained is kept in
    float32), `optim`, `seed` (of new weights) and `per_device_train_batch_size` (records of a unit
    that are passed through the model at once). A cohort has `updates` steps.

    Raises `LabelguardError` for a model of more parameters than runs are priced for.
    """

    def __init__(
        self,
        base: StageTraining,
        records: Records,
        *,
        updates: int = 1,
    ) -> None:
        self.base = base
        self._records, self._updates = records, updates
        self._settings = {**_USUAL, **base.settings}
        settings = self._settings
        on_gpu = torch.cuda.is_available() and not settings["use_cpu"]
        self._device = torch.device("cuda" if on_gpu else "cpu")
        self._bf16 = _bf16(settings["bf16"], self._device)
        self._together = int(settings["per_device_train_batch_size"])
        usual = _RATE if base.lora is None else _RATE_OF_LORA
        self._rate = float(
            usual if settings["learning_rate"] is None else settings["learning_rate"]
        )
        self._model = _load_trainable(base, int(settings["seed"])).to(self._device).eval()
        self._parameters = [p for p in self._model.parameters() if p.requires_grad]
        for parameter in self._parameters:
            parameter.data = parameter.data.float()
        self.size = sum(parameter.numel() for parameter in self._parameters)
        if self.size > gaussian.MOST_COORDINATES:
            raise LabelguardError(
                f"expected at most {gaussian.MOST_COORDINATES:,} parameters, found {self.size:,}"
            )
        self._steps = 0
        self._optimizer: Adam | Sgd = OPTIMIZERS[settings["optim"]](self.size, self._device)

    @abstractmethod
    def _loss(self, step: StepRecords, part: slice, labels: Floats) -> Tensor:
        """Return the weighted loss of some records of one unit, the sum over them."""

    def clipped_sum(self, units: Indices, labels: Floats, clip: float) -> Tensor:
        """PRIVATE: Σ over distinct labelers of clip_C(the weighted gradients of their records).

        `labels`, shape (n,), are those of all records. Float64, shape (size,), equal whatever the
        order of `units`. Replacing one labeler's labels moves it by at most 2C. Raises `ValueError`
        if a labeler is named twice: they would be clipped twice.
        """
        if len(np.unique(units)) != len(units):
            raise ValueError("a labeler is in a cohort once")
        clipped = ClippedSum(self.size, clip, self._device)
        for gradient in self._gradients(units, labels):
            clipped.add(gradient)
        return clipped.total

    def gradients(self, units: Indices, labels: Floats) -> NDArray[np.float32]:
        """PRIVATE: each labeler's weighted gradient before clipping, shape (len(units), size)."""
        gradients = np.empty((len(units), self.size), np.float32)
        for at, gradient in enumerate(self._gradients(units, labels)):
            gradients[at] = gradient.cpu().numpy()
        return gradients

    def bound_gradient_norms(self, units: Indices, labels: Floats) -> Floats:
        """PRIVATE: upper bounds of the norms of these gradients, shape (len(units),)."""
        return np.array([float(bound_norm(each)) for each in self._gradients(units, labels)])

    def add_noise(self, total: Any, deviation: float, secret: bytes) -> Tensor:
        """With Gaussian noise of that deviation in each coordinate, shape (size,); see `sums`."""
        summed = torch.as_tensor(total, dtype=torch.float64, device=self._device)
        return add_normals(summed.expand(self.size), deviation, secret)

    def step(self, gradient: Tensor) -> None:
        """One step of the optimizer, with a gradient of shape (size,)."""
        self._steps += 1
        update = self._optimizer.update(gradient, self._rate, self._steps)
        with torch.no_grad():
            for parameter, part in zip(
                self._parameters, _split_like(update, self._parameters), strict=True
            ):
                parameter -= part

    def state(self) -> dict[str, NDArray[Any]]:
        """`parameters`, shape (size,), float32; `steps`; the optimizer's tensors by name."""
        flat = torch.cat([parameter.detach().flatten() for parameter in self._parameters])
        tensors = {"parameters": flat, **self._optimizer.state()}
        arrays = {name: values.cpu().numpy().copy() for name, values in tensors.items()}
        return {**arrays, "steps": np.array(self._steps)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a `state()` of an equal problem. Raises `ValueError` if it is another's."""
        moments = self._optimizer.state()
        if set(state) != {"parameters", "steps", *moments} or any(
            state[name].shape != (self.size,) for name in ("parameters", *moments)
        ):
            raise ValueError("the state is that of another model or optimizer")
        with torch.no_grad():
            flat = torch.tensor(state["parameters"], device=self._device)
            for parameter, part in zip(
                self._parameters, _split_like(flat, self._parameters), strict=True
            ):
                parameter.copy_(part)
            for name, values in moments.items():
                values.copy_(torch.tensor(state[name]))
        self._steps = int(state["steps"])

    def export(self, directory: Path) -> tuple[Path, ...]:
        """Write the model as `from_pretrained` reads it, adapters merged, with its tokenizer.

        `directory` appears whole, or not at all.
        """
        with tempfile.TemporaryDirectory(dir=directory.parent) as weights:
            with guard.explain_failed_write(directory), silence_libraries():
                self._model.save_pretrained(weights)
            return (self.base.export(Path(weights), directory),)

    def _gradients(self, units: Indices, labels: Floats) -> Iterator[Tensor]:
        """Yield the gradient of each of these labelers, by themselves, shape (size,)."""
        step = self._records.select(self._steps // self._updates, units)
        ends = np.searchsorted(step.owners, np.arange(len(units) + 1))
        for begin, end in pairwise(ends.tolist()):
            gradient = torch.zeros(self.size, device=self._device)
            for at in range(begin, end, self._together):
                self._accumulate(gradient, step, slice(at, min(at + self._together, end)), labels)
            yield gradient

    def _accumulate(self, gradient: Tensor, step: StepRecords, part: slice, labels: Floats) -> None:
        """Add the gradients of some of a unit's records."""
        for parameter, place in zip(
            self._parameters, _split_like(gradient, self._parameters), strict=True
        ):
            parameter.grad = place  # autograd adds to what is there
        loss = self._loss(step, part, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        for parameter in self._parameters:
            parameter.grad = None

    def _token_log_probs(self, model: Any, ids: Tensor, real: Tensor, response: Tensor) -> Tensor:
        """Return the log-probability of each token of responses, 0 elsewhere, (rows, length)."""
        inputs = {"input_ids": ids, "attention_mask": real.long(), "use_cache": False}
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            targets = ids.masked_fill(~response, -100)
            outputs = model(**inputs, labels=targets, fused_lm_head=True)
        log_probs: Tensor = outputs.log_probs.float()
        return log_probs

    def _disable_adapters(self) -> AbstractContextManager[Any]:
        if self.base.lora is None:  # nothing has been learned yet
            return nullcontext()
        context: AbstractContextManager[Any] = self._model.disable_adapter()
        return context

    def _tensor(self, values: Floats) -> Tensor:
        return torch.from_numpy(values.astype(np.float32)).to(self._device)


def _bf16(setting: bool | None, device: torch.device) -> bool:
    """Return what was asked for; else whether the device is made for it."""
    if setting is not None:
        return setting
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def _load_trainable(base: StageTraining, seed: int) -> Any:
    """Return the base model with its adapters, if it has any; new weights are those of the seed."""
    with torch.random.fork_rng(devices=[]), silence_libraries():
        torch.manual_seed(seed)
        model = base.base_model()
        if base.kind == "dpo":
            add_fused_lm_head(model)
        if base.lora is None:
            return model
        head = {"modules_to_save": [HEAD]} if base.kind == "reward" else {}
        return get_peft_model(model, build_lora_config(base.kind, base.lora, **head))


def _split_like(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of a flat tensor, in the parameters' shapes."""
    parts = torch.split(flat, [parameter.numel() for parameter in parameters])
    return [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]
