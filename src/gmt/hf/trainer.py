"""The Hugging Face Trainer for graph memory models.

A plain Trainer would run, and silently train a memory that is never written: no write-back, a temperature
that never falls, no maintenance. This subclass does the three at the places that docs/architecture.md names.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from gmt.errors import GMTError
from gmt.hf.modeling import GMTForCausalLM
from gmt.memory.maintenance import forget_moments, keyed_generator, reseed_positions
from gmt.memory.temperature import aux_weight, temperature
from gmt.memory.writeback import Writes
from gmt.model.memory_state import restore, snapshot


class GMTTrainer(Trainer):
    """Commits after each backward, follows the τ schedule, maintains memory every so many steps. One process."""

    model: GMTForCausalLM

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.args.world_size > 1 or self.args.n_gpu > 1:
            raise GMTError("GMTTrainer runs one process on one device; `gmt train` runs several")
        if self.args.label_smoothing_factor or self.compute_loss_func is not None:
            # both take the labels away from the model, and with them the auxiliary terms
            raise GMTError("GMTTrainer trains on the model's own objective: no label smoothing, no compute_loss_func")
        if self.model.model.cfg.memory.init != "sphere":
            raise GMTError("GMTTrainer begins with centroids on the sphere; `gmt train` knows memory.init=k-means")
        self._writes: Writes | None = None
        self._memory: list[tuple[Tensor, Tensor]] | None = None  # before the first write of a step that may be skipped
        self.add_callback(_Schedule(self))

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        if model.training and self._maintains_after_this_step():
            inputs = inputs | {"reseed": self._positions(inputs)}
        loss, outputs = cast(tuple[Tensor, Any], super().compute_loss(model, inputs, True, *args, **kwargs))
        if model.training:
            self._writes = outputs.writes
        return (loss, outputs) if return_outputs else loss

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        self.check_finite(loss, "the loss")
        if self._memory is None and self.accelerator.scaler is not None:
            self._memory = snapshot(self.model.model)
        self.model.commit(self._writes)  # after this micro-batch's backward, before the next forward
        return loss

    def check_finite(self, value: Tensor, what: str) -> None:
        """Stop before the memory or the optimizer is touched, on every device and with every optimizer."""
        if not bool(torch.isfinite(value).all()):
            raise GMTError(
                f"step {self.state.global_step + 1}: {what} is not finite; training stops, and neither weights nor "
                "memory were changed by it"
            )

    def check_gradients(self) -> None:
        if self.accelerator.scaler is None:  # a scaler finds overflows itself and skips the step
            grads = [p.grad for p in self.model.parameters() if p.grad is not None]
            self.check_finite(torch.stack([grad.detach().abs().sum() for grad in grads]), "a gradient")

    def undo_skipped(self) -> None:
        """A step that the GradScaler skipped leaves the memory as it was before the step."""
        if self._memory is not None and self.accelerator.optimizer_step_was_skipped:
            restore(self.model.model, self._memory)
            self._writes = None  # nor does it maintain memory
        self._memory = None

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Every parameter decays, as in the paper; a plain Trainer spares norms and biases."""
        return [name for name, _ in model.named_parameters()]

    def _maintains_after_this_step(self) -> bool:
        every = self.model.model.cfg.maintenance.every
        return bool(self.model.model.cells) and every > 0 and (self.state.global_step + 1) % every == 0

    def _positions(self, inputs: dict[str, Any]) -> Tensor:
        """Tokens to reseed from, drawn anew for each micro-batch of the step; the last one's are used."""
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")
        alive = torch.arange(ids.numel()) if mask is None else mask.flatten().nonzero().flatten().cpu()
        lm = self.model.model
        rows = [
            alive[reseed_positions(len(alive), lm.cfg.memory.slots, self._generator(block))]
            for block in range(len(lm.cells))
        ]
        return torch.stack(rows).to(ids.device)

    def _generator(self, block: int) -> torch.Generator:
        return keyed_generator(self.args.seed, self.state.global_step, block, 1)

    def maintain(self, step: int) -> None:
        """After optimizer step `step`: reset and merge, and forget what the optimizer knew of replaced slots."""
        if self._writes is None or self._writes.reseed is None:
            return
        lm = self.model.model
        optimizer = cast(torch.optim.Optimizer, self.optimizer)
        for cell, event in zip(lm.cells, lm.maintain(self._writes.reseed, self.args.seed, step), strict=True):
            forget_moments(optimizer, cell.centroids, event.replaced)
        self._writes = None


class _Schedule(TrainerCallback):
    def __init__(self, trainer: GMTTrainer) -> None:
        self.trainer = trainer

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        lm = self.trainer.model.model
        tau = lm.cfg.temperature
        step, steps, terms = state.global_step, state.max_steps, lm.cfg.losses
        lm.set_temperature(temperature(step, steps, tau.max, tau.min, tau.schedule))
        lm.set_aux_weight(aux_weight(step, steps, terms.begin, terms.full))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.check_gradients()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.undo_skipped()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.maintain(state.global_step)
