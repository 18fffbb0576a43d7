"""`gmt generate`: seeds, streaming, adaptive memory that is restored, and traces that are the routes."""

import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

from gmt.cli import app
from gmt.errors import GMTError
from gmt.evaluate.generation import Sampling, generate
from gmt.hf.load import open_model
from tests.conftest import assert_same, snapshot
from tests.evaluate.conftest import CONTEXT

PROMPT = "the cat sat on"


def test_greedy_is_the_argmax_of_the_model(loaded):
    text = generate(loaded, PROMPT, Sampling(tokens=8, temperature=0))[0]
    ids = loaded.words.encode(PROMPT).ids
    start = len(ids)
    for _ in range(8):
        with torch.no_grad():
            ids.append(int(loaded.lm(torch.tensor([ids]), observe=False).logits[0, -1].argmax()))
    assert text == loaded.words.decode(ids[start:])


def test_a_sample_is_a_function_of_its_seed(loaded):
    state = torch.get_rng_state()
    a, b = (generate(loaded, PROMPT, Sampling(tokens=10, seed=3, samples=2)) for _ in range(2))
    assert a == b and a[0] != a[1]
    assert generate(loaded, PROMPT, Sampling(tokens=10, seed=4)) == [a[1]]
    assert torch.equal(torch.get_rng_state(), state), "the caller's generator was moved"


def test_top_k_and_top_p_narrow_the_choice(loaded):
    greedy = generate(loaded, PROMPT, Sampling(tokens=10, temperature=0))
    assert generate(loaded, PROMPT, Sampling(tokens=10, top_k=1, seed=5)) == greedy
    assert generate(loaded, PROMPT, Sampling(tokens=10, top_p=1e-6, seed=5)) == greedy
    assert generate(loaded, PROMPT, Sampling(tokens=10, seed=5)) != greedy


def test_pieces_stream_in_order(loaded):
    pieces: list[tuple[int, str]] = []
    texts = generate(loaded, PROMPT, Sampling(tokens=12, samples=2), tell=lambda *piece: pieces.append(piece))
    assert len(pieces) > 4
    assert ["".join(p for n, p in pieces if n == sample) for sample in (0, 1)] == texts


def test_a_character_of_several_tokens_comes_whole(loaded):
    from gmt.evaluate.generation import _Pieces

    pieces: list[str] = []
    streamer = _Pieces(loaded.words, pieces.append)
    streamer.put(torch.tensor([[1, 2]]))  # the prompt
    ids = loaded.words.encode("sat 語 on").ids
    for token in ids:
        streamer.put(torch.tensor([token]))
    streamer.end()
    assert "".join(pieces) == "sat 語 on"
    assert not any("\ufffd" in piece for piece in pieces)
    assert len(ids) > len(pieces) > 2


def test_adaptive_memory_takes_writes_and_is_restored(loaded):
    before = snapshot(loaded.model)
    seen = []
    frozen = generate(loaded, PROMPT, Sampling(tokens=20, temperature=0))
    adaptive = generate(
        loaded,
        PROMPT,
        Sampling(tokens=20, temperature=0),
        adaptive=True,
        tell=lambda *_: seen.append(loaded.lm.cells[0].centroids.detach().clone()),
    )
    assert not torch.equal(seen[0], before["model.blocks.0.memory.centroids"]), "nothing was written"
    assert not torch.equal(seen[0], seen[-1]), "only the prompt was written"
    assert_same(loaded.model, before)
    assert generate(loaded, PROMPT, Sampling(tokens=20, temperature=0)) == frozen
    # twice in a row each sample starts from the same memory
    assert generate(loaded, PROMPT, Sampling(tokens=20, temperature=0, samples=2), adaptive=True) == adaptive * 2


def test_memory_is_restored_after_an_exception(loaded):
    before = snapshot(loaded.model)

    def broken(sample, piece):
        raise RuntimeError("the pipe is closed")

    with pytest.raises(RuntimeError, match="pipe"):
        generate(loaded, PROMPT, Sampling(tokens=20), adaptive=True, tell=broken)
    assert_same(loaded.model, before)
    assert not loaded.model._forward_hooks


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_trace_is_the_routes_of_the_tokens_read(loaded, tmp_path, adaptive):
    path = tmp_path / "trace.safetensors"
    texts = generate(loaded, PROMPT, Sampling(tokens=9, seed=2), trace=path, adaptive=adaptive)
    with safe_open(path, "pt") as file:
        facts, ids = file.metadata(), file.get_tensor("sample.0.ids")
        source = file.get_tensor("sample.0.block.1.source")
        moved = file.get_tensor("sample.0.block.1.displacement")
    assert facts["text.0"] == texts[0] and facts["sha256"] == loaded.sha256
    assert facts["memory"] == ("adaptive" if adaptive else "frozen")
    assert source.shape == (len(ids) - 1, 6) and moved.shape == (len(ids) - 1, 16)
    with torch.no_grad():
        route = loaded.lm(ids[None, :-1], observe=False, return_routes=True).routes[1]
    close = torch.allclose(route.source[0], source, atol=1e-5)
    assert close is not adaptive, "adaptive memory moved on, frozen memory did not"


def test_a_long_prompt_and_the_end_of_the_context(loaded):
    with pytest.raises(GMTError, match="has no room left"):
        generate(loaded, "cat " * 100, Sampling(tokens=1))
    room = CONTEXT - len(loaded.words.encode(PROMPT).ids)
    wanted = generate(loaded, PROMPT, Sampling(tokens=room, temperature=0))
    assert generate(loaded, PROMPT, Sampling(tokens=1000, temperature=0)) == wanted


def test_an_empty_prompt_starts_after_the_end_of_a_text(loaded):
    assert generate(loaded, "", Sampling(tokens=5, temperature=0))[0]


def test_the_command(model_folder, tmp_path):
    arguments = ["generate", str(model_folder), PROMPT, "--tokens", "6", "--samples", "2", "--device", "cpu"]
    shown = CliRunner().invoke(app, [*arguments, "--trace", str(tmp_path / "t.safetensors"), "--adaptive"])
    assert shown.exit_code == 0, shown.output
    assert shown.output.count(PROMPT) == 2 and "sample 2 of 2" in shown.output
    assert (tmp_path / "t.safetensors").exists()


BAD = [
    (["--top-p", "0"], "top-p must be over 0"),
    (["--tau", "0"], "the routing temperature must lie between"),
    (["--trace", "/no/where/t.safetensors"], "cannot write the trace"),
    (["--trace", "/tmp"], "cannot write the trace to /tmp: it is a folder"),
    (["--temperature", "1e-40"], "temperature must be 0"),
]


@pytest.mark.parametrize(("arguments", "told"), BAD)
def test_bad_input_is_one_sentence(model_folder, arguments, told):
    shown = CliRunner().invoke(
        app, ["generate", str(model_folder), "a", "--tokens", "2", "--device", "cpu", *arguments]
    )
    assert shown.exit_code == 1
    assert told in shown.output


def test_a_dense_model_has_nothing_to_adapt_or_trace(dense_folder, tmp_path):
    dense = open_model(dense_folder)
    assert generate(dense, PROMPT, Sampling(tokens=3))
    with pytest.raises(GMTError, match="no memory to adapt"):
        generate(dense, PROMPT, Sampling(tokens=3), adaptive=True)
    with pytest.raises(GMTError, match="no routes to trace"):
        generate(dense, PROMPT, Sampling(tokens=3), trace=tmp_path / "t")
