"""The fused cell against the plain one: every output and every gradient, run by Triton's interpreter on the CPU.

bfloat16 is test_bf16.py's, and that of benchmarks on a GPU: the interpreter's own is not to be trusted.
"""

import pytest
import torch

pytest.importorskip("triton")

from gmt.kernels.available import shape_lacks, use_fused
from gmt.memory.cell import MemoryCell
from gmt.model.parity import make_norm
from tests.conftest import small_config


def make_cell(slots: int, hidden: int, navigation: int = 3, seed: int = 0, **memory) -> MemoryCell:
    settings = {"slots": slots, "navigation": navigation} | memory
    cfg = small_config(f"model.hidden={hidden}", *(f"memory.{name}={value}" for name, value in settings.items()))
    torch.manual_seed(seed)
    cell = MemoryCell(cfg)
    cell.reset_memory()
    with torch.no_grad():
        for p in cell.parameters():
            p.add_(torch.randn_like(p) * 0.2)
        cell.norm_centroids.bias.add_(0.5)  # so that the means that are taken out of the states matter
    return cell


def inputs(tokens: int, hidden: int, seed: int = 1):
    """The residual stream, what attention adds to it, and LN2."""
    torch.manual_seed(seed)
    x, update = torch.randn(1, tokens, hidden) * 2 + 1, torch.randn(1, tokens, hidden)
    return x.requires_grad_(), update.requires_grad_(), make_norm(hidden, torch.device("cpu"))


def run(cell, x, update, norm, fused: bool, mask=None, tau=0.3, reseed=None, tracking=False):
    """Output, everything seen, and the gradients of a scalar that mixes them all; or of the tracking term, which is
    small among them, alone."""
    from gmt.kernels.cell import fused_forward

    tau = torch.tensor(tau)
    if fused:
        out, seen = fused_forward(cell, norm, x, update, tau, mask, observe=True, reseed=reseed)
    else:
        h = x if update is None else x + update
        out, _, seen = cell(h, norm(h), tau, mask, observe=True, reseed=reseed)
    torch.manual_seed(9)
    probe = torch.randn(out.shape).to(out.dtype)
    objective = (out * probe).sum() + 50 * seen.track + (seen.usage_sum * torch.randn(seen.usage_sum.shape)).sum()
    objective = 1e4 * seen.track if tracking else objective + seen.ortho + seen.edge + seen.contrast
    leaves = {"x": x, **dict(norm.named_parameters()), **dict(cell.named_parameters())}
    leaves |= {} if update is None else {"update": update}
    found = torch.autograd.grad(objective, list(leaves.values()), allow_unused=True)
    grads = {name: grad for name, grad in zip(leaves, found, strict=True) if grad is not None}
    if not tracking:
        grads["x"] = grads["x"] - probe  # what goes straight through is larger than what the cell adds
    return out, seen, grads


