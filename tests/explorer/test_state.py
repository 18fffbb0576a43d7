"""The worker, what is kept, the corpus, and models that are as they were."""

import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest
import torch

from gmt.analysis.interventions import from_json, intervene
from gmt.analysis.trace import trace
from gmt.errors import GMTError
from gmt.evaluate.generation import Sampling, generate
from gmt.explorer import state
from gmt.explorer.asks import Ask
from gmt.explorer.corpus import Corpus
from gmt.explorer.state import BusyError, Explorer, Kept, TooLongError, Worker, edited, read
from tests.conftest import assert_same, snapshot
from tests.evaluate.conftest import CONTEXT, make_model, make_stream
from tests.explorer.conftest import EDIT, TEXT

PLAIN = Ask(0, TEXT, ())
EDITED = Ask(0, TEXT, tuple(from_json([EDIT])))


def test_a_reading_is_the_trace_and_the_likeliest_next_tokens(models):
    found, whole = read(models[0], PLAIN), trace(models[0], TEXT)
    for name, value in found.trace.arrays.items():
        assert np.array_equal(value, whole.arrays[name], equal_nan=value.dtype.kind == "f"), name
    assert whole.arrays.keys() - found.trace.arrays.keys() == {"displacement"}
    with torch.no_grad():
        ids = torch.from_numpy(whole.ids.astype(np.int64))[None]
        shares = models[0].lm(ids, observe=False).logits[0].float().softmax(-1)
    assert np.allclose(found.next_shares, shares.topk(20).values, rtol=0, atol=1e-6)
    assert [row[0] for row in found.next_words] == whole.facts["predicted_words"]


def test_a_reading_under_edits_is_the_traces_own_and_counts_them(models):
    before = snapshot(models[0].model)
    never = {"kind": "scale", "alpha": 0.0, "positions": [40_000]}
    found = read(models[0], Ask(0, TEXT, tuple(from_json([EDIT, never]))))
    with intervene(models[0].lm, from_json([EDIT])):
        wanted = trace(models[0], TEXT)
    assert np.array_equal(found.trace.surprise, wanted.surprise, equal_nan=True)
    assert not np.allclose(found.trace.surprise[1:], read(models[0], PLAIN).trace.surprise[1:], atol=1e-3)
    assert found.fired == [len(wanted.ids) * 2, 0], "tokens times blocks; the other one never"
    assert_same(models[0].model, before)
    assert not models[0].lm._forward_hooks and not models[0].lm._forward_pre_hooks


