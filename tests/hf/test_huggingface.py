"""GMTForCausalLM behaves as `transformers` expects of a causal language model."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast, pipeline

from gmt import GMTConfig
from gmt.hf import GMTForCausalLM, GMTPretrainedConfig
from tests.conftest import assert_same, batch_of, small_config, small_model, snapshot

GENERATE = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 5, "temperature": 0.8},
    "beams": {"do_sample": False, "num_beams": 3},
}


@pytest.fixture
def model() -> GMTForCausalLM:
    return GMTForCausalLM.from_lm(small_model(dtype=torch.float32).eval(), pad_token_id=0)


def left_padded(model):
    ids, _ = batch_of(model.model, rows=3, length=5)
    mask = torch.ones_like(ids)
    mask[1, :2] = mask[2, :3] = 0
    return ids, mask


@pytest.mark.parametrize("how", GENERATE)
@pytest.mark.parametrize("cache", [{"cache_implementation": "dynamic"}, {"cache_implementation": "static"}])
@pytest.mark.parametrize("padding", [False, True])
def test_generation_with_a_cache_equals_generation_without(model, how, cache, padding):
    ids, mask = left_padded(model)
    inputs = {"input_ids": ids, "attention_mask": mask if padding else torch.ones_like(ids)}
    results = []
    for kwargs in ({"use_cache": False}, cache):
        torch.manual_seed(0)
        results.append(model.generate(**inputs, max_new_tokens=6, **GENERATE[how], **kwargs))
    assert torch.equal(*results)
    assert results[0].shape == (3, 11)


def test_left_padded_rows_generate_what_they_generate_alone(model):
    ids, mask = left_padded(model)
    together = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=6, do_sample=False)
    for row in range(3):
        real = ids[row, mask[row].bool()][None]
        alone = model.generate(real, attention_mask=torch.ones_like(real), max_new_tokens=6, do_sample=False)
        assert torch.equal(together[row, 5:], alone[0, -6:])


def test_padded_logits_through_the_wrapper(model):
    ids, mask = left_padded(model)
    logits = model(ids, attention_mask=mask).logits
    for row in range(3):
        real = mask[row].bool()
        torch.testing.assert_close(logits[row, real], model(ids[row, real][None]).logits[0], rtol=0, atol=1e-5)
    assert torch.isfinite(logits).all()


def test_auto_classes_and_identical_files(model, tmp_path):
    model.save_pretrained(tmp_path / "a")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    assert isinstance(loaded, GMTForCausalLM)
    assert isinstance(AutoConfig.from_pretrained(tmp_path / "a"), GMTPretrainedConfig)
    assert_same(loaded, snapshot(model))
    loaded.save_pretrained(tmp_path / "b")
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert files == ["README.md", "config.json", "generation_config.json", "model.safetensors"]
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_weights_are_tied(model, tmp_path):
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.num_parameters() == sum(p.numel() for p in model.model.parameters())
    model.save_pretrained(tmp_path)
    loaded = GMTForCausalLM.from_pretrained(tmp_path)
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    with pytest.raises(ValueError, match="keep tie_word_embeddings true"):
        GMTForCausalLM(GMTPretrainedConfig.from_gmt(small_config(), tie_word_embeddings=False))


def test_a_fresh_model_starts_as_the_paper_says():
    torch.manual_seed(0)
    fresh = AutoModelForCausalLM.from_config(GMTPretrainedConfig.from_gmt(small_config("model.hidden=64")))
    cell = fresh.model.cells[0]
    torch.testing.assert_close(cell.centroids.norm(dim=-1), torch.ones(5))
    assert (cell.usage == 0.2).all() and (cell.age == 0).all()
    assert (cell.gate.item(), round(cell.momentum.item(), 6)) == (1.0, 4.6)
    assert fresh.model.tau == 1.0
    assert 0.6 < cell.edges.std() < 1.5
    assert 0.018 < fresh.model.blocks[0].attention.qkv.weight.std() < 0.022
    assert (fresh.model.norm_final.weight == 1).all() and (fresh.model.norm_final.bias == 0).all()


def test_a_float64_model_stays_float64(tmp_path):
    model = GMTForCausalLM.from_lm(small_model(dtype=torch.float64))
    model.save_pretrained(tmp_path / "a")
    loaded = GMTForCausalLM.from_pretrained(tmp_path / "a")
    assert loaded.model.cells[0].centroids.dtype == loaded.model.cells[0].usage.dtype == torch.float64
    loaded.save_pretrained(tmp_path / "b")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_never_a_label_and_never_written(model, side):
    """Through the wrapper with labels = input_ids, as most training scripts have it: each row as if alone."""
    ids, _ = batch_of(model.model, rows=3, length=6)
    lengths = (6, 3, 4)
    mask = torch.zeros_like(ids)
    for row, n in enumerate(lengths):
        mask[row, 6 - n :] = side == "left"
        mask[row, :n] |= side == "right"
    model.train()
    out = model(ids, attention_mask=mask, labels=ids)
    alone = [model(ids[r, mask[r].bool()][None], labels=ids[r, mask[r].bool()][None]) for r in range(3)]
    task = sum((n - 1) * single.task_loss for n, single in zip(lengths, alone, strict=True)) / (sum(lengths) - 3)
    torch.testing.assert_close(out.task_loss, task, rtol=1e-5, atol=1e-6)
    for name in ("slot_sum", "slot_count", "usage_sum", "tokens"):
        expected = sum(getattr(single.writes, name) for single in alone)
        torch.testing.assert_close(getattr(out.writes, name), expected, rtol=1e-4, atol=1e-5)


def test_documents_packed_in_a_row_do_not_see_each_other(model):
    ids, _ = batch_of(model.model, rows=1, length=6)
    packed = model(ids, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]), use_cache=False).logits
    alone = torch.cat([model(ids[:, :3]).logits, model(ids[:, 3:]).logits], dim=1)
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-5)


def test_resized_embeddings_are_usable(model):
    model.resize_token_embeddings(13)
    assert model.model.cfg.model.vocab == model.config.vocab_size == 13
    assert model(torch.tensor([[12, 3]]), labels=torch.tensor([[12, 3]])).logits.shape == (1, 2, 13)


def test_what_generation_returns(model):
    ids, _ = batch_of(model.model)
    assert model(ids).past_key_values.get_seq_length() == 6
    assert model(ids, use_cache=False).past_key_values is None
    assert model(ids, labels=ids).past_key_values is None
    model.train().gradient_checkpointing_enable()
    model(ids, labels=ids, use_cache=True).loss.backward()  # a cache would break the recomputation
    model(ids, token_type_ids=torch.zeros_like(ids))


def test_a_static_cache_cannot_outgrow_the_context(model):
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=20)
    model(torch.zeros(1, 16, dtype=torch.long), past_key_values=cache, use_cache=True)
    with pytest.raises(ValueError, match="the position 16 is outside"):
        model(torch.zeros(1, 1, dtype=torch.long), past_key_values=cache, use_cache=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_memory_state_is_never_below_float32(model, tmp_path, dtype):
    model.model.set_temperature(0.3)
    model.save_pretrained(tmp_path)
    half = model.half if dtype == torch.float16 else model.bfloat16
    for low in (GMTForCausalLM.from_pretrained(tmp_path, dtype=dtype), half()):
        assert low.model.blocks[0].attention.qkv.weight.dtype == dtype
        assert low.model.cells[0].edges.dtype == dtype
        for name in ("centroids", "usage", "age"):
            assert getattr(low.model.cells[0], name).dtype == torch.float32
        assert low.model.tau.dtype == torch.float32 and abs(low.model.tau.item() - 0.3) < 1e-7
    reloaded = GMTForCausalLM.from_pretrained(tmp_path).model.cells[0]
    assert torch.equal(low.model.cells[0].centroids, reloaded.centroids)


def test_a_bfloat16_model_generates(model):
    low = model.to(torch.bfloat16)
    ids, mask = left_padded(model)
    assert low.generate(ids, attention_mask=mask, max_new_tokens=3, do_sample=False).shape == (3, 8)


def test_logits_to_keep(model):
    ids, _ = batch_of(model.model)
    full = model(ids).logits
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, full[:, -2:])
    torch.testing.assert_close(model(ids, logits_to_keep=torch.tensor([0, 3])).logits, full[:, [0, 3]])


def test_labels_are_shifted_and_eval_loss_is_cross_entropy(model):
    ids, _ = batch_of(model.model)
    out = model(ids, labels=ids)
    expected = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(out.loss, expected)
    assert out.writes is None
    model.train()
    out = model(ids, labels=ids)
    torch.testing.assert_close(out.task_loss, expected)
    weights = model.model.cfg.losses
    whole = expected + sum(getattr(weights, name) * value for name, value in out.aux.items())
    torch.testing.assert_close(out.loss, whole)
    assert len(out.aux) == 5 and out.writes is not None
    scaled = model(ids, labels=ids, num_items_in_batch=torch.tensor(40))
    torch.testing.assert_close(scaled.loss, whole * 10 / 40)
    assert isinstance(model(ids, return_dict=False), tuple)


def test_gradient_checkpointing_gives_the_same_gradients(model):
    ids, _ = batch_of(model.model)
    gradients = []
    for checkpointing in (False, True):
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable()
            assert model.model.gradient_checkpointing
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_text_generation_pipeline(model, tmp_path):
    words = ["[UNK]", "the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "ran"]
    vocabulary = {word: n for n, word in enumerate(words)}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[UNK]", pad_token="[UNK]")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    generator = pipeline("text-generation", model=str(tmp_path), device="cpu")
    text = generator("the cat sat", max_new_tokens=4, do_sample=False)[0]["generated_text"]
    new = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, do_sample=False)[0, 3:]
    assert text == "the cat sat" + tokenizer.decode(new)


def test_the_card_tells_the_runs_facts(tmp_path):
    facts = {"name": "team/gmt-small", "data": "python-docs", "validation loss": 3.21, "note": "a | b"}
    model = GMTForCausalLM.from_lm(small_model(dtype=torch.float32), facts=facts)
    model.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    for part in ("# team/gmt-small", "| validation loss | 3.21 |", "a \\| b", "from_pretrained('path/to/this"):
        assert part in card
    assert json.loads((tmp_path / "config.json").read_text())["facts"] == facts
    assert GMTForCausalLM.from_pretrained(tmp_path).config.facts == facts
    (tmp_path / "README.md").write_text("my own words")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "my own words"


@pytest.mark.parametrize("sublayer", ["dense", "none"])
def test_controls_have_cards_and_generate(sublayer, tmp_path):
    model = GMTForCausalLM.from_lm(small_model(f"model.sublayer={sublayer}", dtype=torch.float32).eval())
    model.save_pretrained(tmp_path)
    assert "slots" not in (tmp_path / "README.md").read_text(encoding="utf-8")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.generate(torch.tensor([[1, 2]]), max_new_tokens=3, do_sample=False).shape == (1, 5)


def test_push_to_hub_uploads_the_card(monkeypatch, tmp_path):
    uploaded = {}

    class Api:
        def __init__(self, token=None):
            uploaded["token"] = token

        def create_repo(self, repo_id, **kwargs):
            return type("Url", (), {"repo_id": f"me/{repo_id}"})

        def upload_folder(self, *, repo_id, folder_path, **kwargs):
            uploaded.update(repo=repo_id, files={p.name: p.read_bytes() for p in Path(folder_path).iterdir()})
            return f"done {repo_id}"

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    model = GMTForCausalLM.from_lm(small_model(dtype=torch.float32), facts={"name": "me/mine", "steps": 20})
    assert model.push_to_hub("mine", token="secret") == "done me/mine"
    assert (uploaded["repo"], uploaded["token"]) == ("me/mine", "secret")
    uploaded.clear()
    model.save_pretrained(tmp_path / "mine", push_to_hub=True)  # the other way to say it
    assert b"| steps | 20 |" in uploaded["files"]["README.md"]
    assert b"from_pretrained('me/mine')" in uploaded["files"]["README.md"]
    assert "model.safetensors" in uploaded["files"]


def test_what_is_not_offered_is_said(model):
    with pytest.raises(ValueError, match="output_routes=True"):
        model(torch.tensor([[1, 2]]), output_attentions=True)
    routes = model(torch.tensor([[1, 2]]), output_routes=True).routes
    assert len(routes) == 2 and routes[0].source.shape == (1, 2, 5)


def test_a_config_json_of_before_a_setting_was_added_still_opens(tmp_path):
    """Every setting of the model has its default here too: what is absent from an old file is that."""
    GMTPretrainedConfig.from_gmt(small_config()).save_pretrained(tmp_path)
    tree = json.loads((tmp_path / "config.json").read_text())
    del tree["residual_init"], tree["memory"]["init"]
    (tmp_path / "config.json").write_text(json.dumps(tree))
    assert GMTPretrainedConfig.from_pretrained(tmp_path).to_gmt().model == small_config().model
    assert GMTPretrainedConfig().to_gmt().model == GMTConfig().model
