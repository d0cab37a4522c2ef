"""Tests that need a CUDA device; `GPU_SUITE_DEVICE=cpu-torch` rehearses them on the CPU."""

import os

import pytest
import torch

DEVICE = os.environ.get("GPU_SUITE_DEVICE", "cuda")


@pytest.fixture(scope="session")
def device() -> str:
    """A value of `TierConfig.device`."""
    if DEVICE == "cuda" and not torch.cuda.is_available():
        pytest.skip(f"no CUDA device, or no -m gpu; torch {torch.__version__} is built for CUDA {torch.version.cuda}")
    return DEVICE
