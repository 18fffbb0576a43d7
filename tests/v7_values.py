"""The numbers of v7 on fixed inputs, with hashes, as JSON: `python tests/v7_values.py PRESET [DTYPE]`.

Uses public names only, so that one file runs with the code of any commit (benchmarks/compare_commits.py).
"""

import hashlib
import json
import sys
from typing import Any

import torch

from gmt import GMTConfig, GraphMemoryLM

STEPS, TOKENS = 3, 96


def described(tensor: torch.Tensor) -> dict[str, Any]:
    """Every bit as a hash; sum and norm in float64, to compare between machines."""
    flat = tensor.detach().cpu().contiguous().flatten()
    wide = flat.double()
    return {
        "sha256": hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest(),
        "sum": float(wide.sum()),
        "norm": float(wide.norm()),
    }


def values(preset: str, dtype: torch.dtype = torch.float32) -> dict[str, dict[str, Any]]:
    """Logits, losses, terms, writes, gradients and state of three steps on the reference path with one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cfg = GMTConfig.preset(preset, "memory.kernels=plain", "model.dropout=0", "model.attention=torch")
    lm = GraphMemoryLM(cfg).to(dtype)
    optimizer = torch.optim.AdamW(lm.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    generator = torch.Generator().manual_seed(1)
    found = {}
    for step in range(STEPS):
        ids = torch.randint(cfg.model.vocab, (2, TOKENS + 1), generator=generator)
        lm.set_temperature(1.0 - 0.2 * step)
        out = lm(ids[:, :-1], labels=ids[:, 1:], return_routes=True)
        seen = {"logits": out.logits, "loss": out.loss, "task_loss": out.task_loss}
        seen |= {f"term {name}": value for name, value in dict(out.aux).items()}
        for name in ("slot_sum", "slot_count", "usage_sum", "tokens"):
            seen[f"write {name}"] = getattr(out.writes, name)
        for block, route in enumerate(out.routes):
            seen |= {f"route {block} {name}": getattr(route, name) for name in ("source", "target", "displacement")}
        out.loss.backward()
        seen |= {f"gradient {name}": p.grad for name, p in lm.named_parameters() if p.grad is not None}
        lm.commit(out.writes)
        optimizer.step()
        optimizer.zero_grad()
        seen |= {f"state {name}": tensor for name, tensor in lm.state_dict().items()}
        found |= {f"step {step}: {name}": described(tensor) for name, tensor in seen.items()}
    return found


if __name__ == "__main__":
    print(json.dumps(values(sys.argv[1], getattr(torch, sys.argv[2] if len(sys.argv) > 2 else "float32"))))
