"""A language model whose blocks are fused against one whose blocks are plain, by Triton's interpreter on the CPU."""

import pytest
import torch

pytest.importorskip("triton")

from gmt import GraphMemoryLM
from tests.conftest import batch_of, small_config


@pytest.mark.parametrize("observe", [True, False])
def test_a_whole_model_reads_nothing_that_was_not_written(observe):
    torch.use_deterministic_algorithms(True)
    try:
        test_a_whole_model_takes_the_fused_way(observe, recompute=False, padded=True)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.slow
def test_a_compiled_model_takes_the_fused_way():
    """With the operators that put all blocks' tensors together, which eager mode does not take."""
    torch.manual_seed(0)
    lm = GraphMemoryLM(small_config("memory.kernels=fused", "model.dropout=0"))
    batch = batch_of(lm, rows=2, length=9)
    found = []
    for model in (lm, torch.compile(lm, fullgraph=True)):
        lm.zero_grad()
        out = model(*batch, return_logits=False)
        out.loss.backward()
        writes = [out.writes.slot_sum, out.writes.slot_count, out.writes.usage_sum]
        assert [part.requires_grad for part in writes] == [False, False, True]
        grads = [p.grad for p in lm.parameters() if p.grad is not None]
        found.append((out.loss, *out.aux.values(), *writes, *grads))
    torch._dynamo.reset()  # or torch takes the next test's other shapes for changing ones
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [["memory.kernels=fused"], ["memory.kernels=plain"], ["model.sublayer=dense"]])
def test_a_compiled_model_takes_batches_of_any_length(settings):
    """The second length has torch compile for all of them: sizes are then no numbers. Inductor is left out, which would
    take three minutes."""
    torch._dynamo.reset()
    lm = GraphMemoryLM(small_config("model.dropout=0", "model.blocks=1", *settings))
    compiled = torch.compile(lm, backend="aot_eager", fullgraph=True)
    for rows, length in ((2, 9), (3, 6), (2, 1)):
        batch, losses = batch_of(lm, rows, length), []
        for model in (lm, compiled):
            lm.zero_grad()
            loss = model(*batch, return_logits=False).loss
            loss.backward()
            losses.append(torch.cat([loss[None], *(p.grad.flatten() for p in lm.parameters() if p.grad is not None)]))
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


@pytest.mark.slow
def test_what_a_compiled_pass_does_not_use_has_no_gradient():
    """Not one of zeros either: an optimizer would decay it."""
    lm = GraphMemoryLM(small_config("memory.kernels=fused", "memory.train_centroids=false", "memory.edges=frozen"))
    out = torch.compile(lm, fullgraph=True)(*batch_of(lm), return_logits=False, observe=False)
    out.loss.backward()
    torch._dynamo.reset()
    for cell in lm.cells:
        assert cell.momentum.grad is None and cell.centroids.grad is None and cell.edges.grad is None
        assert cell.gate.grad is not None


@pytest.mark.parametrize("compiled", [False, True])
def test_a_few_tokens_take_kernels_of_their_own(compiled, monkeypatch):
    """With tables that are kept, and with those that a compiled pass makes itself."""
    from gmt.kernels import operators

    called = []
    few = operators._few
    monkeypatch.setattr(operators, "_few", lambda *given: called.append(few(*given)))
    lm = GraphMemoryLM(small_config("memory.kernels=fused")).eval()
    plain = GraphMemoryLM(small_config("memory.kernels=plain")).eval()
    for norm in (block.norm2 for block in lm.blocks):
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    plain.load_state_dict(lm.state_dict())
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        found = (torch.compile(lm, fullgraph=True) if compiled else lm)(ids, observe=False).logits
        torch.testing.assert_close(found, plain(ids, observe=False).logits, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
    assert len(called) == len(lm.cells)


@pytest.mark.parametrize("kernels", ["fused", "plain"])
def test_what_was_seen_can_be_added_to_before_the_backward(kernels):
    """As ranks do that add up what each of them saw."""
    lm = GraphMemoryLM(small_config(f"memory.kernels={kernels}"))
    out = lm(*batch_of(lm), return_logits=False)
    for part in out.writes[:3]:
        assert part.is_contiguous()
        part.detach().add_(1)
    out.writes.slot_count.add_(1)
    out.loss.backward()


@pytest.mark.parametrize("observe", [True, False])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_a_whole_model_takes_the_fused_way(observe, recompute, padded):
    """Loss, gradients and writes of the language model, blocks fused or plain."""
    found = {}
    for kernels in ("fused", "plain"):
        torch.manual_seed(0)
        lm = GraphMemoryLM(small_config(f"memory.kernels={kernels}"))
        lm.gradient_checkpointing = recompute
        ids, labels = batch_of(lm, rows=2, length=9)
        mask = torch.ones_like(ids, dtype=torch.bool) if padded else None
        if mask is not None:
            mask[1, 6:] = False
        out = lm(ids, labels, mask=mask, observe=observe, return_logits=False)
        out.loss.backward()
        writes = [] if out.writes is None else [out.writes.slot_sum, out.writes.slot_count, out.writes.usage_sum]
        assert (out.writes is not None) == observe
        grads = [p.grad for p in lm.parameters() if p.grad is not None]
        found[kernels] = (out.loss, *writes, *grads)
    for a, b in zip(*found.values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-5)
