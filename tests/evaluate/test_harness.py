"""The LM evaluation harness on our models: its prompts are ours to the byte, its scores ours where both define one."""

import json
import math

import lm_eval
import pytest
import torch

from gmt.errors import DataError, GMTError
from gmt.evaluate import harness
from gmt.evaluate.arc import arc_easy, read_items, requests_of
from gmt.evaluate.harness import local_task, official_file, run_task
from gmt.evaluate.likelihood import log_likelihoods
from gmt.hf.load import open_model
from tests.conftest import assert_same, snapshot
from tests.evaluate.conftest import CONTEXT, ITEMS, write_items


@pytest.fixture
def short(tmp_path):
    """Items, in spite of whose lengths the harness must not stop: one choice alone is longer than the context."""
    return write_items(tmp_path / "arc_easy_test.jsonl")


def samples(loaded, folder, **model):
    adapter = harness.GMTHarness(
        loaded.model, loaded.tokenizer, "cpu", batch_size=3, softmax_dtype=torch.float32, **model
    )
    with harness._task_manager("arc_easy", folder) as manager:
        found = lm_eval.simple_evaluate(
            model=adapter, tasks=["arc_easy"], task_manager=manager, log_samples=True, bootstrap_iters=0
        )
    return sorted(found["samples"]["arc_easy"], key=lambda s: s["doc_id"])


def test_prompts_and_scores_are_the_harnesss(loaded, short):
    items = read_items(short)
    theirs = samples(loaded, short.parent)
    pairs = [tuple(argument) for sample in theirs for argument in sample["arguments"]]
    assert pairs == [(item.context, text) for item in items for text in item.continuations()]
    requests = requests_of(items, loaded.words)
    assert any(len(r.context) > CONTEXT for r in requests), "no question had to be cut"
    assert any(len(r.continuation) > CONTEXT for r in requests), "no choice had to be cut"
    ours = log_likelihoods(loaded.lm, requests, batch=4)
    totals = [float(response[0][0]) for sample in theirs for response in sample["resps"]]
    for score, total in zip(ours, totals, strict=True):
        assert math.isclose(score.total, total, abs_tol=2e-4)


def test_raw_accuracy_agrees_item_by_item(loaded, short):
    before = snapshot(loaded.model)
    found = run_task(loaded, "arc_easy", data=short.parent, batch=3)["arc_easy"]
    own = arc_easy(loaded.lm, loaded.words, read_items(short))
    assert found.metrics["acc"].each == own.metrics["acc"].each
    assert found.metrics["acc"].value == own.metrics["acc"].value
    assert found.metrics["acc"].stderr == pytest.approx(own.metrics["acc"].stderr)
    assert set(found.metrics) == {"acc", "acc_norm"}
    assert (found.shots, found.items) == (0, len(read_items(short)))
    assert_same(loaded.model, before)


def test_the_model_is_registered(model_folder, short, loaded):
    """The harness's own entrance, by name."""
    with harness._task_manager("arc_easy", short.parent) as manager:
        found = lm_eval.simple_evaluate(
            model="gmt",
            model_args={"pretrained": str(model_folder)},
            tasks=["arc_easy"],
            task_manager=manager,
            device="cpu",
            batch_size=2,
            bootstrap_iters=0,
        )
    assert (
        found["results"]["arc_easy"]["acc,none"]
        == run_task(loaded, "arc_easy", data=short.parent)["arc_easy"].metrics["acc"].value
    )


def test_only_the_data_source_of_the_official_task_is_replaced(short):
    official = official_file("arc_easy")
    task = local_task("arc_easy", official, short.parent)
    assert task == {
        "include": str(official),
        "task": "arc_easy",
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {"test": str(short.resolve())}},
        "training_split": None,
        "validation_split": None,
    }


