"""`gmt eval` from end to end: modes, bits per byte, repeatability, results on disk, tables and comparison."""

import hashlib
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from gmt.cli import app
from gmt.errors import GMTError
from gmt.evaluate import run as module
from gmt.evaluate.results import Results, difference
from gmt.evaluate.run import EvalOptions, evaluate
from gmt.evaluate.text_bytes import byte_lengths
from gmt.hf.load import open_model
from tests.evaluate.conftest import CONTEXT, ITEMS, VOCAB, make_model, write_items


def cli(*arguments):
    return CliRunner().invoke(app, ["eval", *map(str, arguments)])


def hashes(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir() if p.is_file()}


@pytest.fixture
def items(tmp_path) -> Path:
    return write_items(tmp_path / "items" / "arc_easy_test.jsonl").parent


def test_loss_perplexity_and_bits_are_those_of_the_definition(model_folder, stream):
    """Mean over batches of the mean over tokens; bits of all tokens over the bytes of the text they spell."""
    found = evaluate(model_folder, EvalOptions(data=stream, batch=3, batches=4, device="cpu")).validation["frozen"]
    loaded = open_model(model_folder)
    ids = torch.from_numpy(np.fromfile(stream / "val.bin", dtype=np.uint16).astype(np.int64))
    losses, nats, text = [], 0.0, b""
    for batch in range(4):
        each = []
        for window in range(batch * 3, batch * 3 + 3):
            tokens = ids[window * CONTEXT : (window + 1) * CONTEXT + 1]
            with torch.no_grad():
                logits = loaded.lm(tokens[None, :-1], observe=False).logits[0].double()
            each += [float(torch.logsumexp(row, 0) - row[t]) for row, t in zip(logits, tokens[1:], strict=True)]
            for token in tokens[1:].tolist():
                piece = loaded.words.id_to_token(token)
                alphabet = {c: b for b, c in _gpt2_bytes().items()}
                text += b"" if piece == "<|endoftext|>" else bytes(alphabet[c] for c in piece)
        losses.append(sum(each) / len(each))
        nats += sum(each)
    assert found.loss.value == pytest.approx(sum(losses) / 4, abs=1e-5)
    assert found.perplexity == pytest.approx(math.exp(sum(losses) / 4), rel=1e-4)
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / len(text), rel=1e-5)
    assert (found.tokens, found.batches) == (12 * CONTEXT, 4)
    assert found.loss.stderr == pytest.approx(np.std(losses, ddof=1) / 2, rel=1e-3)