def assert_seen_alike(seen, saw):
    for name, value, other in zip(seen._fields, seen, saw, strict=True):
        if other is not None:
            atol = 5e-5 * min(1.0, float(other.detach().abs().max()))  # the tracking term has 1 - m in it, and is small
            torch.testing.assert_close(value, other, rtol=5e-5, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


def assert_alike(cell, tokens: int, hidden: int, mask=None, attended=True, **kwargs):
    x, update, norm = inputs(tokens, hidden)
    given = (x, update if attended else None, norm)
    mine, seen, grads = run(cell, *given, True, mask, **kwargs)
    want, saw, wanted = run(cell, *given, False, mask, **kwargs)
    torch.testing.assert_close(mine, want, rtol=2e-5, atol=2e-5)
    assert_seen_alike(seen, saw)
    for name, other in wanted.items():
        scale = float(other.abs().max())  # where all cancels, what is left is rounding of the larger terms
        torch.testing.assert_close(
            grads[name], other, rtol=0, atol=2e-4 * scale + 1e-6, msg=lambda m, n=name: f"gradient of {n}: {m}"
        )


# odd token counts, slots that fill no power of two, hidden sizes that fill no tile
@pytest.mark.parametrize(
    ("slots", "hidden", "tokens"),
    [(16, 32, 64), (5, 24, 37), (2, 8, 1), (33, 40, 33), (130, 36, 20), (128, 96, 50), (64, 64, 64), (128, 64, 96)],
)
def test_the_fused_cell_is_the_plain_one(slots, hidden, tokens):
    assert_alike(make_cell(slots, hidden), tokens, hidden)


def test_more_rows_than_programs(monkeypatch):
    """Of LN2's backward, each of whose programs then takes several."""
    from gmt.kernels import operators

    monkeypatch.setattr(operators, "NORM_PROGRAMS", 7)
    assert_alike(make_cell(5, 16), 40, 16)


@pytest.mark.parametrize("rows", [1, 13, 33, 300])
def test_partial_sums_are_added_up(rows):
    from gmt.kernels.operators import _add_up

    # whole numbers: their sums are exact
    parts = [torch.randint(-9, 10, (rows, columns)).float() for columns in (20, 600, 5, 7)]
    factor = torch.tensor([3.0])
    totals = [torch.empty(part.shape[1]) for part in parts]
    _add_up(*zip(parts, totals, strict=True), factor=factor, times=(-2, 1))
    for part, total, times in zip(parts, totals, (1, 1, -6, 3), strict=True):
        assert torch.equal(total, part.sum(0) * times)


@pytest.mark.parametrize(("slots", "hidden", "tokens"), [(16, 32, 64), (5, 24, 37), (9, 24, 500)])
def test_the_tracking_term_alone(slots, hidden, tokens):
    assert_alike(make_cell(slots, hidden), tokens, hidden, tracking=True)


@pytest.mark.parametrize("tau", [0.1, 1.0, 5.0])
def test_at_every_temperature(tau):
    assert_alike(make_cell(12, 24), 40, 24, tau=tau)


# the second fills the tiles of routing and moving, the third those of the products too: nobody looks at what fits
@pytest.mark.parametrize(("slots", "hidden", "tokens"), [(7, 24, 45), (16, 32, 64), (64, 64, 64)])
def test_padding_takes_no_part(slots, hidden, tokens):
    mask = torch.ones(1, tokens, dtype=torch.bool)
    mask[0, 30:] = False
    mask[0, 3] = False
    assert_alike(make_cell(slots, hidden), tokens, hidden, mask=mask)


def test_tokens_on_a_centroid_are_at_the_floor():
    """The clamp of the distance has no gradient, in both."""
    cell = make_cell(6, 24)
    x, update, norm = inputs(20, 24)
    with torch.no_grad():
        norm.weight.copy_(cell.norm_centroids.weight)
        norm.bias.copy_(cell.norm_centroids.bias)
        x[0, :6] = cell.centroids * 40 - update[0, :6]  # z is then C~ itself
    mine, _, grads = run(cell, x, update, norm, True)
    want, _, wanted = run(cell, x, update, norm, False)
    torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-4)
    scale = float(wanted["x"].abs().max())
    torch.testing.assert_close(grads["x"], wanted["x"], rtol=0, atol=5e-4 * scale)


def test_a_residual_stream_far_from_zero():
    """LN2's statistics are no difference of large numbers."""
    cell = make_cell(6, 40)
    x, update, norm = inputs(20, 40)
    x = (x.detach() + 300).requires_grad_()
    mine, _, grads = run(cell, x, update, norm, True)
    want, _, wanted = run(cell, x.double(), update.double(), norm.double(), False)
    torch.testing.assert_close(mine, want.float(), rtol=1e-5, atol=2e-4)
    torch.testing.assert_close(grads["x"], wanted["x"].float(), rtol=0, atol=2e-3 * float(wanted["x"].abs().max()))


