"""The LM evaluation harness: its tasks, prompts and metrics, on our models. The one file that imports lm_eval.

Importing this registers the model as `gmt`, so that the harness's own interface knows it too:
`lm_eval.simple_evaluate(model="gmt", model_args={"pretrained": "runs/base"}, tasks=["arc_easy"])`.
"""

# the harness resolves its names lazily, so that a type checker sees other signatures than there are
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportTypedDictNotRequiredAccess=false
# pyright: reportArgumentType=false

import hashlib
import inspect
import json
import logging
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
import yaml

from gmt.errors import DataError, GMTError
from gmt.evaluate.results import Metric, TaskResult
from gmt.hf.load import Loaded, open_model

try:
    import lm_eval
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
except ImportError as error:
    raise GMTError(f"harness tasks need lm_eval ({error}): pip install 'graph-memory-transformer[eval]'") from None

OWN = {"model", "model_args", "tasks", "task_manager", "limit", "num_fewshot", "batch_size", "device", "log_samples"}
SPLITS = ("train", "validation", "test")


@register_model("gmt")
class GMTHarness(HFLM):
    """A model directory, a run, a hub name or a loaded model, as the harness wants it."""

    def __init__(
        self,
        pretrained: Any,
        tokenizer: Any = None,
        device: str | None = "cpu",
        tau: float | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(pretrained, str | Path):
            loaded = open_model(pretrained, device or "cpu", tau)
            pretrained, tokenizer = loaded.model, loaded.tokenizer
        super().__init__(pretrained=pretrained, tokenizer=tokenizer, device=device, backend="causal", **kwargs)

    def _model_call(self, inps: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        with (
            torch.no_grad(),
            torch.autocast(self.device.type, self.mixed_precision_dtype, self.mixed_precision_dtype is not None),
        ):
            # the past is not kept: a scored text is not gone on with
            return self.model(inps, use_cache=False).logits


def check_options(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the harness that pass through: those of `simple_evaluate`, and those of its model."""
    evaluate = set(inspect.signature(lm_eval.simple_evaluate).parameters) - OWN
    model = set(inspect.signature(HFLM.__init__).parameters) - {
        "self",
        "pretrained",
        "tokenizer",
        "device",
        "backend",
        "kwargs",
        "batch_size",
    }
    for name in options:
        if name not in evaluate | model:
            near = get_close_matches(name, evaluate | model, 1)
            hint = f"; the nearest is {near[0]}" if near else ""
            raise GMTError(f"the harness has no option {name!r} that passes through{hint}")
    return {n: v for n, v in options.items() if n in evaluate}, {n: v for n, v in options.items() if n in model}


def run_task(
    loaded: Loaded,
    name: str,
    *,
    batch: int = 8,
    limit: int | None = None,
    shots: int | None = 0,
    data: Path | None = None,
    precision: str = "fp32",
    options: dict[str, Any] | None = None,
) -> dict[str, TaskResult]:
    """One task or group of the harness: results by task, with every item's mark."""
    evaluate, model = check_options(options or {})
    # it remarks on every model that is passed as an object, which is the only way we pass one
    logging.getLogger("lm_eval").setLevel(evaluate.get("verbosity", "ERROR"))
    device = loaded.lm.tau.device
    if precision == "bf16":
        model.setdefault("mixed_precision_dtype", torch.bfloat16)
    # logits are scored in float32, whatever computed them
    model.setdefault("softmax_dtype", torch.float32)
    adapter = GMTHarness(loaded.model, loaded.tokenizer, str(device), batch_size=batch, **model)
    with _task_manager(name, data) as manager:
        if not manager.match_tasks([name]):
            near = get_close_matches(name, manager.all_tasks, 3)
            raise GMTError(f"the harness has no task {name!r}" + (f"; near it are {', '.join(near)}" if near else ""))
        try:
            found = lm_eval.simple_evaluate(
                model=adapter,
                tasks=[name],
                num_fewshot=shots,
                limit=limit,
                task_manager=manager,
                log_samples=True,
                **evaluate,
            )
        except (OSError, ConnectionError) as error:
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataError(f"the data of {name} is not to be had: {why}; --task-data takes local files") from None
    assert found is not None
    return {task: _result(found, task) for task in found["samples"]}


def _result(found: Any, task: str) -> TaskResult:
    samples = sorted(found["samples"][task], key=lambda sample: sample["doc_id"])
    digest = hashlib.sha256("".join(str(sample["doc_hash"]) for sample in samples).encode()).hexdigest()
    metrics = {}
    for key, value in found["results"][task].items():
        name, _, filtered = key.partition(",")
        if not filtered or name.endswith("_stderr") or not isinstance(value, int | float):
            continue
        error = found["results"][task].get(f"{name}_stderr,{filtered}")
        marks = [s.get(name) for s in samples]
        scalars = all(isinstance(mark, int | float | bool) for mark in marks)
        each = Metric.of([float(m) for m in marks]).each if scalars and marks else None  # pyright: ignore
        label = name if filtered == "none" else f"{name} ({filtered})"
        metrics[label] = Metric(float(value), float(error) if isinstance(error, int | float) else None, each)
    made_with = {"version": found["versions"].get(task), "harness": lm_eval.__version__}
    return TaskResult(int(found["n-shot"].get(task) or 0), len(samples), digest, metrics, made_with=made_with)


@contextmanager
def _task_manager(name: str, data: Path | None) -> Iterator[Any]:
    """All tasks of the harness; or, from local files, its own task file with nothing but the data source replaced."""
    if data is None:
        yield TaskManager()
        return
    official = official_file(name)
    with tempfile.TemporaryDirectory() as folder:
        text = yaml.safe_dump(local_task(name, official, data), sort_keys=False)
        (Path(folder) / f"{name}.yaml").write_text(text, encoding="utf-8")
        yield TaskManager(include_path=folder, include_defaults=False)


def official_file(name: str) -> Path:
    """The installed task file that defines a task."""
    root = Path(str(lm_eval.__file__)).parent / "tasks"
    named = re.compile(rf"^task:\s*[\"']?{re.escape(name)}[\"']?\s*$", re.MULTILINE)
    likely = sorted(root.rglob(f"{name}.yaml"))
    for path in likely + [p for p in sorted(root.rglob("*.yaml")) if p not in likely]:
        if named.search(path.read_text(encoding="utf-8", errors="replace")):
            return path
    raise GMTError(f"the harness has no single task {name!r}; from local files, groups are not read")


def local_task(name: str, official: Path, data: Path) -> dict[str, Any]:
    source = _source(official)
    files = local_files(name, source.get("dataset_name"), data)
    task = {"include": str(official), "task": name, "dataset_path": "json", "dataset_name": None}
    task["dataset_kwargs"] = {"data_files": {split: str(path) for split, path in files.items()}}  # pyright: ignore
    for key in ("training_split", "validation_split", "test_split"):
        if source.get(key) is not None and source[key] not in files:
            task[key] = None
    if task.get("test_split", source.get("test_split")) is None:
        wanted = task.get("validation_split", source.get("validation_split"))
        if wanted is None:
            raise DataError(
                f"{name} is scored on its {source.get('test_split') or 'validation'} split, which {data} lacks"
            )
    return task


def _source(path: Path) -> dict[str, Any]:
    """Where a task file says its data is, looked up through the files it includes."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: str(node.value))
    tree = yaml.load(path.read_text(encoding="utf-8"), Loader)
    above: dict[str, Any] = {}
    includes = tree.get("include", [])
    for name in [includes] if isinstance(includes, str) else includes:
        above |= _source(path.parent / name)
    return above | tree


def local_files(name: str, subset: str | None, data: Path) -> dict[str, Path]:
    """TASK_SPLIT.jsonl, or SUBSET_SPLIT.jsonl where the data has a name of its own; every line is looked at."""
    files = {}
    for split in SPLITS:
        for stem in filter(None, (name, subset)):
            path = data / f"{stem}_{split}.jsonl"
            if path.is_file():
                files.setdefault(split, path.resolve())
    if not files:
        names = " or ".join(f"{stem}_test.jsonl" for stem in filter(None, (name, subset)))
        raise DataError(f"{data} has no file for {name}: {names}, or the same with validation or train")
    for path in files.values():
        _check_lines(path)
    return files


def _check_lines(path: Path) -> None:
    count = 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                count += 1
                try:
                    whole = isinstance(json.loads(line), dict)
                except ValueError:
                    whole = False
                if not whole:
                    raise DataError(f"{path}:{number}: not a JSON object on a line of its own")
    if count == 0:
        raise DataError(f"{path} holds no items")
