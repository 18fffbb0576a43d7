"""The authors' best.pt to a model directory and back: names, shapes, types, and everything a wrong file may be."""

import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gmt import GMTConfig
from gmt.errors import ConversionError, GMTError
from gmt.hf import GMTForCausalLM
from gmt.hf.convert import convert, from_published
from tests.conftest import batch_of, small_model


def published(sublayer: str = "memory", diagonal: str = "bool", scalar: tuple[int, ...] = (), age=torch.float32):
    """A checkpoint with the names of the authors' code, written out from SPEC and not from the package's table."""
    torch.manual_seed(0)
    blocks, hidden, vocab, context, slots, navigation, width = 2, 8, 11, 16, 5, 3, 7
    state = {
        "embed.weight": torch.randn(vocab, hidden), "pos_embed.weight": torch.randn(context, hidden),
        "norm_final.weight": torch.rand(hidden), "norm_final.bias": torch.randn(hidden), "temp": torch.tensor(0.25),
    }  # fmt: skip
    state["lm_head.weight"] = state["embed.weight"]
    for i in range(blocks):
        b = f"blocks.{i}."
        for norm in ("ln1", "ln2"):
            state |= {f"{b}{norm}.weight": torch.rand(hidden), f"{b}{norm}.bias": torch.randn(hidden)}
        state[f"{b}attn.qkv.weight"] = torch.randn(3 * hidden, hidden)
        state[f"{b}attn.out_proj.weight"] = torch.randn(hidden, hidden)
        if sublayer == "dense":
            state[f"{b}mlp.fc1.weight"] = torch.randn(width, hidden)
            state[f"{b}mlp.fc2.weight"] = torch.randn(hidden, width)
            continue
        eye = torch.eye(slots, dtype=torch.bool)
        masks = {"bool": eye, "inf": torch.zeros(slots, slots).masked_fill(eye, -torch.inf), "-1e9": eye * -1e9}
        state |= {
            f"{b}cell.C": torch.randn(slots, hidden), f"{b}cell.E": torch.randn(slots, slots),
            f"{b}cell.gate": torch.randn(scalar), f"{b}cell.write_momentum": torch.randn(scalar),
            f"{b}cell.usage": torch.rand(slots), f"{b}cell.centroid_age": torch.arange(slots).to(age),
            f"{b}cell.diag_mask": masks[diagonal],
            f"{b}cell.Q_proj.weight": torch.randn(navigation, hidden),
            f"{b}cell.K_proj.weight": torch.randn(navigation, hidden),
        }  # fmt: skip
        for norm in ("norm_C", "norm_disp"):
            state |= {f"{b}cell.{norm}.weight": torch.rand(hidden), f"{b}cell.{norm}.bias": torch.randn(hidden)}
    return {"model": state, "opt": {"state": {}}, "sched": {"last_epoch": 3}, "step": 19974, "loss": 3.5995,
            "epoch": 1, "batch_idx": 7}  # fmt: skip


def write(tmp_path, checkpoint):
    torch.save(checkpoint, tmp_path / "best.pt")
    return tmp_path / "best.pt"


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"diagonal": "inf", "scalar": (1,)},
        {"diagonal": "-1e9", "age": torch.int64},
        {"sublayer": "dense"},
    ],
)
def test_there_and_back(tmp_path, kind):
    checkpoint = published(**kind)
    path = write(tmp_path, checkpoint)
    convert(path, tmp_path / "model", heads=2)
    model = GMTForCausalLM.from_pretrained(tmp_path / "model")
    assert model.config.facts["step"] == 19974
    assert model.model.tau == 0.25
    convert(tmp_path / "model", tmp_path / "again.pt")
    again = torch.load(tmp_path / "again.pt", weights_only=True)
    assert again["model"].keys() == checkpoint["model"].keys()
    for name, tensor in checkpoint["model"].items():
        found = again["model"][name]
        assert found.dtype == tensor.dtype and torch.equal(found, tensor), name
    assert (again["step"], again["loss"], again["epoch"]) == (19974, 3.5995, 1)
    assert "opt" not in again and "sched" not in again


def test_each_tensor_lands_in_its_place(tmp_path):
    checkpoint = published()
    lm = from_published(write(tmp_path, checkpoint), heads=2).model
    theirs, cell = checkpoint["model"], lm.cells[1]
    assert torch.equal(cell.centroids, theirs["blocks.1.cell.C"])
    assert torch.equal(cell.query.weight, theirs["blocks.1.cell.Q_proj.weight"])
    assert torch.equal(cell.key.weight, theirs["blocks.1.cell.K_proj.weight"])
    assert torch.equal(cell.norm_displacement.bias, theirs["blocks.1.cell.norm_disp.bias"])
    assert torch.equal(lm.blocks[1].norm2.weight, theirs["blocks.1.ln2.weight"])
    assert lm.cfg == GMTConfig.from_dict(
        {
            "model": {"blocks": 2, "hidden": 8, "heads": 2, "context": 16, "vocab": 11},
            "memory": {"slots": 5, "navigation": 3},
        }
    )
    assert torch.isfinite(lm(batch_of(small_model())[0]).logits).all()


def test_heads_follow_the_papers_width(tmp_path):
    with pytest.raises(ConversionError, match="a hidden size of 8 is not a multiple of 64; say --heads"):
        from_published(write(tmp_path, published()))


def edited(change):
    checkpoint = published()
    change(checkpoint["model"])
    return checkpoint