@pytest.mark.parametrize(("slots", "hidden", "tokens"), [(7, 24, 21), (16, 64, 96)])
def test_nothing_is_read_that_was_not_written(slots, hidden, tokens):
    """New tensors are full of NaN: what a kernel forgets to write would show."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all()
        assert_alike(make_cell(slots, hidden), tokens, hidden, mask=torch.arange(tokens)[None] % 5 != 2)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("slots", "hidden", "tokens"), [(16, 32, 64), (7, 24, 45)])
def test_what_is_seen_without_gradients_is_the_same(slots, hidden, tokens):
    """As in adaptive validation: nothing is kept for a backward, and memory is written all the same."""
    from gmt.kernels.cell import fused_forward

    cell, (x, update, norm) = make_cell(slots, hidden), inputs(tokens, hidden)
    with torch.no_grad():
        mine, seen = fused_forward(cell, norm, x, update, torch.tensor(0.3))
        want, _, saw = cell(x + update, norm(x + update), torch.tensor(0.3))
    assert seen is not None and saw is not None
    torch.testing.assert_close(mine, want, rtol=2e-5, atol=2e-5)
    assert_seen_alike(seen, saw)


def test_without_an_update():
    assert_alike(make_cell(6, 24), 20, 24, attended=False)


@pytest.mark.parametrize("tokens", [1, 3, 16, 17])
def test_a_few_tokens_are_spread_over_the_chip(tokens):
    """One token or a few of a generated text take kernels of their own."""
    from gmt.kernels.cell import fused_forward

    for slots, hidden in ((5, 24), (33, 72)):
        cell = make_cell(slots, hidden)
        x, update, norm = inputs(tokens, hidden)
        with torch.no_grad():
            for given in (update, None):
                h = x if given is None else x + given
                mine, _ = fused_forward(cell, norm, x, given, 0.4, observe=False)
                want, _, _ = cell(h, norm(h), 0.4, observe=False)
                torch.testing.assert_close(mine, want, rtol=2e-5, atol=2e-5)


def test_reseeds_come_from_the_same_outputs():
    cell = make_cell(5, 16)
    reseed = torch.tensor([3, 0, 11, 7, 5])
    out, seen, _ = run(cell, *inputs(12, 16), True, reseed=reseed)
    assert torch.equal(seen.reseed, out[0, reseed].detach())


def test_ties_go_to_the_lowest_slot():
    """Patterns of plus and minus one have whole numbers for products, whatever the order of the sum: ties are exact."""
    torch.manual_seed(3)
    signs = torch.tensor([1.0, -1.0]).repeat(8)
    patterns = torch.stack([signs[torch.randperm(16)] for _ in range(70)])
    centroids, tokens = patterns[:6], patterns[6:]
    centroids[4] = centroids[1]
    cell = make_cell(6, 16)
    with torch.no_grad():
        cell.centroids.copy_(centroids)
        cell.norm_centroids.reset_parameters()
    norm = torch.nn.LayerNorm(16)
    _, mine, _ = run(cell, tokens[None].clone().requires_grad_(), None, norm, True)
    nearest = (tokens @ centroids.T).argmax(-1)
    assert mine.slot_count[4] == 0 < mine.slot_count[1]
    assert torch.equal(mine.slot_count, torch.bincount(nearest, minlength=6).float())


def test_sums_repeat_bit_for_bit():
    cell = make_cell(9, 24)
    given = inputs(200, 24)
    a, b = (run(cell, *given, True) for _ in range(2))
    for x, y in zip([*a[1][:3], *a[2].values()], [*b[1][:3], *b[2].values()], strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("tokens", [100, 200, 333])
def test_a_tile_of_the_sums_ends_with_its_part(monkeypatch, tokens):
    """Parts are as long as whole tiles, whatever the tile: no token is counted twice."""
    from gmt.kernels import operators as module
    from gmt.model.parity import sum_distances

    tile = module._tile
    wide = {"BT": 128, "FP": 16, "BH": 16, "num_warps": 4, "num_stages": 1}
    monkeypatch.setattr(module, "_tile", lambda kernel, *a: wide if kernel == "sums" else tile(kernel, *a))
    cfg = small_config("model.hidden=24", "memory.slots=9")
    assert max(sum_distances(cfg, torch.device("cpu"), "fp32", tokens).values()) < 1e-6


def test_strided_input_is_read_as_it_is():
    from gmt.kernels.cell import fused_forward

    cell = make_cell(6, 16)
    big = torch.randn(2, 9, 40)
    x, update, mask = big[..., :16], big[..., 20:36], torch.tensor([[True, False], [True, True]])[:, -1:].expand(2, 9)
    norm = make_norm(16, torch.device("cpu"))
    out, seen = fused_forward(cell, norm, x, update, 0.4, mask)
    want, _, saw = cell(x + update, norm(x + update), 0.4, mask)
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)
    assert torch.equal(seen.slot_count, saw.slot_count)


def test_a_commit_before_the_backward_is_an_error():
    from gmt import GraphMemoryLM
    from tests.conftest import batch_of

    lm = GraphMemoryLM(small_config("memory.kernels=fused"))
    out = lm(*batch_of(lm), return_logits=False)
    lm.commit(out.writes)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.loss.backward()


def test_frozen_and_never_stale():
    """Without gradients the tables are kept, and an edit of memory is seen."""
    from gmt.kernels.cell import fused_forward

    cell = make_cell(6, 16)
    x, update, norm = inputs(20, 16)
    with torch.no_grad():
        for _ in range(2):
            fused, seen = fused_forward(cell, norm, x, update, 0.4, observe=False)
            plain, _, _ = cell(x + update, norm(x + update), 0.4, observe=False)
            assert seen is None
            torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)
            cell.centroids.mul_(-1)


def test_the_choice_is_by_setting_and_shape(monkeypatch):
    from gmt.errors import GMTError

    z = torch.randn(1, 2, 8)
    assert not use_fused(small_config(), z), "the interpreter is for tests that ask for it"
    assert use_fused(small_config("memory.kernels=fused"), z)
    assert not use_fused(small_config("memory.kernels=plain"), z)
    with pytest.raises(GMTError, match=r"torch.float64 is neither float32 nor bfloat16"):
        use_fused(small_config("memory.kernels=fused"), z.double())
    assert shape_lacks(small_config("memory.slots=256")) is None
    assert "257 slots are more than 256" in (shape_lacks(small_config("memory.slots=257")) or "")
    assert "129 slots are more than 128 in float32" in (
        shape_lacks(small_config("memory.slots=129"), torch.float32) or ""
    )
    assert "hidden size of 1032" in (shape_lacks(small_config("model.hidden=1032")) or "")
    with pytest.raises(GMTError, match="the fused kernels cannot run: 300 slots are more than 128 in float32"):
        use_fused(small_config("memory.kernels=fused", "memory.slots=300"), z)
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(GMTError, match="needs a CUDA device"):
        use_fused(small_config("memory.kernels=fused"), z)


def test_a_block_without_tables_says_what_it_wants():
    from gmt.kernels.cell import fused_block

    x, update, norm = inputs(5, 16)
    with pytest.raises(ValueError, match="wants its tables"):
        fused_block(make_cell(6, 16), norm, x, update, 0.4)


def test_a_gpu_with_too_little_shared_memory_is_told_what_to_set(monkeypatch):
    from triton.runtime.errors import OutOfResources

    from gmt.errors import GMTError
    from gmt.kernels import triton_cell
    from gmt.kernels.cell import fused_forward

    class Small:
        def __getitem__(self, grid):
            def launch(*args, **kwargs):
                raise OutOfResources(106496, 101376, "shared memory")

            return launch

    monkeypatch.setattr(triton_cell, "move_kernel", Small())
    x, update, norm = inputs(20, 16)
    with pytest.raises(GMTError, match=r"do not fit this GPU .*shared memory.*: set memory.kernels=plain"):
        fused_forward(make_cell(6, 16), norm, x, update, 0.4)
