"""Every address over a real server: against the library's numbers, many at once, and none waiting for another."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from gmt.analysis import pos
from gmt.analysis.interventions import from_json, intervene
from gmt.analysis.meaning import arrival, meanings, typical_scale
from gmt.analysis.trace import trace
from gmt.evaluate.generation import Sampling, generate
from gmt.explorer import answers, run, server, state
from gmt.explorer.state import Explorer
from tests.conftest import assert_same, snapshot
from tests.explorer.conftest import EDIT, TEXT, ask, serving


def test_the_models_are_named(client, models):
    found = client.get("/api/model").json()
    first, _, dense = found["models"]
    lm = models[0].lm
    assert first["sha256"] == models[0].sha256 and first["parameters"] == sum(p.numel() for p in lm.parameters())
    assert (first["blocks"], first["slots"], first["hidden"], first["context"]) == (2, 6, 16, 48)
    assert first["tau"] == pytest.approx(0.4, abs=1e-5) and first["has_memory"] is True
    assert dense["has_memory"] is False and dense["slots"] == 0
    assert set(found["texts"]) == {"narrative", "politics", "science"} and found["corpus"] is None
    assert found["limits"] == {"text": 20_000, "edits": 50, "tokens": 200}
    assert found["classes"] is pos.available() and found["colours"]["NOUN"].startswith("#")


def test_reading_a_text_gives_the_traces_numbers(client, models):
    found, wanted = ask(client, "read"), trace(models[0], TEXT)
    assert found["tokens"] == wanted.tokens and found["predicted"] == wanted.facts["predicted_words"]
    assert found["classes"] == pos.word_classes(TEXT, wanted.facts["spans"])
    assert found["surprise"][0] is None and np.allclose(found["surprise"][1:], wanted.surprise[1:], atol=1e-5)
    assert found["loss"] == pytest.approx(wanted.surprise[1:].mean(), abs=1e-5)
    assert found["source_slot"] == wanted.source_slot.tolist() and found["target_slot"] == wanted.target_slot.tolist()
    for key, values in found["quantities"].items():
        assert np.allclose(values, getattr(wanted, key), atol=1e-4), key
    assert len(found["next"]) == 20 and found["next"][0]["word"] == found["predicted"][-1]
    assert found["windows"] == 1 and found["fired"] == []
    assert ask(client, "read", model=1)["loss"] != found["loss"]


def test_a_token_a_block_and_a_slot(client, models, explorer):
    wanted, lm = trace(models[0], TEXT), models[0].lm
    place = 4
    token = ask(client, "token", place=place)
    assert token["token"] == wanted.tokens[place] and token["next"][0]["word"] == token["predicted"]
    parts = sum(step["logit_update"] + step["logit_attention"] for step in token["blocks"])
    assert token["embedding"] + token["bias"] + parts == pytest.approx(token["logit"], abs=1e-3)
    assert [s["slot"] for s in token["blocks"][1]["source"]] == wanted.top_source[1, place].tolist()
    block = ask(client, "block", block=1)
    assert block["leaving"] == wanted.counts(1).sum(1).tolist()
    assert sum(move["count"] for move in block["moves"]) == len(wanted.ids)
    assert np.allclose(block["transition"], wanted.transition[1], atol=1e-5)
    slot = int(wanted.source_slot[1, place])
    card = ask(client, "slot", block=1, slot=slot)
    assert sum(item["count"] for item in card["leaving"]) == (wanted.source_slot[1] == slot).sum()
    meaning = meanings(lm, arrival(lm, 1, slot)[None], typical_scale([wanted]), models[0].words)[0]
    assert [(item["word"], item["change"]) for item in card["promotes"]] == [
        (word, pytest.approx(change, abs=1e-5)) for word, change in meaning.promoted
    ]
    assert card["corpus"] == [] and card["corpus_left"] == 0


def test_edits_change_the_answer_and_do_not_leak(client, models):
    before, plain = snapshot(models[0].model), ask(client, "read")
    changed = ask(client, "read", edits=[EDIT, {"kind": "ablate", "block": 0, "slot": 5, "role": "target"}])
    with intervene(models[0].lm, from_json([EDIT])):
        wanted = trace(models[0], TEXT)
    alone = ask(client, "read", edits=[EDIT])
    assert np.allclose(alone["surprise"][1:], wanted.surprise[1:], atol=1e-5) and alone["surprise"] != plain["surprise"]
    assert alone["fired"] == [2 * len(wanted.ids)] and len(changed["fired"]) == 2
    assert ask(client, "read", text=TEXT + " or")["surprise"][:5] == plain["surprise"][:5], "nothing is left of it"
    never = ask(client, "read", edits=[{"kind": "scale", "alpha": 0, "positions": [40]}])
    assert never["fired"] == [0] and never["loss"] == plain["loss"]
    assert_same(models[0].model, before)


def test_a_continuation(client, models):
    wanted = generate(models[0], "the cat", Sampling(tokens=6, temperature=0.8, seed=2))[0]
    assert ask(client, "continue", text="the cat", tokens=6, seed=2) == {"text": wanted}
    assert ask(client, "continue", text="the cat", tokens=6, seed=2, edits=[EDIT])["text"] != wanted
    with_room = client.post("/api/continue", json={"text": TEXT * 6})
    assert with_room.status_code == 400 and "no room left" in with_room.json()["error"]


def test_a_model_without_memory_is_read_and_its_memory_refused(client):
    found = ask(client, "read", model=2)
    assert set(found["quantities"]) == set(answers.TITLES) - answers.OF_MEMORY and found["source_slot"] == []
    assert ask(client, "token", model=2, place=0)["blocks"][0]["source"] == []
    for name, more in {"block": {"block": 0}, "slot": {"block": 0, "slot": 0}, "read": {"edits": [EDIT]}}.items():
        response = client.post(f"/api/{name}", json={"text": TEXT, "model": 2, **more})
        assert response.status_code == 400 and "no memory" in response.json()["error"]


def test_two_hundred_requests_from_eight_at_once_do_not_mix(client, explorer, models):
    """Every one is compared with what the library says when it is asked alone."""
    before = snapshot(models[0].model)
    edits = [[], [EDIT], [{"kind": "edges", "form": "identity"}], [{"kind": "pin", "slot": 2, "role": "target"}]]
    wanted = {}
    bodies = [
        {"text": f"{TEXT} {n % 5}", "model": n % 2, "edits": edits[n % 4] + [{"kind": "scale", "alpha": 0.5 + n % 3}]}
        for n in range(200)
    ]
    for body in bodies:
        key = json.dumps(body)
        if key not in wanted:
            with intervene(models[body["model"]].lm, from_json(body["edits"])):
                wanted[key] = trace(models[body["model"]], body["text"])
    assert len(wanted) == 60

    def one(body: dict) -> float:
        found = client.post("/api/read", json=body, timeout=60)
        assert found.status_code == 200, found.text
        alone = wanted[json.dumps(body)]
        assert found.json()["source_slot"] == alone.source_slot.tolist()
        return float(np.abs(np.array(found.json()["surprise"][1:]) - alone.surprise[1:]).max())

    with ThreadPoolExecutor(8) as pool:
        apart = list(pool.map(one, bodies))
    assert max(apart) < 1e-4
    losses = sorted(float(found.surprise[1:].mean()) for found in wanted.values())
    assert np.diff(losses).max() > 1e-2 and len({round(loss, 4) for loss in losses}) > 50, "they can be told apart"
    assert_same(models[0].model, before)


def test_a_heavy_request_blocks_nothing_light(client, monkeypatch):
    ask(client, "read")
    go, begun, real = threading.Event(), threading.Event(), state.read

    def slow(*args):
        begun.set()
        assert go.wait(20)
        return real(*args)

    monkeypatch.setattr(state, "read", slow)
    with ThreadPoolExecutor(1) as pool:
        heavy = pool.submit(ask, client, "read", text="something else")
        assert begun.wait(10)
        start = time.monotonic()
        assert client.get("/api/model").status_code == 200 and client.get("/").status_code == 200
        assert ask(client, "token", place=1) and ask(client, "block", block=0) and ask(client, "slot", block=0, slot=0)
        assert ask(client, "read")["fired"] == []
        took = time.monotonic() - start
        assert not heavy.done() and took < 3
        go.set()
        assert heavy.result(timeout=20)["tokens"]


def test_a_full_queue_says_so_and_those_who_left_are_forgotten(client, explorer, monkeypatch):
    go, read, real = threading.Event(), [], state.read

    def slow(loaded, ask, deadline):
        read.append(ask.text)
        assert go.wait(20)
        return real(loaded, ask, deadline)

    monkeypatch.setattr(state, "read", slow)
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(ask, client, "read", text="first")
        while not read:
            time.sleep(0.002)
        with pytest.raises(httpx.ReadTimeout):  # gives up, and its job with it
            httpx.post(f"{client.base_url}api/read", json={"text": "gone"}, timeout=0.3)
        time.sleep(3 * server.LOOK_S)
        others = [pool.submit(ask, client, "read", text=f"other {n}") for n in range(15)]
        while explorer.worker._jobs.qsize() < 16:
            time.sleep(0.002)
        busy = client.post("/api/read", json={"text": "one more"})
        assert busy.status_code == 503 and "too many requests" in busy.json()["error"]
        go.set()
        assert first.result(timeout=20) and all(other.result(timeout=20) for other in others)
    assert "gone" not in read and len(read) == 16


def test_what_takes_too_long_is_given_up_and_the_server_goes_on(models, monkeypatch):
    explorer, real = Explorer(models, limit_s=0.4), state.read
    monkeypatch.setattr(state, "read", lambda *args: time.sleep(1.0) or real(*args))
    with serving(server.make_app(explorer)) as address:
        start = time.monotonic()
        late = httpx.post(f"{address}api/read", json={"text": TEXT}, timeout=20)
        assert late.status_code == 504 and "too long" in late.json()["error"] and time.monotonic() - start < 0.95
        monkeypatch.setattr(state, "read", real)
        explorer.worker.submit(lambda _: None).result(timeout=20)
        assert httpx.post(f"{address}api/read", json={"text": TEXT}, timeout=20).status_code == 200
    explorer.close()


def test_serve_from_end_to_end(models, monkeypatch):
    """The address is told, and both models answer there."""
    said, answered = [], []

    def listen(app, sock):
        with serving(app, sock):
            answered.append(httpx.get(f"{said[0]}api/model").json())
            answered.append(httpx.post(f"{said[0]}api/read", json={"text": TEXT, "model": 1}).json())

    monkeypatch.setattr(server, "listen", listen)
    run.serve(str(models[0].folder), str(models[1].folder), port=0, device="cpu", tell=said.append)
    assert [m["sha256"] for m in answered[0]["models"]] == [models[0].sha256, models[1].sha256]
    wanted = trace(models[1], TEXT)
    assert np.allclose(answered[1]["surprise"][1:], wanted.surprise[1:], atol=1e-5)
