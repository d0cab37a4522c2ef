"""DLRM's dense part: what fusing the interaction, padding, bfloat16 and compiling bring, forward and backward.

    python -m benchmarks.bench_dense            # half a minute on two cores
    python -m benchmarks.bench_dense --compile  # also torch.compile of both MLPs, a minute more

Every variant's results are compared with plain torch's before any is timed. Variants take turns, so that a busy
machine slows all of them; the first rounds are dropped and the median of the others is shown.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from typing import cast

import numba
import torch
from torch import Tensor, nn

from adaptive.models.dlrm import DLRM, DLRMConfig
from adaptive.models.layers.interaction import dot_interaction, plain_dot_interaction

NUM_SAMPLES, NUM_DENSE, NUM_FEATURES = 2048, 13, 26
NUM_DOTS = NUM_FEATURES * (NUM_FEATURES + 1) // 2
WARM_UP = 4  # rounds

Interact = Callable[[Tensor, Tensor], Tensor]
Forward = Callable[[Tensor, Tensor], Tensor]
Results = list[Tensor]


def index_interaction(bottom: Tensor, pooled: Tensor) -> Tensor:
    """The usual way: cat, bmm, index; (B, D + dots) without padding."""
    vectors = torch.cat([bottom[:, None], pooled], dim=1)
    products = torch.bmm(vectors, vectors.transpose(1, 2))
    i, j = torch.tril_indices(vectors.shape[1], vectors.shape[1], offset=-1)
    return torch.cat([bottom, products[:, i, j]], dim=1)


def medians_ms(cases: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median time of each case; every round runs all cases once, in turn."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(WARM_UP + rounds):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(spent[WARM_UP:]) for name, spent in times.items()}


def check(found: Results, expected: Results, *, tolerance: float) -> None:
    """Stop unless each tensor differs by at most `tolerance` of the expected one's norm."""
    for one, other in zip(found, expected, strict=True):
        difference = float(((one - other).norm() / other.norm()).detach())
        if not difference <= tolerance:
            raise SystemExit(f"results differ by {difference:.2g} of their norm, allowed {tolerance:.2g}")


def show(title: str, times: dict[str, float]) -> None:
    """One table; ratios are over the first row."""
    base = next(iter(times.values()))
    print(f"\n{title}\n{'':34}      ms   ratio")
    for name, spent in times.items():
        print(f"{name:34}{spent:8.2f}{base / spent:8.2f}")


def interaction_case(interact: Interact, dim: int) -> Callable[[], Results]:
    """Forward and backward of one interaction: its output and the gradients of both inputs."""
    generator = torch.Generator().manual_seed(0)
    bottom = torch.randn((NUM_SAMPLES, dim), generator=generator, requires_grad=True)
    pooled = torch.randn((NUM_SAMPLES, NUM_FEATURES, dim), generator=generator, requires_grad=True)
    width = interact(bottom, pooled).shape[1]
    grad = torch.zeros((NUM_SAMPLES, width))
    grad[:, : dim + NUM_DOTS] = torch.randn((NUM_SAMPLES, dim + NUM_DOTS), generator=generator)

    def run() -> Results:
        out = interact(bottom, pooled)
        return [out, *torch.autograd.grad(out, (bottom, pooled), grad)]

    return run


def bench_interaction(rounds: int) -> None:
    for dim in (16, 64, 128):
        cases = {
            "cat + bmm + index": interaction_case(index_interaction, dim),
            "the same, padded (other devices)": interaction_case(plain_dot_interaction, dim),
            "fused": interaction_case(dot_interaction, dim),
        }
        expected = cases["cat + bmm + index"]()
        for case in cases.values():
            out, *grads = case()
            check([out[:, : dim + NUM_DOTS], *grads], expected, tolerance=1e-5)
        show(f"interaction, {NUM_SAMPLES} x {NUM_FEATURES + 1} x {dim}", medians_ms(dict(cases), rounds))


