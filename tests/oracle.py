"""GMT from the paper's equations, in float64 numpy, one token and one slot at a time.

Slow on purpose and written on its own: it imports nothing of the package, only reads the model's numbers.
Section numbers are the paper's.
"""

import math
from dataclasses import dataclass, field

import numpy as np

EPS = 1e-8


@dataclass
class Settings:
    blocks: int
    heads: int
    slots: int
    tau: float
    floor: float = 0.01
    weights: dict = field(
        default_factory=lambda: {"track": 1.0, "ortho": 0.05, "cluster": 0.3, "edge": 0.1, "contrast": 0.5}
    )
    n_target: float = 0.0
    h_target: float = 0.0


@dataclass
class Seen:
    """One block in one forward pass: per-token values in reading order of the tokens that are not padding."""

    source: list
    target: list
    displacement: list
    out: list
    terms: dict


def sigmoid(x):
    return 1 / (1 + math.exp(-float(x)))


def layer_norm(x, weight, bias):
    mean = sum(x) / len(x)
    variance = sum((v - mean) ** 2 for v in x) / len(x)
    return (x - mean) / math.sqrt(variance + 1e-5) * weight + bias


def softmax(scores):
    top = max(scores)
    e = [math.exp(s - top) for s in scores]
    total = sum(e)
    return np.array([v / total for v in e])


def unit(x):
    return x / max(math.sqrt(float(x @ x)), EPS)


def transition(edges):
    """3.3: row softmax, the diagonal masked out."""
    n = len(edges)
    rows = []
    for i in range(n):
        others = [j for j in range(n) if j != i]
        p = softmax([edges[i, j] for j in others])
        row = np.zeros(n)
        for value, j in zip(p, others, strict=True):
            row[j] = value
        rows.append(row)
    return np.array(rows)


def attention(x, qkv, output, heads):
    """Causal attention over one sequence x [T, H]."""
    length, hidden = x.shape
    d = hidden // heads
    q, k, v = (x @ qkv[i * hidden : (i + 1) * hidden].T for i in range(3))
    mixed = np.zeros_like(x)
    for head in range(heads):
        part = slice(head * d, (head + 1) * d)
        for t in range(length):
            weights = softmax([float(q[t, part] @ k[s, part]) / math.sqrt(d) for s in range(t + 1)])
            for s in range(t + 1):
                mixed[t, part] += weights[s] * v[s, part]
    return mixed @ output.T


def route(z, w, tau, floor):
    """3.4 and 3.5 for one token: w_src and w_tgt."""
    states = [layer_norm(c, w["norm_centroids.weight"], w["norm_centroids.bias"]) for c in w["centroids"]]
    distances = [max(1 - float(unit(z) @ unit(state)), floor) for state in states]
    source = softmax([1 / (tau * d) for d in distances])
    p = transition(w["edges"])
    slots = range(len(states))
    edge = [sum(source[i] * p[i, j] for i in slots) for j in slots]
    q = w["query.weight"] @ z
    context = [float(q @ (w["key.weight"] @ state)) / math.sqrt(len(q)) for state in states]
    target = softmax([edge[j] + context[j] for j in slots])
    return source, target, states


def terms_of(seen, w, cfg, track_target=None):
    """3.8: the four terms that belong to a block alone, and the usage for the fifth."""
    n = cfg.slots
    states = [layer_norm(c, w["norm_centroids.weight"], w["norm_centroids.bias"]) for c in w["centroids"]]
    squares = []
    for t, source in enumerate(seen.source):
        predicted = sum(source[i] * states[i] for i in range(n))
        goal = seen.out[t] if track_target is None else track_target[t]
        squares += [(float(a) - float(b)) ** 2 for a, b in zip(goal, predicted, strict=True)]
    track = (1 - sigmoid(w["momentum"])) * sum(squares) / len(squares)

    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    c = [unit(row) for row in w["centroids"]]
    ortho = sum(float(c[i] @ c[j]) ** 2 for i, j in pairs) / len(pairs)

    usage = [sum(s[i] for s in seen.source) / len(seen.source) for i in range(n)]
    share = [u / (sum(usage) + EPS) for u in usage]
    n_eff = math.exp(-sum(u * math.log(u + EPS) for u in share))
    cluster = max(cfg.n_target / max(n_eff, 1) - 1, 0)

    p = transition(w["edges"])
    entropies = [-sum(v * math.log(v + EPS) for v in row) for row in p]
    edge = sum(max(cfg.h_target - h, 0) for h in entropies) / n

    rows = [unit(row) for row in p]
    contrast = sum(float(rows[i] @ rows[j]) for i, j in pairs) / len(pairs)
    return {"track": track, "ortho": ortho, "cluster": cluster, "edge": edge, "contrast": contrast}


