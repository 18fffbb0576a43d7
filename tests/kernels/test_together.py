"""Tensors of all blocks put together and taken apart: torch.stack and torch.unbind, compiled and not."""

import pytest
import torch

from gmt.kernels.together import apart, together


def by_torch(x):
    return [torch.stack(list(kind)) for kind in x]


def both_ways(x, stack=lambda x: together(*x), unbind=lambda x: apart(*x)):
    """Each part of what comes apart is used, and so is the whole; of two kinds and types."""
    wholes = stack([[x[0] * 2, x[1].sin(), x[2]], [(x[0, :2] + i).float() for i in range(3)]])
    kinds = unbind(wholes)
    parts = sum((part * part * (index + 1)).sum() for kind in kinds for index, part in enumerate(kind))
    return parts + sum((whole**3).sum() for whole in wholes)


class Views(torch.autograd.Function):
    """What `apart` would be without its copy."""

    @staticmethod
    def forward(ctx, whole):
        return whole.unbind()

    @staticmethod
    def backward(ctx, *grads):
        return torch.ops.gmt.put_together(list(grads), 3)[0]


@pytest.mark.parametrize("compiled", [False, True])
def test_values_and_gradients_are_those_of_stack_and_unbind(compiled):
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    found = torch.compile(both_ways, fullgraph=True)(x) if compiled else both_ways(x)
    wanted = both_ways(x, by_torch, lambda wholes: [whole.unbind() for whole in wholes])
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found, x), torch.autograd.grad(wanted, x))


def test_parts_that_nobody_uses_have_no_gradient():
    def first(x):
        one, other = apart(x * 2, x * 3)
        assert len(one) == len(other) == 3
        return one[0].sum()

    x = torch.randn(3, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(torch.compile(first, fullgraph=True)(x), x)
    assert torch.equal(grad, torch.tensor([[2.0], [0], [0]]).expand(3, 4))


def test_torch_writes_over_views_and_so_they_are_copied():
    """A compiled backward reuses the room of what was saved for it: of views too, and then the whole is lost. Should
    this fail, torch has mended it, and nothing needs to be copied."""
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)

    def by_views(x):
        whole = x * 2
        parts = Views.apply(whole)
        return sum((part * part * (index + 1)).sum() for index, part in enumerate(parts)) + (whole**3).sum()

    (right,) = torch.autograd.grad(by_views(x), x)
    (wrong,) = torch.autograd.grad(torch.compile(by_views, fullgraph=True)(x), x)
    assert not torch.allclose(right, wrong)


def test_what_comes_apart_is_no_view():
    whole = torch.randn(2, 3)
    parts = torch.ops.gmt.take_apart([whole])
    parts[0].zero_()
    assert whole[0].ne(0).all()


def test_operators_are_registered_as_torch_wants_them():
    x, y = (torch.randn(2, 3, requires_grad=True) for _ in range(2))
    a, b = (torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    torch.library.opcheck(torch.ops.gmt.put_together.default, ([x, y, a, b], 2))
    torch.library.opcheck(torch.ops.gmt.take_apart.default, ([x, y],))
    torch.library.opcheck(torch.ops.gmt.take_apart.default, ([x, y.double()],))