def without_padding(model: DLRM, interact: Interact) -> tuple[nn.Module, Forward]:
    """The same model with a top MLP of exactly as many inputs as there are values; its layers and its forward."""
    width = model.config.embedding_dim + NUM_DOTS
    padded = model.top[0]
    assert isinstance(padded, nn.Linear)
    narrow = nn.Linear(width, padded.out_features)
    with torch.no_grad():
        narrow.weight.copy_(padded.weight[:, :width])
        narrow.bias.copy_(padded.bias)
    bottom, top = model.bottom, nn.Sequential(narrow, *list(model.top)[1:])
    assert bottom is not None

    def forward(dense: Tensor, pooled: Tensor) -> Tensor:
        logits: Tensor = top(interact(bottom(dense), pooled)[:, :width])
        return logits.squeeze(1)

    return nn.ModuleList([bottom, top]), forward


def dense_case(layers: nn.Module, forward: Forward, dim: int) -> Callable[[], Results]:
    """Forward and backward of the whole dense part: logits, gradient of the vectors and of every bias."""
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn((NUM_SAMPLES, NUM_DENSE), generator=generator)
    pooled = torch.randn((NUM_SAMPLES, NUM_FEATURES, dim), generator=generator, requires_grad=True)
    labels = (torch.rand(NUM_SAMPLES, generator=generator) < 0.25).float()

    def run() -> Results:
        layers.zero_grad()
        pooled.grad = None
        logits = forward(dense, pooled)
        nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()  # type: ignore[no-untyped-call]
        assert pooled.grad is not None
        biases = [value.grad for name, value in layers.named_parameters() if name.endswith("bias")]
        return [logits.detach(), pooled.grad, *[bias for bias in biases if bias is not None]]

    return run


def make_model(dim: int, *, bf16: bool = False, compiled: bool = False) -> DLRM:
    config = DLRMConfig(embedding_dim=dim, bottom_mlp=(512, 256, 64, dim), top_mlp=(512, 256, 1), bf16=bf16)
    model = DLRM(config, num_dense=NUM_DENSE, num_features=NUM_FEATURES)
    if compiled:
        assert model.bottom is not None
        # nn.Sequential.compile() leaves a Sequential as it is (torch 2.13)
        model.bottom = cast(nn.Sequential, torch.compile(model.bottom))
        model.top = cast(nn.Sequential, torch.compile(model.top))
    return model


def dense_cases(dim: int, *, compiled: bool) -> dict[str, Callable[[], Results]]:
    models = {"fused, padded": make_model(dim), "fused, padded, bf16": make_model(dim, bf16=True)}
    if compiled:
        models["fused, padded, compiled"] = make_model(dim, compiled=True)
        models["fused, padded, bf16, compiled"] = make_model(dim, bf16=True, compiled=True)
    return {
        "cat + bmm + index": dense_case(*without_padding(make_model(dim), index_interaction), dim),
        "fused": dense_case(*without_padding(make_model(dim), dot_interaction), dim),
        **{name: dense_case(model, model, dim) for name, model in models.items()},
    }


def bench_dense(rounds: int, *, compiled: bool) -> None:
    for dim in (16, 64):
        cases = dense_cases(dim, compiled=compiled)
        expected = cases["cat + bmm + index"]()
        for name, case in cases.items():
            check(case(), expected, tolerance=0.1 if "bf16" in name else 1e-4)
        title = f"dense part 13-512-256-64-{dim}, dots, 512-256-1, batch {NUM_SAMPLES}"
        show(title, medians_ms(dict(cases), rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description="time the dense part of DLRM")
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds (default 15)")
    parser.add_argument("--compile", action="store_true", help="also time torch.compile of the MLPs")
    options = parser.parse_args()
    print(
        f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"numba {numba.__version__}; medians of {options.rounds} rounds, forward and backward"
    )
    bench_interaction(options.rounds)
    bench_dense(options.rounds, compiled=options.compile)


if __name__ == "__main__":
    main()