def forward(weights, cfg, rows, track_targets=None):
    """Logits per row and what each block saw. rows are lists of ids; weights map names to float64 arrays."""
    xs = [
        np.array(
            [weights["token_embedding.weight"][i] + weights["position_embedding.weight"][t] for t, i in enumerate(row)]
        )
        for row in rows
    ]
    blocks = []
    for index in range(cfg.blocks):
        prefix = f"blocks.{index}."
        b = {k[len(prefix) :]: v for k, v in weights.items() if k.startswith(prefix)}
        m = {k[len("memory.") :]: v for k, v in b.items() if k.startswith("memory.")}
        seen = Seen([], [], [], [], {})
        for r, x in enumerate(xs):
            normed = np.array([layer_norm(v, b["norm1.weight"], b["norm1.bias"]) for v in x])
            h = x + attention(normed, b["attention.qkv.weight"], b["attention.output.weight"], cfg.heads)
            out = h.copy()
            for t in range(len(x)):
                z = layer_norm(h[t], b["norm2.weight"], b["norm2.bias"])
                if "dense.up.weight" in b:
                    inner = [v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in b["dense.up.weight"] @ z]
                    out[t] = h[t] + b["dense.down.weight"] @ np.array(inner)
                    continue
                source, target, states = route(z, m, cfg.tau, cfg.floor)
                c_src = sum(source[i] * states[i] for i in range(cfg.slots))
                c_tgt = sum(target[i] * states[i] for i in range(cfg.slots))
                d = sigmoid(m["gate"]) * layer_norm(
                    c_tgt - c_src, m["norm_displacement.weight"], m["norm_displacement.bias"]
                )
                out[t] = h[t] + d
                seen.source.append(source)
                seen.target.append(target)
                seen.displacement.append(d)
                seen.out.append(out[t])
            xs[r] = out
        if m:
            seen.terms = terms_of(seen, m, cfg, None if track_targets is None else track_targets[index])
        blocks.append(seen)
    logits = [
        np.array(
            [
                weights["token_embedding.weight"]
                @ layer_norm(v, weights["norm_final.weight"], weights["norm_final.bias"])
                for v in x
            ]
        )
        for x in xs
    ]
    return logits, blocks


def objective(weights, cfg, rows, labels, track_targets=None):
    """3.8: cross-entropy, the five terms (means over blocks), and their weighted sum."""
    logits, blocks = forward(weights, cfg, rows, track_targets)
    losses = [
        -math.log(softmax(list(logits[r][t]))[label]) for r, row in enumerate(labels) for t, label in enumerate(row)
    ]
    task = sum(losses) / len(losses)
    aux = {name: sum(b.terms[name] for b in blocks) / len(blocks) for name in cfg.weights}
    return task + sum(cfg.weights[name] * aux[name] for name in aux), task, aux, blocks


def write_back(centroids, momentum, seen):
    """3.7: hard assignment, mean of the block's outputs, moving average, back onto the sphere."""
    m = sigmoid(momentum)
    assigned = {i: [] for i in range(len(centroids))}
    for source, out in zip(seen.source, seen.out, strict=True):
        best = 0
        for i in range(1, len(source)):
            if source[i] > source[best]:
                best = i
        assigned[best].append(out)
    new = []
    for i, c in enumerate(centroids):
        mean = sum(assigned[i], np.zeros_like(c)) / max(len(assigned[i]), EPS)
        new.append(unit(m * c + (1 - m) * mean))
    return np.array(new)


def usage_update(usage, seen, rho=0.99):
    """3.9: smoothed source usage."""
    n = len(seen.source)
    return np.array([rho * usage[i] + (1 - rho) * sum(s[i] for s in seen.source) / n for i in range(len(usage))])


def maintain(centroids, usage, age, candidates, dead_below, merge_cosine=0.95, merge_age=100):
    """3.9 and appendix: reset dead slots, then merge mature near-duplicates. Candidates are used in order."""
    c, u, a = centroids.copy(), list(usage), list(age)
    supply = iter(candidates)
    n = len(c)
    replaced = []

    def replace(i):
        c[i], u[i], a[i] = unit(next(supply)), 1 / n, 0
        replaced.append(i)

    for i in range(n):
        if usage[i] < dead_below:
            replace(i)
    for i in range(n):
        for j in range(i + 1, n):
            if a[i] >= merge_age and a[j] >= merge_age and float(unit(c[i]) @ unit(c[j])) > merge_cosine:
                replace(j if u[i] >= u[j] else i)
    return c, np.array(u), np.array(a), replaced
