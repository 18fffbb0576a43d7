"""Generation, tasks and the harness see the edited model while a context lasts, and the plain one after it."""

import pytest
import torch

from gmt.analysis.interventions import Edges, Scale, intervene


def test_generation_evaluation_and_tasks_run_under_an_edit(tmp_path):
    """`transformers`' own generate, validation and a task see the edited model, and the plain one afterwards."""
    from gmt.evaluate.arc import NAME
    from gmt.evaluate.generation import Sampling, generate
    from gmt.evaluate.run import EvalOptions, run_one
    from gmt.hf.load import open_model
    from tests.evaluate.conftest import make_model, write_items

    loaded = open_model(make_model(tmp_path / "model"))
    items = EvalOptions(task_data=write_items(tmp_path / "items" / "arc_easy_test.jsonl").parent, precision="fp32")
    edits = [Scale(alpha=-3.0), Edges(form="identity")]

    def everything() -> tuple[str, list[float]]:
        scores = run_one(loaded, NAME, items)[NAME].metrics["acc"]
        return generate(loaded, "the cat sat on", Sampling(tokens=12, temperature=0))[0], scores.values() or []

    plain = everything()
    with intervene(loaded.lm, edits) as fired:
        edited = everything()
        ids = loaded.words.encode("the cat sat on").ids
        start = len(ids)
        with torch.no_grad():
            for _ in range(12):
                ids.append(int(loaded.lm(torch.tensor([ids]), observe=False).logits[0, -1].argmax()))
    assert edited[0] == loaded.words.decode(ids[start:]) != plain[0], "cached, as it is uncached"
    assert len(edited[1]) == len(plain[1]) and all(fired.counts)
    assert everything() == plain


def test_the_harness_runs_under_an_edit(tmp_path):
    pytest.importorskip("lm_eval")
    from gmt.evaluate.run import EvalOptions, run_one
    from gmt.hf.load import open_model
    from tests.evaluate.conftest import make_model, write_items

    loaded = open_model(make_model(tmp_path / "model"))
    folder = write_items(tmp_path / "items" / "arc_easy_test.jsonl").parent
    options = EvalOptions(task_data=folder, precision="fp32", batch=2)
    with intervene(loaded.lm, [Scale(alpha=0.0)]) as fired:
        found = run_one(loaded, "arc_easy", options)
    assert fired.counts[0] > 0 and found["arc_easy"].items == 6