WRONG = {
    "lacks a key": (lambda m: m.pop("blocks.1.cell.E"), r"best\.pt lacks blocks\.1\.cell\.E"),
    "lacks the embedding": (lambda m: m.pop("embed.weight"), r"lacks embed\.weight"),
    "lacks the sublayer": (
        lambda m: [m.pop(k) for k in list(m) if "cell" in k],
        r"lacks blocks\.0\.cell\.C, and blocks\.0\.mlp\.fc1\.weight too",
    ),
    "an unknown key": (
        lambda m: m.update({"blocks.0.moe.w": torch.zeros(1)}),
        r"no published model has: blocks\.0\.moe",
    ),
    "a wrong shape": (
        lambda m: m.update({"blocks.1.cell.E": torch.zeros(5, 4)}),
        r"blocks\.1\.cell\.E has shape \[5, 4\], not \[5, 5\]",
    ),
    "a flat embedding": (lambda m: m.update({"embed.weight": torch.zeros(5)}), r"has shape \[5\], not two dimensions"),
    "an untied head": (lambda m: m.update({"lm_head.weight": torch.zeros(11, 8)}), "is not the token embedding"),
    "another mask": (
        lambda m: m.update({"blocks.0.cell.diag_mask": torch.ones(5, 5).bool()}),
        "masks something other than the diagonal",
    ),
    "no temperature": (lambda m: m.update({"temp": torch.tensor(0.0)}), "temp is 0, which is no routing temperature"),
    "no tensor": (lambda m: m.update({"temp": 3.0}), "model entry 'temp' is not a tensor"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_checkpoint_is_told(tmp_path, case):
    change, told = WRONG[case]
    with pytest.raises(ConversionError, match=told):
        convert(write(tmp_path, edited(change)), tmp_path / "model", heads=2)
    assert not (tmp_path / "model").exists()


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("the pickle was run",))


class Shell:
    """A function that torch refuses with another message than the one above."""

    def __reduce__(self):
        return (os.system, ("exit 1",))


@pytest.mark.parametrize("bomb", [Bomb(), Shell()])
@pytest.mark.parametrize("protocol", ["zip", "plain"])
def test_code_is_refused_and_never_run(tmp_path, protocol, bomb):
    path = tmp_path / "best.pt"
    if protocol == "zip":
        torch.save({"model": bomb}, path)
    else:
        path.write_bytes(pickle.dumps({"model": bomb}, protocol=2))
    with pytest.raises(ConversionError, match="carries code besides tensors and was not opened"):
        convert(path, tmp_path / "model")


@pytest.mark.parametrize("content", [b"", b"hello world", b"PK\x03\x04 cut short", pickle.dumps([1, 2], protocol=2)])
def test_something_else_is_told(tmp_path, content):
    (tmp_path / "best.pt").write_bytes(content)
    with pytest.raises(ConversionError, match=r"is not a torch checkpoint|is no published checkpoint"):
        convert(tmp_path / "best.pt", tmp_path / "model")


def test_a_number_that_numpy_wrote_is_no_code(tmp_path):
    import numpy as np

    model = from_published(write(tmp_path, published() | {"loss": np.float64(3.5), "step": np.int64(7)}), heads=2)
    assert (model.config.facts["loss"], model.config.facts["step"]) == (3.5, 7)


def directory(tmp_path, *overrides):
    GMTForCausalLM.from_lm(small_model(*overrides, dtype=torch.float32)).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_way_back_makes_nothing_up(tmp_path):
    folder = directory(tmp_path)
    weights = load_file(folder / "model.safetensors")
    removed = {name: t for name, t in weights.items() if name != "model.blocks.1.memory.edges"}
    save_file(removed, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ConversionError, match=r"its weights are not those of its config: model\.blocks\.1\.memory\.edges"
    ):
        convert(folder, tmp_path / "x.pt")
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ConversionError, match="holds a gpt2 model, not a graph memory model"):
        convert(folder, tmp_path / "x.pt")
    assert not (tmp_path / "x.pt").exists()


def test_the_way_back_of_what_they_do_not_have(tmp_path):
    with pytest.raises(ConversionError, match="has no second sublayer"):
        convert(directory(tmp_path, "model.sublayer=none"), tmp_path / "x.pt")


@pytest.mark.parametrize("way", ["there", "back"])
def test_a_failed_write_leaves_nothing_under_the_final_name(tmp_path, monkeypatch, way):
    source = write(tmp_path, published()) if way == "there" else directory(tmp_path)

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((GMTForCausalLM, "num_parameters") if way == "there" else (torch, "save")), fail)
    with pytest.raises(ConversionError, match="No space left on device"):
        convert(source, tmp_path / "target", heads=2)
    assert not (tmp_path / "target").exists()


def test_places(tmp_path):
    with pytest.raises(ConversionError, match="there is no"):
        convert(tmp_path / "none.pt", tmp_path / "model")
    path = write(tmp_path, published())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConversionError, match="is already there"):
        convert(path, tmp_path / "full", heads=2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConversionError, match="is not a model directory"):
        convert(tmp_path / "empty", tmp_path / "x.pt")


def test_a_run_is_exported_and_a_damaged_checkpoint_is_not(tmp_path):
    run = shutil.copytree(Path(__file__).parents[1] / "fixtures" / "v0_1" / "run", tmp_path / "run")
    exported = torch.load(convert(run, tmp_path / "run.pt"), weights_only=True)
    assert exported["model"]["embed.weight"].shape == (257, 16)
    path = run / "checkpoints" / "step-00000008"
    content = bytearray((path / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "model.safetensors").write_bytes(content)
    for source in (run, path):
        with pytest.raises(GMTError, match=r"model\.safetensors is damaged"):
            convert(source, tmp_path / "damaged.pt")
    assert not (tmp_path / "damaged.pt").exists()
