"""GMTTrainer writes memory, follows τ and maintains; it is compared with the same steps made by hand."""

import pytest
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from gmt.errors import GMTError
from gmt.hf import GMTForCausalLM, GMTTrainer
from gmt.memory.maintenance import forget_moments, keyed_generator, reseed_positions
from gmt.memory.temperature import temperature
from tests.conftest import small_model

STEPS, MICRO, SEED = 4, 2, 7


class Rows(Dataset):
    def __init__(self, count: int) -> None:
        self.rows = torch.randint(11, (count, 6), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


def model() -> GMTForCausalLM:
    # a threshold that some slots fall under, so that maintenance after step 2 replaces something
    lm = small_model("maintenance.every=2", "maintenance.dead_below=0.2", dtype=torch.float32)
    return GMTForCausalLM.from_lm(lm)


def arguments(folder, **kwargs) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=2, gradient_accumulation_steps=MICRO,
        learning_rate=1e-2, lr_scheduler_type="constant", weight_decay=0.1, max_grad_norm=1.0, seed=SEED,
        report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True, use_cpu=True, optim="adamw_torch",
        **kwargs,
    )  # fmt: skip


class InOrder(GMTTrainer):
    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def by_hand(wrapped: GMTForCausalLM, rows: torch.Tensor) -> tuple[GMTForCausalLM, int]:
    lm = wrapped.model.train()
    decayed = [p for n, p in wrapped.named_parameters() if n in Trainer.get_decay_parameter_names(None, wrapped)]
    plain = [p for p in wrapped.parameters() if all(p is not d for d in decayed)]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    replaced = 0
    batches = iter(rows.split(2))
    for step in range(STEPS):
        lm.set_temperature(temperature(step, STEPS, 1.0, 0.1))
        for _ in range(MICRO):
            ids = next(batches)
            positions = torch.stack(
                [reseed_positions(ids.numel(), 5, keyed_generator(SEED, step, block, 1)) for block in range(2)]
            )
            labels = torch.cat([ids[:, 1:], torch.full((2, 1), -100)], 1)
            out = lm(ids, labels, reseed=positions)
            (out.loss / MICRO).backward()
            lm.commit(out.writes)
        torch.nn.utils.clip_grad_norm_(lm.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 2 == 0:
            for cell, event in zip(lm.cells, lm.maintain(out.writes.reseed, SEED, step + 1), strict=True):
                forget_moments(optimizer, cell.centroids, event.replaced)
                replaced += int(event.replaced.sum())
    return wrapped, replaced


def test_the_trainer_makes_the_same_steps(tmp_path):
    data = Rows(STEPS * MICRO * 2)
    expected, replaced = by_hand(model(), data.rows)
    assert replaced > 0, "the case needs a maintenance event that does something"
    trained = model()
    InOrder(trained, arguments(tmp_path), train_dataset=data).train()
    cell = trained.model.cells[0]
    assert cell.age.max() == STEPS * MICRO
    assert trained.model.tau.item() == pytest.approx(temperature(STEPS - 1, STEPS, 1.0, 0.1))
    for (name, a), b in zip(trained.state_dict().items(), expected.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)


def test_evaluation_reports_cross_entropy_and_writes_nothing(tmp_path):
    wrapped = model()
    trainer = GMTTrainer(wrapped, arguments(tmp_path), eval_dataset=Rows(4))
    before = {name: tensor.clone() for name, tensor in wrapped.state_dict().items()}
    loss = trainer.evaluate()["eval_loss"]
    rows = Rows(4).rows
    assert loss == pytest.approx(wrapped.eval()(rows, labels=rows).task_loss.item(), rel=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in wrapped.state_dict().items())


def test_a_plain_trainer_writes_nothing(tmp_path):
    """Why the subclass exists."""
    wrapped = model()
    Trainer(wrapped, arguments(tmp_path), train_dataset=Rows(16)).train()
    assert (wrapped.model.cells[0].age == 0).all()


def test_several_processes_are_refused(tmp_path, monkeypatch):
    args = arguments(tmp_path)
    monkeypatch.setattr(type(args), "world_size", property(lambda self: 2))
    with pytest.raises(GMTError, match="GMTTrainer runs one process"):
        GMTTrainer(model(), args)
