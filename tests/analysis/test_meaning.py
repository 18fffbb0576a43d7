"""What a move promotes, against the model's own logits."""

import numpy as np
import pytest
import torch

from gmt.analysis import trace
from gmt.analysis.meaning import (
    arrival,
    busiest_moves,
    busiest_slots,
    logit_change,
    meanings,
    move,
    typical_scale,
    word,
)
from gmt.hf.load import open_model
from tests.analysis.test_diagnostics import hand_made
from tests.evaluate.conftest import make_model


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return open_model(make_model(tmp_path_factory.mktemp("model") / "memory"))


def test_a_move_is_the_gated_and_normed_difference(loaded):
    cell = loaded.lm.cells[1]
    with torch.no_grad():
        norm, after = cell.norm_centroids, cell.norm_displacement
        states = torch.nn.functional.layer_norm(cell.centroids, (16,), norm.weight, norm.bias)
        for found, difference in (
            (move(loaded.lm, 1, 4, 2), states[2] - states[4]),
            (arrival(loaded.lm, 1, 3), states[3] - states.mean(0)),
        ):
            centred = difference - difference.mean()
            unit = centred / (centred.square().mean() + after.eps).sqrt()
            wanted = torch.sigmoid(cell.gate) * (unit * after.weight + after.bias)
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_the_change_of_the_logits_is_the_models_own(loaded):
    """A small step along the vector changes the logits as said, the norm's factor held; exactly so for that factor."""
    lm = loaded.lm
    torch.manual_seed(0)
    x, vector = torch.randn(16), torch.randn(16)
    norm = lm.norm_final
    with torch.no_grad():
        scale = float((x.var(correction=0) + norm.eps).rsqrt())

        def logits(y: torch.Tensor) -> torch.Tensor:
            return ((y - y.mean()) * scale * norm.weight + norm.bias) @ lm.token_embedding.weight.T

        torch.testing.assert_close(
            logit_change(lm, vector[None], scale)[0], logits(x + vector) - logits(x), rtol=1e-3, atol=1e-4
        )


def test_the_words_are_those_whose_logits_change_most(loaded):
    vector = torch.randn(1, 16, generator=torch.Generator().manual_seed(3))
    change = logit_change(loaded.lm, vector, 0.7)[0]
    change = change - change.mean()  # what all logits share changes no probability
    (found,) = meanings(loaded.lm, vector, 0.7, loaded.words, top=5)
    order = change.argsort(descending=True)
    assert found.promoted[0] == (word(loaded.words, int(order[0])), pytest.approx(float(change.max())))
    assert found.suppressed[0] == (word(loaded.words, int(order[-1])), pytest.approx(float(change.min())))
    values = [value for _, value in found.promoted]
    assert len(values) == 5 and values == sorted(values, reverse=True)


def test_the_scale_is_the_texts_own(loaded):
    found = trace(loaded, "the cat sat on a mat")
    assert typical_scale([found, found]) == pytest.approx(float(found.final_scale.mean()))


def test_busiest_slots_and_moves_by_hand():
    made = hand_made((0, 0, 1, 3), (1, 1, 1, 3), (1, 2, 3, 4))
    assert busiest_slots(made, 0, 9).tolist() == [1, 0, 3]  # 4, 2 and 2 ends; slot 2 takes no part
    assert busiest_moves(made, 0, 9) == [(0, 1, 2)], "who stays does not move"
    assert np.array_equal(made.counts(0), [[0, 2, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]])


def test_every_token_of_the_vocabulary_has_a_name(loaded):
    named = [word(loaded.words, index) for index in range(loaded.words.get_vocab_size())]
    assert all(named) and "\ufffd" not in "".join(named)
