"""The device's memory runs out in a forward or backward pass: the batch is run again with fewer device rows."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from toy import ToyData, toy_config
from toy_runs import assert_equal, everything

from adaptive.build import Parts, build
from adaptive.errors import DeviceMemoryError
from adaptive.trainer import Trainer


class RunsOut(nn.Module):
    """Fails in the given calls of forward, before it or in its backward pass."""

    def __init__(self, model: nn.Module, calls: Sequence[int], where: str) -> None:
        super().__init__()
        self.model, self.failing, self.where, self.calls = model, set(calls), where, 0

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        self.calls += 1
        fails = self.calls - 1 in self.failing
        if fails and self.where == "forward":
            raise torch.OutOfMemoryError("CUDA out of memory")
        logits: Tensor = self.model(dense, pooled)
        if fails:
            (pooled if self.where == "end of backward" else logits).register_hook(out_of_memory)
        return logits


def out_of_memory(gradient: Tensor) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def train(calls: Sequence[int], where: str, *, depth: int = 2, **tier: object) -> tuple[Parts, int]:
    toy = ToyData()
    sample = list(toy.train(32))
    config = toy_config(tier={"device": "cpu-torch", "device_rows": "100%", "poison": True} | tier, depth=depth)
    parts = build(config, toy, sample)
    model = RunsOut(parts.model, calls, where)
    steps = Trainer(parts.embeddings, model, parts.optimizer).train(toy.train(32), depth=depth)
    return parts, steps


@pytest.mark.parametrize("where", ["forward", "backward", "end of backward"])
@pytest.mark.parametrize("calls", [[0], [3, 4], [7, 12, 13]])
def test_the_result_is_that_of_an_undisturbed_run(where: str, calls: list[int]) -> None:
    expected, steps = train([], where)
    found, steps_found = train(calls, where, transfer="direct")
    assert steps_found == steps == 20
    assert found.embeddings.view.device_rows < expected.embeddings.view.device_rows
    assert_equal(everything(found), everything(expected))


def test_a_batch_that_never_fits_ends_the_run_with_what_to_do() -> None:
    with pytest.raises(DeviceMemoryError, match="lower batch_size or depth") as caught:
        train(range(3, 1000), "forward", depth=1)
    assert caught.value.exit_code == 7