@pytest.mark.parametrize(
    ("task", "file", "rows"),
    [
        (
            "piqa",
            "piqa_validation",
            [{"goal": "sit", "sol1": "on a mat", "sol2": "in 345", "label": n % 2} for n in range(4)],
        ),
        (
            "winogrande",
            "winogrande_xl_validation",
            [{"sentence": "the cat sat while _ counted 12", "option1": "they", "option2": "owners", "answer": "2"}],
        ),
        (
            "hellaswag",
            "hellaswag_validation",
            [
                {
                    "ind": n,
                    "activity_label": "Sitting",
                    "ctx_a": "A cat [title] sat.",
                    "ctx_b": "it",
                    "ctx": "A cat sat. it",
                    "endings": ["counted", "sat on a mat", "didn't", "345"],
                    "label": "1",
                }
                for n in range(3)
            ],
        ),
    ],
)
def test_the_papers_other_tasks_run_from_local_files(loaded, tmp_path, task, file, rows):
    (tmp_path / f"{file}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = run_task(loaded, task, data=tmp_path)[task]
    assert found.items == len(rows)
    assert 0 <= found.metrics["acc"].value <= 1


def test_dense_models_run_too(dense_folder, short):
    assert run_task(open_model(dense_folder), "arc_easy", data=short.parent)["arc_easy"].items == len(read_items(short))


def test_options_pass_through(loaded, short):
    def found(**options):
        return run_task(loaded, "arc_easy", data=short.parent, **options)["arc_easy"]

    assert found(limit=1).items == 1
    # the harness's own option, understood by its model: with less context it scores something else
    whole, narrow = samples(loaded, short.parent), samples(loaded, short.parent, max_length=8)
    assert [s["resps"] for s in whole] != [s["resps"] for s in narrow]
    assert found(options={"max_length": 8}).metrics["acc"].each == "".join(str(int(s["acc"])) for s in narrow)
    for name, told in {"max_lenght": "; the nearest is max_length", "dtype": "", "limit": ""}.items():
        with pytest.raises(GMTError, match=f"no option {name!r} that passes through{told}"):
            found(options={name: 8})


def test_examples_never_come_from_the_items_themselves(loaded, short):
    """Without its training split the harness would draw them there, and show an item its own answer."""
    with pytest.raises(DataError, match="come from its train split"):
        run_task(loaded, "arc_easy", data=short.parent, shots=2)
    write_items(short.parent / "arc_easy_train.jsonl", ITEMS[:3])
    assert run_task(loaded, "arc_easy", data=short.parent, shots=2)["arc_easy"].shots == 2


def test_another_split_is_not_taken_in_the_tests_place(loaded, short):
    short.rename(short.with_name("arc_easy_validation.jsonl"))
    with pytest.raises(DataError, match="is scored on its test split"):
        run_task(loaded, "arc_easy", data=short.parent)


def test_marks_are_kept_only_where_their_mean_is_the_metric():
    """A perplexity is no mean of its items' log-likelihoods; and each filter has its own marks."""
    marks = {"none": [{"acc": 1.0, "ppl": -2.0}, {"acc": 0.0, "ppl": -4.0}], "strict": [{"acc": 1.0}, {"acc": 1.0}]}
    values = {"acc,none": 0.5, "acc_stderr,none": 0.5, "ppl,none": 20.1, "acc,strict": 1.0, "alias": "x"}
    found = harness._metrics(values, marks)
    assert {name: metric.each for name, metric in found.items()} == {"acc": "10", "ppl": None, "acc (strict)": "11"}
    assert found["acc"].stderr == 0.5


def test_a_group_keeps_its_own_aggregate():
    tasks = {name: harness.TaskResult(shots, items, name, {}) for name, shots, items in (("one", 0, 3), ("two", 2, 4))}
    found = {"results": {"both": {"acc,none": 0.25}}, "group_subtasks": {"both": ["one", "two"]}}
    group = harness._group(found, "both", tasks)
    assert (group.items, group.shots, group.metrics["acc"].value) == (7, 2, 0.25)


def test_an_empty_choice_is_told(loaded, tmp_path):
    write_items(tmp_path / "arc_easy_test.jsonl", [("Who?", ["the cat", "  "], "A")])
    with pytest.raises(DataError, match="is empty"):
        run_task(loaded, "arc_easy", data=tmp_path)


BAD = {
    "no file": (lambda d: None, "arc_easy", "has no file for arc_easy"),
    "bad line": (
        lambda d: (d / "arc_easy_test.jsonl").write_text('{"a": 1}\n{"b":\n'),
        "arc_easy",
        r"arc_easy_test.jsonl:2: not a JSON object",
    ),
    "empty": (lambda d: (d / "arc_easy_test.jsonl").write_text("\n"), "arc_easy", "holds no items"),
    "not UTF-8": (
        lambda d: (d / "arc_easy_test.jsonl").write_bytes(b'{"a": "\xff"}\n'),
        "arc_easy",
        r"jsonl:1: not a JSON object",
    ),
    "no answer": (
        lambda d: (d / "arc_easy_test.jsonl").write_text('{"question": "q", "choices": {"text": ["a"], "label": []}}'),
        "arc_easy",
        "the harness stopped at arc_easy",
    ),
    "no task": (lambda d: None, "arc_eazy", "no single task 'arc_eazy'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_local_data(loaded, tmp_path, name):
    spoil, task, told = BAD[name]
    spoil(tmp_path)
    with pytest.raises((DataError, GMTError), match=told):
        run_task(loaded, task, data=tmp_path)
