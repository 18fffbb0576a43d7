"""Forward observes; the step commits. Each way of running a model is compared by its memory, not just its loss."""

import copy

import pytest
import torch
from transformers import DynamicCache

from gmt import GMTConfig, GraphMemoryLM
from gmt.hf import GMTForCausalLM
from gmt.memory.maintenance import keyed_generator, reseed_positions
from tests.conftest import assert_same, batch_of, small_model, snapshot

COUNTS = {"gmt-v7-base": 82213152, "dense-1050": 102988032, "dense-205": 82221312, "attention-only": 77158656}


@pytest.mark.parametrize("preset", COUNTS)
def test_parameter_counts(preset):
    with torch.device("meta"):
        lm = GraphMemoryLM(GMTConfig.preset(preset))
    assert sum(p.numel() for p in lm.parameters()) == COUNTS[preset]


def train(lm, steps=3, forward=None):
    forward = lm if forward is None else forward
    optimizer = torch.optim.AdamW(lm.parameters(), lr=1e-2)
    for step in range(steps):
        lm.set_temperature(1.0 - 0.2 * step)
        for micro in range(2):
            ids, labels = batch_of(lm, seed=10 * step + micro)
            out = forward(ids, labels)
            out.loss.backward()
            lm.commit(out.writes)
        optimizer.step()
        optimizer.zero_grad()
    return lm


def test_activation_checkpointing_changes_no_bit():
    plain, checkpointed = small_model(), small_model()
    checkpointed.gradient_checkpointing = True
    calls = []
    for block in checkpointed.blocks:
        block.register_forward_pre_hook(lambda m, args: calls.append(m))
    train(plain)
    assert_same(train(checkpointed), snapshot(plain))
    assert len(calls) == 2 * 6 * len(plain.blocks), "each of six passes runs each block again in its backward"
    assert plain.cells[0].age[0] == 6, "the memory must have been written"


def test_compiled_training_is_the_same():
    plain, compiled = small_model(), small_model()
    train(plain)
    train(compiled, forward=torch.compile(compiled, fullgraph=True))
    expected = plain.state_dict()
    for name, tensor in compiled.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-9, msg=name)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_reading_leaves_every_tensor_as_it_was(mode):
    lm = small_model("model.dropout=0.1", dtype=torch.float32).train(mode == "train")
    before = snapshot(lm)
    ids, labels = batch_of(lm)
    lm(ids)  # forward
    with torch.no_grad():
        lm(ids, labels)  # evaluate
        lm(ids, labels, return_routes=True, reseed=torch.zeros(2, 3, dtype=torch.long))  # trace
        lm(ids, cache=DynamicCache())
    lm(ids, labels).loss.backward()
    wrapped = GMTForCausalLM.from_lm(lm)
    wrapped.generate(ids, max_new_tokens=4, do_sample=True)
    wrapped.generate(ids, max_new_tokens=4, num_beams=2)
    assert_same(lm, before)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_write_between_forward_and_backward_is_refused(checkpointing):
    """Gradients belong to the memory that was read; torch's version counter catches a write that comes too early."""
    lm = small_model()
    lm.gradient_checkpointing = checkpointing
    out = lm(*batch_of(lm))
    lm.commit(out.writes)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.loss.backward()


def test_routes_say_what_was_added():
    lm = small_model(dtype=torch.float32)
    seen = {}
    for index, block in enumerate(lm.blocks):
        block.norm2.register_forward_hook(lambda m, args, out, i=index: seen.__setitem__(("h", i), args[0]))
        block.register_forward_hook(lambda m, args, out, i=index: seen.__setitem__(("out", i), out.out))
    out = lm(batch_of(lm)[0], return_routes=True)
    for index, route in enumerate(out.routes):
        assert torch.equal(seen["h", index] + route.displacement, seen["out", index])


def test_observing_less_changes_no_logit():
    lm = small_model()
    ids, labels = batch_of(lm)
    full, lean = lm(ids, labels), lm(ids, labels, observe=False)
    assert torch.equal(full.logits, lean.logits) and torch.equal(full.task_loss, lean.task_loss)
    assert lean.writes is None and lean.aux == {} and torch.equal(lean.loss, lean.task_loss)


