"""The embedding whose compiled gradient is torch's own, in one piece."""

import torch
from torch import nn

from gmt.kernels.embedding import embedding


def loss(layer, ids):
    return embedding(layer, ids).sin().sum()


def test_compiled_values_and_gradients_are_those_of_the_layer():
    layer, ids = nn.Embedding(11, 6).double(), torch.tensor([[3, 3, 0, 10], [3, 7, 7, 1]])
    compiled = torch.compile(loss, fullgraph=True)(layer, ids)
    wanted = layer(ids).sin().sum()
    torch.testing.assert_close(compiled, wanted)
    (found,) = torch.autograd.grad(compiled, layer.weight)
    # the chain rule by hand: each row has the sum of its tokens' gradients
    by_hand = torch.zeros_like(layer.weight)
    for token in ids.flatten().tolist():
        by_hand[token] += layer.weight[token].cos()
    torch.testing.assert_close(found, by_hand)


def test_compile_does_not_take_the_gradient_apart():
    """In pieces it would be a scatter, by atomics on a GPU."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    seen = []

    def look(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    layer, ids = nn.Embedding(11, 6), torch.tensor([1, 1, 4])
    torch.compile(loss, fullgraph=True, backend=aot_autograd(fw_compiler=look, bw_compiler=look))(layer, ids).backward()
    assert any("gmt.embedding_backward" in name for name in seen)
    assert not any("index_put" in name or "scatter" in name for name in seen)
