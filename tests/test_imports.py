"""The arrows between the rooms: config <- memory <- model <- hf <- cli, and data beside them. Nobody points back."""

import ast
from pathlib import Path

import gmt

ROOT = Path(gmt.__file__).parent
# a room may import those listed before it, and itself; `errors` and the package's version are everybody's
ORDER = [
    "utils",
    "config",
    "plot",
    "memory",
    "kernels",
    "model",
    "data",
    "checkpoint",
    "hf",
    "evaluate",
    "train",
    "analysis",
    "explorer",
    "study",
    "bench",
    "doctor",
    "terminal",
    "demo",
    "cli",
]
EVERYBODY = {"errors", "__init__"}
# each heavy optional package is imported in one file; kernels are several, and say so in their names
OPTIONAL = {
    "triton",
    "lm_eval",
    "matplotlib",
    "fastapi",
    "uvicorn",
    "tensorboard",
    "wandb",
    "datasets",
    "textblob",
    "plotly",
}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: imports are absolute"
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def backward_arrows(files: dict[Path, set[str]]) -> list[str]:
    wrong = []
    for path, names in files.items():
        room = room_of(path)
        if room in EVERYBODY | {"__main__"}:
            continue
        for name in names:
            target = name.split(".")[1] if name.startswith("gmt.") else ""
            if target in ORDER and ORDER.index(target) > ORDER.index(room):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    return wrong


FILES = {path: imported(path) for path in sorted(ROOT.rglob("*.py"))}


def test_every_room_is_on_the_plan():
    rooms = {room_of(path) for path in FILES} - EVERYBODY - {"__main__"}
    assert rooms <= set(ORDER), f"rooms without a place in the order: {rooms - set(ORDER)}"


def test_nobody_points_back():
    assert backward_arrows(FILES) == []


def test_the_walk_would_see_a_backward_arrow():
    assert backward_arrows({ROOT / "memory" / "cell.py": {"gmt.model.block"}}) == [
        "memory/cell.py imports gmt.model.block"
    ]


def test_the_paper_stands_alone():
    """memory/ is plain PyTorch: no files, no processes, no kernels."""
    for path, names in FILES.items():
        if room_of(path) == "memory":
            tops = {name.split(".")[0] for name in names}
            assert tops <= {"torch", "gmt", "math", "typing", "collections", "contextlib", "hashlib", "operator"}, path
            assert not any(name.startswith("torch.distributed") for name in names), path


def test_optional_packages_have_one_door_each():
    for package in OPTIONAL:
        doors = {p.name for p, names in FILES.items() if any(n.split(".")[0] == package for n in names)}
        doors = {"triton_*.py" if name.startswith("triton_") else name for name in doors}
        assert len(doors) <= 1, f"{package} is imported in {doors}"


def test_workers_stay_small():
    """data/ imports no torch, so that a process that tokenizes needs no gigabyte."""
    for path, names in FILES.items():
        if room_of(path) == "data":
            assert not {"torch", "transformers"} & {name.split(".")[0] for name in names}, path
            assert not any(name.startswith(("gmt.model", "gmt.memory")) for name in names), path


def test_files_are_small():
    for path in FILES:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path
