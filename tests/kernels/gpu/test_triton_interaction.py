"""The interaction in Triton, against its definition in float64 and the passes in torch.

Products of matrices round as the units do that take them, so values are compared within rounding, not bit for bit.
"""

import pytest
import torch
from support.triton_setup import DEVICE, ready
from torch import Tensor

from adaptive.models.dense import interactions as models
from adaptive.models.dense.interactions import aligned, num_dots, plain_dot_interaction

with ready():
    from adaptive.kernels.gpu import interaction as kernels

# samples, features, width of a vector
SHAPES = [(1, 1, 1), (3, 2, 3), (2, 7, 20), (3, 26, 16), (2, 4, 37), (1, 31, 64)]


def made(shape: tuple[int, int, int], with_bottom: bool) -> tuple[Tensor, Tensor]:
    samples, features, width = shape
    generator = torch.Generator().manual_seed(features)
    bottom = torch.randn((samples, width if with_bottom else 0), generator=generator)
    return bottom.to(DEVICE), torch.randn((samples, features, width), generator=generator).to(DEVICE)


@pytest.mark.parametrize("with_bottom", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_those_of_the_definition(shape: tuple[int, int, int], with_bottom: bool) -> None:
    bottom, pooled = made(shape, with_bottom)
    exact = [part.double().requires_grad_() for part in (bottom, pooled)]
    expected = plain_dot_interaction(*exact)
    used = bottom.shape[1] + num_dots(pooled.shape[1] + with_bottom)
    out = torch.full((len(pooled), aligned(used)), torch.nan, device=DEVICE)
    with ready():
        kernels.dot_forward(bottom, pooled, out)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(out[:, : bottom.shape[1]], bottom) and not out[:, used:].any()
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    grad[:, used:] = torch.nan
    found = [torch.full_like(part, torch.nan) for part in (bottom, pooled)]
    with ready():
        kernels.dot_backward(bottom, pooled, grad, *found)
    expected.backward(torch.nan_to_num(grad).double())
    for one, needed in zip(found, exact, strict=True):
        wanted = torch.zeros_like(needed) if needed.grad is None else needed.grad
        torch.testing.assert_close(one.double(), wanted, rtol=1e-4, atol=1e-4)


def test_the_model_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    bottom, pooled = (part.requires_grad_() for part in made((3, 5, 8), True))
    strided = pooled.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    plain = plain_dot_interaction(bottom, pooled)
    plain.square().sum().backward()
    with ready():
        out = models._TritonDots.apply(bottom, strided)
        out.square().sum().backward()
    torch.testing.assert_close(out, plain)
    torch.testing.assert_close(strided.grad, pooled.grad, rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_is_left_to_others() -> None:
    def fits(features: int, width: int, *, samples: int = 1) -> bool:
        return kernels.can_run(torch.empty(samples, features, 4), torch.empty(samples, width))

    assert fits(31, 4) and fits(32, 0)
    assert not fits(32, 4) and not fits(33, 0) and not fits(3, 4, samples=0)
