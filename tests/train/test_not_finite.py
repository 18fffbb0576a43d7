"""A number that is not finite: the optimizer is not called, whether or not it honours `found_inf`."""

import pytest
import torch
from torch import nn

from gmt.errors import GMTError
from gmt.train import optimizer as module
from gmt.train.loop import Options, Run
from gmt.train.optimizer import masked_step, skips_on_device
from tests.train.conftest import config, make_data


class Deaf(torch.optim.AdamW):
    """An optimizer that ignores `found_inf`, as PyTorch's fused AdamW does on some devices."""

    def step(self, closure=None):
        for name in ("found_inf", "grad_scale"):
            if hasattr(self, name):
                delattr(self, name)
        return super().step(closure)


def group(parameter, kind=Deaf):
    return kind([{"params": [parameter], "scale": 1.0}], lr=0.1, fused=True)


def test_the_host_does_not_call_an_optimizer_that_ignores_the_flag():
    parameter = nn.Parameter(torch.ones(3))
    optimizer = group(parameter)
    parameter.grad = torch.full((3,), torch.nan)
    masked_step(optimizer, 0.1, torch.zeros(()), on_device=False)
    assert bool((parameter == 1).all()) and not optimizer.state
    # the control: by the flag alone it would have been damaged
    masked_step(optimizer, 0.1, torch.zeros(()), on_device=True)
    assert bool(parameter.isnan().all())


def test_the_probe_tells_the_two_kinds_apart(monkeypatch):
    """The probe runs on CUDA only; here the same measurement runs on the CPU, whose fused AdamW honours the flag."""

    class Cuda:
        type = "cuda"

    def on_cpu(make):
        return lambda *args, device=None, **kwargs: make(*args, **kwargs)

    for name in ("ones", "zeros"):
        monkeypatch.setattr(module.torch, name, on_cpu(getattr(torch, name)))
    parameter = nn.Parameter(torch.empty(3))
    assert skips_on_device(group(parameter, torch.optim.AdamW), Cuda())  # pyright: ignore
    assert not skips_on_device(group(parameter), Cuda())  # pyright: ignore
    assert not skips_on_device(group(parameter, torch.optim.AdamW), torch.device("cpu"))


def test_a_run_with_such_an_optimizer_leaves_weights_and_memory(tmp_path):
    data = make_data(tmp_path / "data")
    run = Run(config("train.steps=6", "validation.every=6", "train.precision=fp32"), Options(data, tmp_path / "run"))
    groups = [{"params": group["params"], "scale": 1.0} for group in run.optimizer.param_groups]
    run.optimizer = run.stepper.optimizer = Deaf(groups, lr=1e-2, fused=True)
    before = {}

    def tell(event, values):
        if event == "step" and values["step"] == 2:  # the third step is done and finite; the fourth is not
            before.update({name: tensor.clone() for name, tensor in run.lm.state_dict().items() if name != "tau"})
            with torch.no_grad():
                run.lm.norm_final.bias[0] = torch.nan
            before["norm_final.bias"] = run.lm.norm_final.bias.clone()

    run.tell = tell
    with pytest.raises(GMTError, match=r"step 4: .* is not finite"):
        run.go()
    for name, tensor in before.items():
        assert torch.equal(run.lm.state_dict()[name].nan_to_num(7.0), tensor.nan_to_num(7.0)), name
