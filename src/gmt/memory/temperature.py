"""What of the memory is a function of the optimizer step: the routing temperature, the weight of its terms."""

import math


def temperature(step: int, steps: int, tau_max: float, tau_min: float, schedule: str = "log") -> float:
    """τ(s) = τ_max (τ_min/τ_max)^ln(1 + (e-1) p),  p = min(s/S, 1); or, `linear`, τ_max + (τ_min - τ_max) p."""
    progress = min(step / steps, 1.0) if steps > 0 else 1.0
    if schedule == "linear":
        return tau_max + (tau_min - tau_max) * progress
    return tau_max * (tau_min / tau_max) ** math.log(1 + (math.e - 1) * progress)


def aux_weight(step: int, steps: int, begin: float, full: float) -> float:
    """Of all auxiliary terms: 0 until the share `begin` of the steps, 1 from `full` on, a straight line between."""
    done = step / steps if steps > 0 else 1.0
    if done >= full:
        return 1.0
    return 0.0 if done <= begin else (done - begin) / (full - begin)
