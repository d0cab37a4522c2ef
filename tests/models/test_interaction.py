"""The interaction against sums written out, and the fused passes against torch's own gradients."""

import numba
import numpy as np
import pytest
import torch
from torch import Tensor

from adaptive.kernels import interaction as kernels
from adaptive.models.dense.interactions import (
    aligned,
    concatenation,
    dot_interaction,
    num_dots,
    plain_dot_interaction,
)

# samples, features, width of a vector
SHAPES = [(1, 1, 1), (3, 1, 16), (2, 2, 3), (5, 7, 20), (129, 26, 16), (65, 4, 37), (0, 3, 8)]


def make_inputs(shape: tuple[int, int, int], *, with_bottom: bool, seed: int = 0) -> tuple[Tensor, Tensor]:
    num_samples, num_features, dim = shape
    generator = torch.Generator().manual_seed(seed)
    bottom = torch.randn((num_samples, dim if with_bottom else 0), generator=generator)
    pooled = torch.randn((num_samples, num_features, dim), generator=generator)
    return bottom, pooled


def twin(bottom: Tensor, pooled: Tensor) -> Tensor:
    """One product at a time, in the order of the definition; no padding."""
    vectors = [bottom] if bottom.shape[1] else []
    vectors += list(pooled.unbind(1))
    dots = [(first * second).sum(1) for i, first in enumerate(vectors) for second in vectors[:i]]
    return torch.cat([bottom, *[dot[:, None] for dot in dots]], dim=1)


def test_written_out() -> None:
    bottom = torch.tensor([[1.0, 2.0]])
    pooled = torch.tensor([[[3.0, 4.0], [5.0, 6.0]]])
    dots = [1 * 3 + 2 * 4, 1 * 5 + 2 * 6, 3 * 5 + 4 * 6]
    out = dot_interaction(bottom, pooled)
    assert out.tolist() == [[1.0, 2.0, *dots, *[0.0] * 11]]
    assert concatenation(bottom, pooled).tolist() == [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, *[0.0] * 10]]


@pytest.mark.parametrize("interact", [dot_interaction, plain_dot_interaction])
@pytest.mark.parametrize("with_bottom", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_twin(shape: tuple[int, int, int], with_bottom: bool, interact) -> None:
    """Values and gradients of both paths, against the twin in float64."""
    inputs = [part.requires_grad_() for part in make_inputs(shape, with_bottom=with_bottom)]
    exact = [part.detach().double().requires_grad_() for part in inputs]
    out = interact(*inputs)
    expected = twin(*exact)
    assert out.dtype == torch.float32
    assert out.shape == (shape[0], aligned(expected.shape[1]))
    width = expected.shape[1]
    torch.testing.assert_close(out[:, :width].double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(out[:, :width][:, : inputs[0].shape[1]], inputs[0])
    assert not out[:, width:].any()
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    out.backward(grad)
    expected.backward(grad[:, :width].double())
    for actual, needed in zip(inputs, exact, strict=True):
        assert actual.grad is not None
        needed_grad = torch.zeros_like(needed) if needed.grad is None else needed.grad
        torch.testing.assert_close(actual.grad.double(), needed_grad, rtol=1e-4, atol=1e-4)


def test_gradcheck() -> None:
    bottom, pooled = (part.double().requires_grad_() for part in make_inputs((2, 3, 5), with_bottom=True))
    assert torch.autograd.gradcheck(dot_interaction, (bottom, pooled))


def test_strided_inputs_and_gradients() -> None:
    """Pooled vectors that lie feature by feature, and a gradient that is an expanded scalar."""
    bottom, pooled = make_inputs((6, 4, 8), with_bottom=True)
    strided = pooled.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    dense = pooled.clone().requires_grad_()
    dot_interaction(bottom, strided).sum().backward()
    plain_dot_interaction(bottom, dense).sum().backward()
    torch.testing.assert_close(strided.grad, dense.grad)


def test_threads_do_not_change_bits() -> None:
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("needs two numba threads")
    before = numba.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            numba.set_num_threads(threads)
            inputs = [part.requires_grad_() for part in make_inputs((1000, 5, 16), with_bottom=True)]
            out = dot_interaction(*inputs)
            out.square().sum().backward()
            results.append([out, *[part.grad for part in inputs]])
    finally:
        numba.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_sample_does_not_depend_on_its_batch() -> None:
    bottom, pooled = make_inputs((200, 5, 16), with_bottom=True)
    whole = dot_interaction(bottom, pooled)
    assert torch.equal(dot_interaction(bottom[150:], pooled[150:]), whole[150:])


@pytest.mark.parametrize("with_bottom", [False, True])
def test_kernels_as_plain_python(with_bottom: bool) -> None:
    bottom, pooled = (part.numpy() for part in make_inputs((3, 5, 6), with_bottom=with_bottom))
    expected = plain_dot_interaction(torch.from_numpy(bottom), torch.from_numpy(pooled))
    out = np.full(expected.shape, np.nan, np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_forward", kernels._forward.py_func)
        kernels.dot_forward(bottom, pooled, out)
    np.testing.assert_allclose(out, expected.numpy(), rtol=1e-5, atol=1e-5)
    grad = np.random.default_rng(0).standard_normal(out.shape, np.float32)
    plain = [np.full_like(bottom, np.nan), np.full_like(pooled, np.nan)]
    compiled = [np.full_like(bottom, np.nan), np.full_like(pooled, np.nan)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_backward", kernels._backward.py_func)
        kernels.dot_backward(bottom, pooled, grad, *plain)
    kernels.dot_backward(bottom, pooled, grad, *compiled)
    for actual, needed in zip(plain, compiled, strict=True):
        np.testing.assert_allclose(actual, needed, rtol=1e-5, atol=1e-5)


def test_padding_of_the_gradient_is_ignored() -> None:
    bottom, pooled = (part.requires_grad_() for part in make_inputs((4, 2, 3), with_bottom=True))
    out = dot_interaction(bottom, pooled)
    grad = torch.ones_like(out)
    grad[:, 3 + num_dots(3) :] = torch.nan
    out.backward(grad)
    assert bottom.grad is not None
    assert pooled.grad is not None
    assert torch.isfinite(bottom.grad).all()
    assert torch.isfinite(pooled.grad).all()
