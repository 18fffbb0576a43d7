"""GMTTrainer writes memory, follows τ and maintains; it is compared with the same steps made by hand."""

import pytest
import torch
from torch.utils.data import Dataset, default_collate
from transformers import Trainer, TrainerCallback, TrainingArguments

import gmt.hf
from gmt.errors import GMTError
from gmt.hf import GMTForCausalLM, GMTTrainer
from gmt.memory.maintenance import forget_moments, keyed_generator, reseed_positions
from gmt.memory.temperature import temperature
from tests.conftest import small_model

STEPS, MICRO, SEED = 4, 2, 7


class Rows(Dataset):
    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randint(11, (count, 6), generator=generator)
        lengths = torch.randint(2, 7, (count, 1), generator=generator)  # padded on the right, of every length
        self.masks = (torch.arange(6) < lengths).long()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        labels = self.rows[i].masked_fill(self.masks[i] == 0, -100)
        return {"input_ids": self.rows[i], "attention_mask": self.masks[i], "labels": labels}


def model(*settings: str) -> GMTForCausalLM:
    # a threshold that some slots fall under, so that maintenance after step 2 replaces something
    lm = small_model("maintenance.every=2", "maintenance.dead_below=0.2", *settings, dtype=torch.float32)
    return GMTForCausalLM.from_lm(lm)


def arguments(folder, **kwargs) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=2, per_device_eval_batch_size=2,
        gradient_accumulation_steps=MICRO,
        learning_rate=1e-2, lr_scheduler_type="constant", weight_decay=0.1, max_grad_norm=1.0, seed=SEED,
        report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True, use_cpu=True, optim="adamw_torch",
        **kwargs,
    )  # fmt: skip


class InOrder(GMTTrainer):
    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def by_hand(wrapped: GMTForCausalLM, data: Rows) -> tuple[GMTForCausalLM, int]:
    lm = wrapped.model.train()
    optimizer = torch.optim.AdamW(lm.parameters(), lr=1e-2, weight_decay=0.1)
    replaced = 0
    batches = iter(zip(data.rows.split(2), data.masks.split(2), strict=True))
    for step in range(STEPS):
        lm.set_temperature(temperature(step, STEPS, 1.0, 0.1))
        micro_batches = [next(batches) for _ in range(MICRO)]
        labels_in_step = sum(int(mask[:, 1:].sum()) for _, mask in micro_batches)
        for ids, mask in micro_batches:
            alive = mask.flatten().nonzero().flatten()
            positions = torch.stack(
                [alive[reseed_positions(len(alive), 5, keyed_generator(SEED, step, block, 1))] for block in range(2)]
            )
            labels = torch.cat([ids.masked_fill(mask == 0, -100)[:, 1:], torch.full((2, 1), -100)], 1)
            out = lm(ids, labels, mask=mask, reseed=positions)
            # the objective of a step is token-weighted over its micro-batches
            (out.loss * (labels != -100).sum() / labels_in_step).backward()
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
    expected, replaced = by_hand(model(), data)
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
    batches = [default_collate([Rows(4)[i] for i in pair]) for pair in ((0, 1), (2, 3))]
    expected = sum(wrapped.eval()(**batch).task_loss.item() for batch in batches) / 2
    assert loss == pytest.approx(expected, rel=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in wrapped.state_dict().items())


def test_a_plain_trainer_writes_nothing(tmp_path):
    """Why the subclass exists."""
    wrapped = model()
    Trainer(wrapped, arguments(tmp_path), train_dataset=Rows(16)).train()
    assert (wrapped.model.cells[0].age == 0).all()


@pytest.mark.parametrize("kwargs", [{"label_smoothing_factor": 0.1}, {}])
def test_what_would_drop_the_auxiliary_terms_is_refused(tmp_path, kwargs):
    loss = None if kwargs else lambda *args, **more: torch.zeros(())
    with pytest.raises(GMTError, match="the model's own objective"):
        GMTTrainer(model(), arguments(tmp_path, **kwargs), compute_loss_func=loss)


