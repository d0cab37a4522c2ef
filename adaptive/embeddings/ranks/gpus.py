"""Which GPU is a rank's, and whether rows and gradients cross by NCCL.

    ranks.backend = auto   NCCL where the process group has it and every rank has a GPU of its own; else gloo
                    gloo   over the host's memory; ranks may share a GPU, to try things out
                    nccl   is told where it cannot be

A rank takes the GPU of the number LOCAL_RANK, which torchrun and `--ranks` give, of those that its process sees.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
import torch.distributed as dist

from adaptive.errors import ConfigError

Backend = Literal["auto", "gloo", "nccl"]
BACKENDS: Final = ("auto", "gloo", "nccl")


@dataclass(frozen=True)
class Gpus:
    """What this process sees."""

    count: int
    has_nccl: bool  # torch was built with it
    local_rank: int | None  # among the ranks of this host; None: nobody has told

    @property
    def own(self) -> int | None:
        """The number of this rank's GPU; None: there is none, or it is the one that is current."""
        return None if self.local_rank is None or not self.count else self.local_rank % self.count


def gpus_here() -> Gpus:
    """What this process sees."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    local = os.environ.get("LOCAL_RANK")
    return Gpus(count, dist.is_nccl_available(), None if local is None else int(local))


def wants_nccl(backend: Backend, gpus: Gpus) -> bool:
    """Whether to start the process group with NCCL for what lies on GPUs.

    Raises:
        ConfigError: for another name, and if NCCL is asked for and cannot be.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"ranks.backend must be one of {', '.join(BACKENDS)}, found {backend!r}")
    if backend == "nccl" and not gpus.count:
        raise ConfigError("ranks.backend=nccl: torch finds no CUDA device here; use gloo or auto")
    if backend == "nccl" and not gpus.has_nccl:
        raise ConfigError("ranks.backend=nccl: this torch was built without NCCL; use gloo or auto")
    return backend != "gloo" and gpus.count > 0 and gpus.has_nccl


def name_of_gpu(host: str, gpus: Gpus) -> str:
    """The same for no two GPUs; empty where there is none."""
    if not gpus.count:
        return ""
    number = torch.cuda.current_device() if gpus.own is None else gpus.own
    properties = torch.cuda.get_device_properties(number)
    return f"{host} {getattr(properties, 'uuid', number)}"


@dataclass(frozen=True)
class Agreement:
    """What all ranks know of each other's GPUs, equal on all.

    names: of each rank's GPU, as `name_of_gpu` says.
    groups: whether each rank's process group has NCCL.
    """

    backend: Backend
    names: Sequence[str]
    groups: Sequence[bool]

    @property
    def is_nccl(self) -> bool:
        """Rows and gradients that lie on GPUs cross by NCCL."""
        return self.backend != "gloo" and all(self.groups) and not self._trouble

    @property
    def _trouble(self) -> str:
        """Why NCCL cannot be, as far as GPUs go; empty: it can."""
        for rank, name in enumerate(self.names):
            if not name:
                return f"rank {rank} has no GPU"
            if (first := list(self.names).index(name)) != rank:
                return f"ranks {first} and {rank} share one GPU ({name}), and NCCL needs one for each rank"
        return ""

    def check(self, kind: str) -> None:
        """Check that rows may lie on devices of a kind, "cpu" or "cuda".

        Raises:
            ConfigError: on every rank, if NCCL is asked for and cannot be, or GPUs would be shared unasked.
        """
        if self.backend == "nccl" and kind != "cuda":
            raise ConfigError(f"ranks.backend=nccl needs rows on GPUs, found tier.device={kind}; use gloo or auto")
        if self.backend == "nccl" and not all(self.groups):
            raise ConfigError(
                'ranks.backend=nccl: the process group has no NCCL for GPUs; start it by init_process_group("cpu:gloo,'
                'cuda:nccl"), or leave it to TorchRanks'
            )
        if self.backend != "gloo" and kind == "cuda" and self._trouble:
            raise ConfigError(
                f"ranks.backend={self.backend}: {self._trouble}; start as many ranks as there are GPUs, set "
                "tier.device=cpu, or ranks.backend=gloo to share GPUs"
            )