def test_a_text_longer_than_the_context_is_read_in_windows(models):
    text = " ".join([TEXT] * 6)
    found = read(models[0], Ask(0, text, ()))
    count = len(models[0].words.encode(text).ids)
    assert found.trace.facts["windows"] == -(-count // CONTEXT) > 1
    assert len(found.next_words) == len(found.next_shares) == count


def test_too_many_tokens_and_too_much_time_are_refused(models, monkeypatch):
    with pytest.raises(TooLongError):
        read(models[0], PLAIN, time.monotonic() - 1)
    assert not models[0].lm._forward_hooks, "also then"
    monkeypatch.setattr(state, "MOST_TOKENS", 3)
    with pytest.raises(GMTError, match="tokens; at most 3 are read at once"):
        read(models[0], PLAIN)


def test_what_was_read_is_kept_and_the_memory_shared(explorer, monkeypatch):
    first, other = explorer.reading(PLAIN).result(), explorer.reading(EDITED).result()
    monkeypatch.setattr(state, "read", lambda *_: pytest.fail("it was read already"))
    assert explorer.reading(PLAIN).result() is first and explorer.reading(EDITED).result() is other
    assert explorer.reading(Ask(0, TEXT, tuple(from_json([EDIT])))).result() is other, "by what it is"
    assert first.trace.states is other.trace.states and first.trace.transition is other.trace.transition


def test_the_edges_are_shown_as_edits_leave_them(explorer):
    cut = from_json([{"kind": "set-edge", "block": 1, "source": 2, "target": 4, "share": 0.0}])
    whole, found = explorer.reading(PLAIN).result(), explorer.reading(Ask(0, TEXT, tuple(cut))).result()
    assert found.trace.transition[1, 2, 4] == 0 < whole.trace.transition[1, 2, 4]
    row = whole.trace.transition[1, 2].copy()
    row[4] = 0
    assert np.allclose(found.trace.transition[1, 2], row / row.sum(), atol=1e-6)
    assert np.array_equal(found.trace.transition[0], whole.trace.transition[0])
    elsewhere = from_json([{"kind": "edges", "form": "uniform", "rows": [1]}, {"kind": "edges", "form": "learned"}])
    assert edited(whole.trace.transition, elsewhere) is whole.trace.transition


def test_the_least_recently_used_is_thrown_away(models):
    asks = [Ask(0, f"{TEXT} {n}", ()) for n in range(3)]
    readings = [read(models[0], ask) for ask in asks]
    kept = Kept(most=1)
    kept.put(asks[0], readings[0])
    assert kept.get(asks[0]) is readings[0], "the last one stays, however large"
    kept.put(asks[1], readings[1])
    assert kept.get(asks[0]) is None and kept.get(asks[1]) is readings[1]
    roomy = Kept(most=int(2.5 * kept._size))
    for ask, reading in list(zip(asks, readings, strict=True))[:2]:
        roomy.put(ask, reading)
    roomy.put(asks[0], readings[0])
    assert roomy.get(asks[0]) and roomy._size < 2.2 * kept._size, "put twice, it counts once"
    roomy.put(asks[2], readings[2])
    assert roomy.get(asks[1]) is None and roomy.get(asks[0]) is readings[0]


def test_a_continuation_is_the_librarys(explorer, models):
    sampling = Sampling(tokens=8, temperature=0.8, seed=3)
    wanted = generate(models[0], "the cat", sampling)[0]
    assert explorer.continuation(Ask(0, "the cat", ()), sampling).result() == wanted
    other = explorer.continuation(Ask(0, "the cat", EDITED.edits), sampling).result()
    with intervene(models[0].lm, EDITED.edits):
        assert generate(models[0], "the cat", sampling)[0] == other != wanted
    with pytest.raises(GMTError, match="no room left"):
        explorer.continuation(Ask(0, TEXT * 6, ()), sampling).result()


def test_numbers_that_overflow_are_told(explorer):
    wild = tuple(from_json([{"kind": "scale", "alpha": 1e38}]))
    with pytest.raises(GMTError, match="overflow"):
        explorer.continuation(Ask(0, "the cat", wild), Sampling(tokens=4)).result()
    assert np.isnan(explorer.reading(Ask(0, TEXT, wild)).result().next_shares).any()


def test_too_many_jobs_are_refused_and_forgotten_ones_not_begun():
    worker, go, begun = Worker(waiting=2), threading.Event(), []

    def slow(deadline: float) -> None:
        begun.append("slow")
        go.wait(10)

    first = worker.submit(slow)
    while not begun:
        time.sleep(0.001)
    second, third = worker.submit(lambda _: begun.append("second")), worker.submit(lambda _: begun.append("third"))
    with pytest.raises(BusyError, match="too many requests"):
        worker.submit(slow)
    assert second.cancel()
    go.set()
    third.result(timeout=10)
    assert begun == ["slow", "third"] and first.done()
    worker.close()


def test_a_job_that_fails_does_not_take_the_worker_with_it():
    worker = Worker()
    future: Future[None] = worker.submit(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        future.result(timeout=10)
    assert worker.submit(lambda _: 7).result(timeout=10) == 7
    worker.close()


def test_idle_work_is_done_after_the_first_job_and_between_jobs():
    left = [3]

    def idle() -> bool:
        left[0] -= 1
        if left[0] == 1:
            raise RuntimeError("an extra that fails")
        return left[0] > 0

    worker = Worker(idle)
    time.sleep(0.05)
    assert left == [3], "nobody has asked yet"
    for wanted in (1, 0):
        worker.submit(lambda _: None).result(timeout=10)
        until = time.monotonic() + 10
        while left[0] > wanted and time.monotonic() < until:
            time.sleep(0.001)
        assert left[0] == wanted
    worker.close()


def wait_for(explorer: Explorer) -> None:
    """Until the corpus has been read."""
    until = time.monotonic() + 20
    while any(e.done < len(e.windows) for e in explorer.corpus.examples) and time.monotonic() < until:
        time.sleep(0.005)


@pytest.mark.parametrize("form", ["folder", "file"])
def test_a_corpus_gives_examples_of_slots(models, tmp_path, form):
    stream = make_stream(tmp_path / "stream")
    path = stream
    if form == "file":
        path = tmp_path / "some.txt"
        path.write_text("the cat sat on a mat, they counted stars. " * 200, encoding="utf-8")
    before = snapshot(models[0].model)
    explorer = Explorer(models, Corpus(path, models))
    assert explorer.examples(PLAIN, 0, 0)[0] == [], "nothing is read before somebody asks"
    explorer.reading(PLAIN).result()
    wait_for(explorer)
    assert explorer.corpus.facts()["name"] == path.name and explorer.corpus.facts()["tokens"] > 1000
    examples, seen = explorer.corpus.examples[0], 0
    for block in range(2):
        for slot in range(6):
            found, left = explorer.examples(PLAIN, block, slot)
            assert left == 0 and len(found) <= 6 and all(set(e) == {"before", "token", "after"} for e in found)
            for example in examples._found.get((block, slot), []):
                with torch.no_grad():
                    ids = torch.from_numpy(examples.windows[example.window])[None]
                    source = models[0].lm(ids, return_routes=True, observe=False).routes[block].source[0]
                assert source[example.place].argmax() == slot and source[:, slot].argmax() == example.place
                seen += 1
    assert seen > 6
    assert explorer.examples(Ask(2, TEXT, ()), 0, 0) == ([], 0), "a model without memory has none"
    explorer.close()
    assert_same(models[0].model, before)


def test_a_corpus_that_cannot_be_one(models, tmp_path):
    (tmp_path / "empty.txt").write_text("  \n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff\xfe" * 50)
    wrong = {"nowhere": "cannot be read", "empty.txt": "file of text", "picture.png": "file of text"}
    for path, message in (wrong | {".": "no prepared data"}).items():
        with pytest.raises(GMTError, match=message):
            Corpus(tmp_path / path, models)
    other = make_model(tmp_path / "other", "model.vocab=200")
    from gmt.hf.load import open_model

    with pytest.raises(GMTError, match="another tokenizer"):
        Corpus(make_stream(tmp_path / "stream"), [open_model(other)])