def test_writes_of_two_halves_add_up():
    """Sums and counts, never means: two ranks see what one sees."""
    lm = small_model()
    ids, _ = batch_of(lm, rows=4)
    whole, halves = lm(ids).writes, [lm(ids[:2]).writes, lm(ids[2:]).writes]
    for name in ("slot_sum", "slot_count", "usage_sum", "tokens"):
        torch.testing.assert_close(getattr(halves[0], name) + getattr(halves[1], name), getattr(whole, name))


def test_candidates_are_block_outputs_and_maintenance_uses_them():
    lm = small_model()
    ids, _ = batch_of(lm)
    outputs = []
    for block in lm.blocks:
        block.register_forward_hook(lambda m, args, out: outputs.append(out.out.detach().flatten(0, 1)))
    positions = torch.stack([reseed_positions(ids.numel(), 5, keyed_generator(0, b)) for b in range(2)])
    writes = lm(ids, reseed=positions).writes
    assert not (writes.reseed.requires_grad or writes.slot_sum.requires_grad or writes.slot_count.requires_grad)
    assert writes.usage_sum.requires_grad, "the cluster term's gradient goes through it"
    for block in range(2):
        assert torch.equal(writes.reseed[block], outputs[block][positions[block]])
    with torch.no_grad():
        lm.cells[1].usage[2] = 0
    events = lm.maintain(writes.reseed, seed=0, step=110)
    assert [int(event.replaced.sum()) for event in events] == [0, 1]
    first = torch.nn.functional.normalize(writes.reseed[1][0], dim=-1)
    assert torch.equal(lm.cells[1].centroids[2].detach(), first)
    with pytest.raises(ValueError, match="maintenance needs 5 candidates a block, not 4"):
        lm.maintain(writes.reseed[:, :4], seed=0, step=110)


def test_blocks_are_reseeded_from_different_random_vectors():
    lm = small_model()
    for cell in lm.cells:
        cell.usage.zero_()
    lm.maintain(torch.zeros(2, 5, 8), seed=0, step=110)
    assert not torch.equal(lm.cells[0].centroids, lm.cells[1].centroids)


def test_dropout_is_on_embeddings_and_inside_attention_and_nowhere_else():
    ids = batch_of(small_model())[0]
    lm = small_model("model.dropout=0.5")
    assert torch.equal(lm.eval()(ids).logits, small_model().eval()(ids).logits), "none in eval mode"
    lm.train()
    seen = []
    lm.blocks[0].norm1.register_forward_pre_hook(lambda m, args: seen.append(args[0].detach()))
    lm(ids)
    assert 0.3 < (seen[0] == 0).double().mean() < 0.7, "summed embeddings"
    kept = seen[0] != 0
    embedded = lm.token_embedding(ids) + lm.position_embedding(torch.arange(6))
    torch.testing.assert_close(seen[0][kept], 2 * embedded[kept])
    attention = lm.blocks[0].attention
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    assert not torch.equal(attention(x, None, None, 0), attention(x, None, None, 0))
    cell, h = lm.cells[0], torch.randn(2, 6, 8, dtype=torch.float64)
    assert torch.equal(cell(h, h, 1.0)[0], cell(h, h, 1.0)[0]), "none in the memory cell"


def test_deepcopy_is_independent():
    lm = small_model()
    twin = copy.deepcopy(lm)
    lm.commit(lm(*batch_of(lm)).writes)
    assert not torch.equal(lm.cells[0].centroids, twin.cells[0].centroids)


@pytest.mark.slow
def test_compiled_gradients_with_dropout_are_those_of_the_compiled_loss():
    """What backward computes again must see the dropout that forward saw: a slope, against two losses beside it."""
    torch._dynamo.reset()
    lm = small_model("model.dropout=0.3", "model.blocks=1").train()
    ids, labels = batch_of(lm, rows=3)
    model = torch.compile(lm, fullgraph=True)
    way = {name: torch.randn_like(p) for name, p in lm.named_parameters()}

    def loss(step: float) -> torch.Tensor:
        with torch.no_grad():
            for name, p in lm.named_parameters():
                p.add_(way[name], alpha=step)
        torch.manual_seed(5)
        return model(ids, labels, return_logits=False).task_loss

    loss(0.0).backward()
    slope = sum((p.grad * way[name]).sum() for name, p in lm.named_parameters() if p.grad is not None)
    above, below = loss(1e-6), loss(-2e-6)
    assert slope.item() == pytest.approx((above - below).item() / 2e-6, rel=1e-4)