def test_a_missing_accelerate_names_the_extra(monkeypatch):
    monkeypatch.setattr(gmt.hf, "find_spec", lambda name: None)
    monkeypatch.delitem(vars(gmt.hf), "GMTTrainer", raising=False)
    with pytest.raises(GMTError, match=r"pip install 'graph-memory-transformer\[trainer\]'"):
        _ = gmt.hf.GMTTrainer


@pytest.mark.parametrize("name", ["world_size", "n_gpu"])
def test_several_processes_are_refused(tmp_path, monkeypatch, name):
    args = arguments(tmp_path)
    monkeypatch.setattr(type(args), name, property(lambda self: 2))
    with pytest.raises(GMTError, match="GMTTrainer runs one process"):
        GMTTrainer(model(), args)


def test_auxiliary_terms_begin_when_they_are_told_to(tmp_path):
    late, seen = model("losses.begin=0.5", "losses.full=1.0"), []
    late.model.register_forward_pre_hook(lambda module, args: seen.append(float(module.aux_weight)))
    GMTTrainer(late, arguments(tmp_path), train_dataset=Rows(16)).train()
    assert seen == [0.0] * 3 * MICRO + [0.5] * MICRO  # of four steps the last is past the half


def test_k_means_is_not_left_out_in_silence(tmp_path):
    with pytest.raises(GMTError, match="knows memory"):
        GMTTrainer(model("memory.init=k-means"), arguments(tmp_path), train_dataset=Rows(8))


def memory_of(wrapped: GMTForCausalLM) -> list[torch.Tensor]:
    return [t.clone() for cell in wrapped.model.cells for t in (cell.centroids, cell.usage, cell.age)]


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_number_that_is_not_finite_reaches_neither_memory_nor_weights(tmp_path, where, monkeypatch):
    """The check does not depend on the optimizer: plain AdamW would take the NaN."""
    wrapped = model()
    trainer = InOrder(model=wrapped, args=arguments(tmp_path), train_dataset=Rows(STEPS * MICRO * 2))
    before = {}

    class Poison(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 2:
                with torch.no_grad():
                    if where == "loss":
                        wrapped.model.norm_final.bias[0] = torch.nan
                before.update({name: p.detach().clone() for name, p in wrapped.named_parameters()})
                before["memory"] = torch.cat([t.flatten() for t in memory_of(wrapped)])

    if where == "gradient":  # a finite loss whose gradient is not
        wrapped.model.norm_final.weight.register_hook(
            lambda grad: grad * torch.nan if trainer.state.global_step == 2 else grad
        )
    trainer.add_callback(Poison())
    with pytest.raises(GMTError, match=rf"step 3: {'the loss' if where == 'loss' else 'a gradient'} is not finite"):
        trainer.train()
    written = torch.cat([t.flatten() for t in memory_of(wrapped)])
    if where == "loss":
        assert torch.equal(written, before["memory"]), "the pass with the NaN is not written"
    assert bool(written.isfinite().all())
    for name, parameter in wrapped.named_parameters():
        if not name.endswith("centroids"):  # writes of finite passes may have come before
            assert torch.equal(parameter.nan_to_num(7.0), before[name].nan_to_num(7.0)), name


def test_a_step_that_the_scaler_skips_writes_no_memory(tmp_path, monkeypatch):
    """float16 training skips steps whose gradients overflow; the memory then stays as it was before the step."""
    wrapped = model("maintenance.every=0")
    trainer = InOrder(model=wrapped, args=arguments(tmp_path), train_dataset=Rows(STEPS * MICRO * 2))
    skipped, seen = {1, 2}, {}
    monkeypatch.setattr(trainer.accelerator, "scaler", torch.amp.GradScaler("cpu", enabled=False))
    monkeypatch.setattr(
        type(trainer.accelerator), "optimizer_step_was_skipped",
        property(lambda self: trainer.state.global_step in skipped),
    )  # fmt: skip

    class Look(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            seen[state.global_step] = memory_of(wrapped)

    trainer.add_callback(Look())
    trainer.train()
    seen[STEPS] = memory_of(wrapped)
    for step in range(STEPS):
        same = all(torch.equal(a, b) for a, b in zip(seen[step][1:3], seen[step + 1][1:3], strict=True))
        assert same == (step in skipped), f"usage and age after step {step}"
