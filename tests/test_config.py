from pathlib import Path

import pytest

from gmt import GMTConfig
from gmt.config import PRESETS, MemoryConfig, TemperatureConfig
from gmt.errors import ConfigError

CONFIGS = Path(__file__).parent.parent / "configs"


def test_the_base_preset_is_the_papers():
    cfg = GMTConfig.preset("gmt-v7-base")
    assert (cfg.model.blocks, cfg.model.hidden, cfg.model.heads, cfg.model.context) == (16, 768, 12, 1024)
    assert (cfg.model.vocab, cfg.memory.slots, cfg.memory.navigation, cfg.model.dropout) == (50257, 128, 128, 0.1)
    assert (cfg.cluster_target, cfg.edge_floor, cfg.dead_below) == (32, 4.0, 1e-3)
    weights = cfg.losses
    assert (weights.track, weights.ortho, weights.cluster, weights.edge, weights.contrast) == (1, 0.05, 0.3, 0.1, 0.5)
    assert (cfg.maintenance.every, cfg.maintenance.merge_cosine, cfg.maintenance.merge_age) == (110, 0.95, 100)
    assert (cfg.temperature.max, cfg.temperature.min, cfg.memory.distance_floor) == (1.0, 0.1, 0.01)
    assert (cfg.memory.gate_init, cfg.memory.momentum_init, cfg.memory.usage_decay) == (1.0, 4.6, 0.99)


def test_thresholds_follow_the_number_of_slots():
    cfg = GMTConfig.preset("gmt-v7-base", "memory.slots=32")
    assert cfg.edge_floor == pytest.approx(0.8257 * 3.4339872, abs=1e-6)  # ln 31
    assert cfg.dead_below == pytest.approx(0.004)
    assert cfg.cluster_target == 8
    given = GMTConfig.preset("tiny", "losses.edge_floor=1", "maintenance.dead_below=0.5", "losses.cluster_target=3")
    assert (given.edge_floor, given.dead_below, given.cluster_target) == (1, 0.5, 3)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_file_is_its_preset(path):
    """The files spell their settings out for a reader; they cannot drift from the preset of the same name."""
    assert GMTConfig.from_yaml(path) == GMTConfig.preset(path.stem.replace("_", "-"))


def test_every_preset_has_a_file():
    assert {p.stem.replace("_", "-") for p in CONFIGS.glob("*.yaml")} == set(PRESETS)


def test_round_trip_and_overrides():
    cfg = GMTConfig.preset("tiny", "memory.slots=64", "temperature.min=1e-2", "losses.edge_floor=null")
    assert (cfg.memory.slots, cfg.temperature.min) == (64, 0.01)
    assert isinstance(cfg.temperature.min, float)
    assert GMTConfig.from_dict(cfg.to_dict()) == cfg


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["memory.slots=1"], "memory.slots = 1: must be at least 2 and at most 65536"),
        (["model.hidden=100", "model.heads=7"], "model.heads = 7: must divide model.hidden = 100"),
        (["temperature.min=2"], "temperature.min = 2.0: must be at most temperature.max = 1.0"),
        (["temperature.min=0"], "temperature.min = 0.0: must be at least 1e-06 and at most 1000"),
        (["temperature.min=nan"], "temperature.min = nan: must be at least 1e-06"),
        (["memory.slotz=4"], "memory.slotz: there is no such setting; the nearest is memory.slots"),
        (["slots=4"], "slots: there is no such setting; the nearest is memory.slots"),
        (["model.sublayer=moe"], "model.sublayer = 'moe': must be one of memory, dense, none"),
        (["model.blocks=2.5"], "model.blocks = 2.5: must be a whole number"),
        (["model.blocks=true"], "model.blocks = True: must be a whole number"),
        (["model.blocks=many"], "model.blocks = 'many': must be a whole number"),
        (["memory.slots"], "'memory.slots' is not an override of the form section.setting=value"),
        (["memory=4"], "memory: is a section of settings, not 4"),
        (["losses.cluster_target=129"], "losses.cluster_target = 129.0: must be at most memory.slots = 128"),
        (["losses.track=.inf"], "losses.track = inf: must be at least 0 and at most 1e+06"),
        (["losses.edge_floor=.inf"], "losses.edge_floor = inf: must be at least 0 and at most 100"),
        (["losses.cluster_target=0"], "losses.cluster_target = 0.0: must be over 0"),
        (["maintenance.merge_age=0"], "maintenance.merge_age = 0: must be at least 1"),
    ],
)
def test_each_mistake_is_told(overrides, told):
    with pytest.raises(ConfigError, match="wrong setting") as error:
        GMTConfig.preset("gmt-v7-base", *overrides)
    assert told in str(error.value)


def test_all_mistakes_are_told_at_once():
    with pytest.raises(ConfigError) as error:
        GMTConfig.from_dict({"preset": "tinny", "memory": {"slots": 1}}, ["model.heads=7", "memory.slotz=2", "x"])
    lines = str(error.value).splitlines()
    assert lines[0] == "5 wrong settings:"
    for part in ("the nearest is tiny", "memory.slots = 1", "model.heads = 7", "memory.slotz", "'x' is not"):
        assert any(part in line for line in lines[1:]), part


def test_direct_construction_is_checked_too():
    with pytest.raises(ConfigError, match=r"memory\.slots = 1"):
        GMTConfig(memory=MemoryConfig(slots=1))
    with pytest.raises(ConfigError, match=r"memory\.slots = 'few': must be a whole number"):
        GMTConfig(memory=MemoryConfig(slots="few"))  # pyright: ignore
    with pytest.raises(ConfigError, match=r"memory\.slots = 2\.5: must be a whole number"):
        GMTConfig(memory=MemoryConfig(slots=2.5))  # pyright: ignore
    with pytest.raises(ConfigError, match=r"temperature\.min = 'x': must be a number"):
        GMTConfig(temperature=TemperatureConfig(min="x"))  # pyright: ignore
    with pytest.raises(ConfigError, match=r"preset: there is no \['tiny'\]"):
        GMTConfig.from_dict({"preset": ["tiny"]})


@pytest.mark.parametrize(
    ("content", "told"),
    [("model: [", "is not YAML"), ("- 1", "a mapping of sections, not list"), (None, "cannot read the configuration")],
)
def test_a_bad_file_is_one_sentence(tmp_path, content, told):
    path = tmp_path / "c.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=told):
        GMTConfig.from_yaml(path)


def test_an_empty_file_is_the_base_model(tmp_path):
    (tmp_path / "c.yaml").write_text("")
    assert GMTConfig.from_yaml(tmp_path / "c.yaml") == GMTConfig()