def _gpt2_bytes() -> dict[int, str]:
    """Byte -> character, from the definition: printable bytes are themselves, the others follow from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + n) for n, b in enumerate(others)}


def test_byte_lengths_spell_the_text(model_folder):
    words = open_model(model_folder).words
    lengths = byte_lengths(words)
    for text in ("naïve café 日本 ", "a\n\tb"):
        assert lengths[words.encode(text).ids].sum() == len(text.encode())
    assert lengths[words.token_to_id("<|endoftext|>")] == 0


def test_twice_gives_the_same_and_leaves_the_checkpoint(model_folder, stream, items):
    before = hashes(model_folder)
    options = EvalOptions(
        data=stream, modes=("frozen", "adaptive", "adaptive-carry"), tasks=("arc-easy-standalone",), task_data=items,
        batches=3, device="cpu",
    )  # fmt: skip
    a, b = evaluate(model_folder, options), evaluate(model_folder, options)
    assert (a.validation, a.tasks) == (b.validation, b.tasks)
    assert hashes(model_folder) == before
    assert a.model["sha256"] == b.model["sha256"]


def test_the_modes_differ_as_they_say(model_folder, stream, monkeypatch):
    """Frozen and adaptive leave the model bit for bit; adaptive-carry does not, and says so."""
    kept = {}
    opened = module.open_model

    def spy(*args, **kwargs):
        kept["loaded"] = opened(*args, **kwargs)
        kept["before"] = {n: t.clone() for n, t in kept["loaded"].model.state_dict().items()}
        return kept["loaded"]

    monkeypatch.setattr(module, "open_model", spy)
    said = {}
    for mode in ("frozen", "adaptive", "adaptive-carry"):
        said[mode] = evaluate(
            model_folder, EvalOptions(data=stream, modes=(mode,), batches=3, device="cpu")
        ).validation[mode]
        after = kept["loaded"].model.state_dict()
        changed = {n for n, t in after.items() if not torch.equal(t, kept["before"][n])}
        assert bool(changed) == (mode == "adaptive-carry")
        assert all(name.endswith(("centroids", "usage", "age")) for name in changed)
    assert said["frozen"].loss.value != said["adaptive"].loss.value
    assert "restored" in said["adaptive"].memory
    assert "keeps the writes" in said["adaptive-carry"].memory


def test_adaptive_carry_is_carried_into_the_tasks(model_folder, stream, items):
    def found(mode):
        options = EvalOptions(
            data=stream, modes=(mode,), tasks=("arc-easy-standalone",), task_data=items, device="cpu", batches=20
        )
        return evaluate(model_folder, options).tasks["arc-easy-standalone"]

    assert found("adaptive").memory == "as in the checkpoint"
    carried = found("adaptive-carry")
    assert carried.memory == "as adaptive-carry validation left it"
    assert carried.key != found("adaptive").key


def test_tau_and_the_papers_protocol(model_folder, stream, items):
    options = EvalOptions(data=stream, tasks=("arc-easy-standalone",), task_data=items, batches=2, device="cpu")
    plain = evaluate(model_folder, options)
    assert plain.validation["frozen"].tau == pytest.approx(0.4)
    other = evaluate(model_folder, EvalOptions(data=stream, tau=2.0, batches=2, device="cpu"))
    assert other.validation["frozen"].tau == 2.0
    assert other.validation["frozen"].loss.value != plain.validation["frozen"].loss.value
    paper = evaluate(
        model_folder,
        EvalOptions(data=stream, tasks=("arc-easy-standalone",), task_data=items, paper=True, device="cpu", batch=3),
    )
    assert list(paper.validation) == ["adaptive-carry"]
    assert paper.validation["adaptive-carry"].tau == pytest.approx(0.4)
    task = paper.tasks["arc-easy-standalone"]
    assert (task.tau, task.memory, task.shots) == (pytest.approx(0.1), "as in the checkpoint", 0)
    made = paper.validation["adaptive-carry"].made_with
    assert (made["batch"], made["precision"], task.made_with["precision"]) == (8, "bf16", "bf16")
    for setting in ({"tau": 0.3}, {"modes": ("adaptive",)}, {"shots": 2}, {"batches": 3}, {"precision": "fp32"}):
        with pytest.raises(GMTError, match="--paper sets the whole protocol: leave out --"):
            evaluate(model_folder, EvalOptions(data=stream, paper=True, **setting))
    assert module.paper_protocol(EvalOptions(data=stream, paper=True)).tasks == module.PAPER_TASKS


def test_a_dense_model_has_one_mode(dense_folder, stream):
    found = evaluate(dense_folder, EvalOptions(data=stream, modes=("adaptive",), batches=2, device="cpu"))
    assert list(found.validation) == ["frozen"]


def test_results_say_what_was_measured_and_are_not_measured_twice(model_folder, stream, items, tmp_path, monkeypatch):
    out = tmp_path / "deep" / "results.json"
    options = EvalOptions(
        data=stream, tasks=("arc-easy-standalone",), task_data=items, batches=2, out=out, device="cpu"
    )
    first = evaluate(model_folder, options)
    tree = json.loads(out.read_text())
    assert tree["context"] == CONTEXT and tree["tokenizer"]["vocab"] == VOCAB
    for part in (tree["tasks"]["arc-easy-standalone"], tree["validation"]["frozen"]):
        assert part["made_with"]["batch"] == 8 and part["made_with"]["precision"] == "fp32" and part["tau"]
        assert set(part["made_with"]["versions"]) >= {"gmt", "torch", "transformers", "tokenizers"}
    assert tree["tasks"]["arc-easy-standalone"]["metrics"]["acc"]["stderr"] > 0
    assert tree["model"]["sha256"] == open_model(model_folder).sha256
    assert Results.load(out) == first

    def never(*args, **kwargs):
        raise AssertionError("measured again")

    monkeypatch.setattr(module, "validate", never)
    monkeypatch.setattr(module.arc, "arc_easy", never)
    told = []
    assert evaluate(model_folder, options, lambda part, done, total: told.append(part)).tasks == first.tasks
    assert told == [f"frozen validation is in {out} already", f"arc-easy-standalone is in {out} already"]
    with pytest.raises(AssertionError, match="measured again"):  # other settings are other numbers
        evaluate(
            model_folder, EvalOptions(tasks=("arc-easy-standalone",), task_data=items, limit=2, out=out, device="cpu")
        )


def test_other_items_or_words_under_the_same_names_are_measured_again(model_folder, items, tmp_path):
    """What is compared is content: of the items, and of the tokenizer."""
    model, out = tmp_path / "model", tmp_path / "results.json"
    shutil.copytree(model_folder, model)
    options = EvalOptions(tasks=("arc-easy-standalone",), task_data=items, out=out, device="cpu")
    keys = [evaluate(model, options).tasks["arc-easy-standalone"].key]
    write_items(items / "arc_easy_test.jsonl", ITEMS[:4])
    found = evaluate(model, options).tasks["arc-easy-standalone"]
    assert found.items == 4
    keys.append(found.key)
    from gmt.data.tokenizer import train_tokenizer

    (model / "tokenizer.json").write_text(train_tokenizer(VOCAB, ["other words entirely"] * 9).to_str())
    keys.append(evaluate(model, options).tasks["arc-easy-standalone"].key)
    assert len(set(keys)) == 3


def test_validations_over_other_windows_are_not_paired(model_folder, stream, tmp_path):
    found = [evaluate(model_folder, EvalOptions(data=stream, batch=b, batches=6, device="cpu")) for b in (2, 4)]
    entries = [result.validation["frozen"] for result in found]
    assert entries[0].data == entries[1].data and entries[0].windows != entries[1].windows
    assert not difference(entries[0].loss, entries[1].loss, entries[0].windows == entries[1].windows).paired


def test_all_that_is_wrong_is_told_before_anything_is_measured(model_folder, stream, items, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("measured first")

    monkeypatch.setattr(module, "validate", never)
    wrong = [
        ({"tasks": ("arc_eazy",), "task_data": items}, "no single task 'arc_eazy'"),
        ({"tasks": ("arc_easy",), "task_data": items, "harness": {"nothing": 1}}, "no option 'nothing'"),
        ({"tasks": ("arc_easy",), "task_data": items, "shots": 3}, "come from its train split"),
        ({"tasks": ("arc-easy-standalone",), "shots": 3}, "is zero-shot"),
        ({"modes": ()}, "no memory mode is given"),
        ({"out": Path("/proc/none/results.json")}, "cannot write the results"),
    ]
    for settings, told in wrong:
        with pytest.raises(GMTError, match=told):
            evaluate(model_folder, EvalOptions(data=stream, device="cpu", **settings))


def test_memory_is_restored_when_validation_breaks_off(loaded, stream):
    from gmt.data.batches import Stream, ValidationBatches
    from gmt.evaluate.validation import validate
    from tests.conftest import assert_same, snapshot

    before = snapshot(loaded.model)
    batches = ValidationBatches(Stream(stream, "val"), CONTEXT, 2, 6)

    def broken(done, total):
        if done == 3:
            raise KeyboardInterrupt

    for mode in ("adaptive", "adaptive-carry"):
        with pytest.raises(KeyboardInterrupt):
            validate(loaded.lm, batches, mode, tell=broken)
        assert_same(loaded.model, before)


def test_an_interrupted_evaluation_keeps_what_it_has(model_folder, stream, items, tmp_path, monkeypatch):
    out = tmp_path / "results.json"

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    options = EvalOptions(
        data=stream, tasks=("arc-easy-standalone",), task_data=items, batches=2, out=out, device="cpu"
    )
    with monkeypatch.context() as patch:
        patch.setattr(module.arc, "arc_easy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            evaluate(model_folder, options)
    assert list(Results.load(out).validation) == ["frozen"] and Results.load(out).tasks == {}
    assert list(evaluate(model_folder, options).tasks) == ["arc-easy-standalone"]


def test_results_of_other_weights_are_not_written_over(model_folder, dense_folder, stream, tmp_path):
    out = tmp_path / "results.json"
    evaluate(model_folder, EvalOptions(data=stream, batches=1, out=out, device="cpu"))
    with pytest.raises(GMTError, match="holds the results of other weights"):
        evaluate(dense_folder, EvalOptions(data=stream, batches=1, out=out, device="cpu"))


def test_the_command(model_folder, dense_folder, stream, items, tmp_path):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    common = [
        "--data",
        stream,
        "--tasks",
        "arc-easy-standalone",
        "--task-data",
        items,
        "--batches",
        2,
        "--device",
        "cpu",
    ]
    shown = cli(model_folder, *common, "--mode", "frozen,adaptive", "--out", first)
    assert shown.exit_code == 0, shown.output
    for part in (
        "Val. loss",
        "Bits per byte",
        "memory took writes and was restored",
        "Acc (norm)",
        str(first),
    ):
        assert part in shown.output
    assert cli(dense_folder, *common, "--out", second).exit_code == 0
    compared = cli("--compare", second, first)
    assert compared.exit_code == 0
    assert "95 % interval" in compared.output and "adjusted p" in compared.output and "verdict" in compared.output
    assert "Validation loss" not in cli("--compare", second, first, "--table", "arc").output


def test_a_run_is_its_best_checkpoint(model_folder, stream, tmp_path):
    from gmt.checkpoint.format import MANIFEST

    def checkpoint(step: int, best: int, folder: Path):
        target = tmp_path / "run" / "checkpoints" / f"step-{step:08d}"
        shutil.copytree(folder, target)
        (target / "progress.json").write_text(json.dumps({"step": step, "best": {"step": best, "loss": 1.0}}))
        sums = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in target.iterdir()}
        (target / MANIFEST).write_text(json.dumps({"format": 1, "sha256": sums}))
        return target

    best = checkpoint(5, 5, model_folder)
    checkpoint(9, 5, make_model(tmp_path / "later", seed=1))
    loaded = open_model(tmp_path / "run")
    assert (loaded.folder, loaded.step) == (best, 5)
    (best / "model.safetensors").write_bytes(b"damaged")
    before = listing(tmp_path / "run")
    message = rf"step 5 of .*run cannot be used: model.safetensors is damaged .*; use {tmp_path / 'run'}@9"
    for name in (tmp_path / "run", f"{tmp_path / 'run'}@5"):
        with pytest.raises(GMTError, match=message):  # and not another checkpoint without a word
            open_model(name)
    assert open_model(f"{tmp_path / 'run'}@9").step == 9
    (tmp_path / "run" / "checkpoints" / "step-00000009" / "config.json").unlink()
    with pytest.raises(
        GMTError, match=r"step 9 of .* config\.json is missing; no other checkpoint of the run is complete"
    ):
        open_model(tmp_path / "run")
    before.remove("checkpoints/step-00000009/config.json")
    assert listing(tmp_path / "run") == before, "a reader writes and renames nothing"


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


BAD = {
    "no model": ([], "evaluation needs a model"),
    "nothing to do": (["{model}"], "nothing to evaluate"),
    "no such model": (["/no/where", "--tasks", "arc-easy-standalone"], "/no/where: no such folder"),
    "not a model": (["{stream}", "--data", "{stream}"], "neither a model directory"),
    "mode": (["{model}", "--data", "{stream}", "--mode", "frosen"], "there is no memory mode 'frosen'"),
    "tau": (["{model}", "--data", "{stream}", "--tau", "-1"], "the routing temperature must lie between"),
    "precision": (["{model}", "--data", "{stream}", "--precision", "fp8"], "there is no precision 'fp8'"),
    "no data": (["{model}", "--data", "{model}"], "holds no prepared data"),
    "harness": (["{model}", "--tasks", "x", "--harness", "limit"], "--harness takes name=value"),
    "task data": (["{model}", "--tasks", "arc_easy", "--task-data", "/no/where"], "there is no /no/where"),
    "compare": (["--compare", "{stream}", "{model}"], "cannot read results from"),
    "compare json": (["--compare", "{stream}/manifest.json", "{stream}/manifest.json"], "does not hold results"),
    "both": (["{model}", "--compare", "a", "b"], "it takes no model"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(model_folder, stream, name):
    arguments, told = BAD[name]
    shown = cli(*(a.format(model=model_folder, stream=stream) for a in arguments))
    assert shown.exit_code == 1
    assert told in shown.output and "Traceback" not in shown.output


def test_another_tokenizer_is_told(model_folder, stream, tmp_path):
    from gmt.data.tokenizer import train_tokenizer

    other = tmp_path / "model"
    shutil.copytree(model_folder, other)
    (other / "tokenizer.json").write_text(train_tokenizer(VOCAB, ["other words entirely"] * 9).to_str())
    with pytest.raises(GMTError, match="was made with another tokenizer"):
        evaluate(other, EvalOptions(data=stream, device="cpu"))
