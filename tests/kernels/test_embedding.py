"""The embedding whose compiled gradient is torch's own, in one piece."""

import torch

from gmt.kernels.embedding import Embedding


def loss(layer, ids):
    return layer(ids).sin().sum()


def test_compiled_values_and_gradients_are_those_of_the_layer():
    layer, ids = Embedding(11, 6).double(), torch.tensor([[3, 3, 0, 10], [3, 7, 7, 1]])
    compiled = torch.compile(loss, fullgraph=True)(layer, ids)
    torch.testing.assert_close(compiled, layer(ids).sin().sum())
    (found,) = torch.autograd.grad(compiled, layer.weight)
    # the chain rule by hand: each row has the sum of its tokens' gradients
    by_hand = torch.zeros_like(layer.weight)
    for token in ids.flatten().tolist():
        by_hand[token] += layer.weight[token].cos()
    torch.testing.assert_close(found, by_hand)


def test_a_slice_is_the_rows_with_its_numbers():
    layer = Embedding(11, 6)
    assert torch.equal(layer(slice(2, 7)), layer(torch.arange(2, 7)))


def test_hooks_are_called_compiled_or_not():
    """Who looks at a model by its modules sees this one too."""
    layer, seen = Embedding(11, 6), []
    layer.register_forward_hook(lambda module, given, out: seen.append(tuple(out.shape)))
    for run in (loss, torch.compile(loss, fullgraph=True)):
        run(layer, torch.tensor([1, 2]))
    assert seen == [(2, 6), (2, 6)]


def targets(layer) -> list[str]:
    """What the compiled graphs of forward and backward call, taken apart as compile takes them."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._inductor.decomposition import select_decomp_table

    seen = []

    def look(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=look, bw_compiler=look, decompositions=select_decomp_table())
    torch.compile(loss, fullgraph=True, backend=backend)(layer, torch.tensor([1, 1, 4])).backward()
    return seen


def test_compile_does_not_take_the_gradient_apart():
    """In pieces it is a scatter, by atomics on a GPU: torch's own layer shows it."""
    assert any("index_put" in name for name in targets(torch.nn.Embedding(11, 6)))
    found = targets(Embedding(11, 6))
    assert any("gmt.embedding_backward" in name for name in found)
    assert not any("index_put" in name or "scatter" in name for name in found)
