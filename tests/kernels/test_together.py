"""Tensors of all blocks put together and taken apart: torch.stack and torch.unbind, compiled and not."""

import pytest
import torch

from gmt.kernels.together import apart, together


def both_ways(x):
    """Each part of what comes apart is used, and so is the whole: views of it would be written over in backward."""
    whole = together([x[0] * 2, x[1].sin(), x[2]])
    parts = apart(whole * 3)
    return sum((part * part * (index + 1)).sum() for index, part in enumerate(parts)) + (whole**3).sum()


def by_torch(x):
    whole = torch.stack([x[0] * 2, x[1].sin(), x[2]])
    parts = (whole * 3).unbind()
    return sum((part * part * (index + 1)).sum() for index, part in enumerate(parts)) + (whole**3).sum()


@pytest.mark.parametrize("compiled", [False, True])
def test_values_and_gradients_are_those_of_stack_and_unbind(compiled):
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    found = torch.compile(both_ways, fullgraph=True)(x) if compiled else both_ways(x)
    wanted = by_torch(x)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found, x), torch.autograd.grad(wanted, x))


def test_parts_that_nobody_uses_have_no_gradient():
    def first(x):
        return apart(x * 2)[0].sum()

    x = torch.randn(3, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(torch.compile(first, fullgraph=True)(x), x)
    assert torch.equal(grad, torch.tensor([[2.0], [0], [0]]).expand(3, 4))


def test_what_comes_apart_is_no_view():
    """A compiled backward may reuse the room of what was saved for it: of views too, and then the whole is lost."""
    whole = torch.randn(2, 3)
    parts = torch.ops.gmt.apart(whole)
    parts[0].zero_()
    assert whole[0].ne(0).all()


def test_operators_are_registered_as_torch_wants_them():
    x, y = (torch.randn(2, 3, requires_grad=True) for _ in range(2))
    torch.library.opcheck(torch.ops.gmt.together.default, ([x, y],))
    torch.library.opcheck(torch.ops.gmt.apart.default, (x,))
