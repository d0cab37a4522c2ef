"""facebookresearch/dlrm from a checkout: its own model, trained as its script does."""

import importlib
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive.batch import Batch
from adaptive.models.dense.dlrm import DLRM
from benchmarks.peers_torch import EmbeddingBags
from benchmarks.variants import DENSE_RATE, EPS, NotAvailable, Setup, feature_spans


class DlrmCheckout:
    """`DLRM_Net` with the initial weights of our model.

    Raises:
        NotAvailable: if the checkout, one of its imports or the optimizer is missing.
    """

    def __init__(self, path: Path, setup: Setup, model: DLRM) -> None:
        script = _import(path, "dlrm_s_pytorch")
        assert model.bottom is not None
        layers = [[layer for layer in part if isinstance(layer, nn.Linear)] for part in (model.bottom, model.top)]
        bottom, top = ([layer.in_features for layer in part] + [part[-1].out_features] for part in layers)
        num_vectors = len(setup.tables) + 1
        top[0] = setup.dim + num_vectors * (num_vectors - 1) // 2  # ours is padded
        self.net: Any = script.DLRM_Net(
            setup.dim,
            np.array([table.num_embeddings for table in setup.tables]),
            np.array(bottom),
            np.array(top),
            arch_interaction_op="dot",
            sigmoid_top=len(top) - 2,
        )
        self._load_dense(layers)
        self.tables = list(self.net.emb_l.parameters())
        dense = [*self.net.bot_l.parameters(), *self.net.top_l.parameters()]
        self.dense_optimizer = torch.optim.SGD(dense, lr=DENSE_RATE)
        self.row_optimizer = _optimizer(path, self.tables, setup)

    @torch.no_grad()
    def _load_dense(self, layers: list[list[nn.Linear]]) -> None:
        for part, ours in zip((self.net.bot_l, self.net.top_l), layers, strict=True):
            for theirs, own in zip([layer for layer in part if isinstance(layer, nn.Linear)], ours, strict=True):
                theirs.weight.copy_(own.weight[:, : theirs.in_features])
                theirs.bias.copy_(own.bias)

    @torch.no_grad()
    def load(self, weights: Iterable[NDArray[np.float32]]) -> None:
        for parameter, table in zip(self.tables, weights, strict=True):
            parameter.copy_(torch.from_numpy(table))

    def prepare(self, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
        """(offsets, ids) of each feature."""
        spans = feature_spans(batch)
        return [torch.from_numpy(starts) for _, starts in spans], [torch.from_numpy(ids) for ids, _ in spans]

    def probabilities(self, dense: Tensor, inputs: tuple[list[Tensor], list[Tensor]]) -> Tensor:
        """(B,) click probabilities."""
        found: Tensor = self.net(dense, *inputs)
        return found.float().squeeze(1)

    def update(self) -> None:
        self.dense_optimizer.step()
        self.row_optimizer.step()

    def zero_grad(self) -> None:
        self.dense_optimizer.zero_grad()
        self.row_optimizer.zero_grad()


class DlrmTables(EmbeddingBags):
    """The tables of `DLRM_Net` alone, `nn.EmbeddingBag`s, with the optimizer of a checkout.

    Raises:
        NotAvailable: as `DlrmCheckout`.
    """

    name = "facebookresearch/dlrm, its tables"

    def __init__(self, path: Path, setup: Setup) -> None:
        _import(path, "dlrm_s_pytorch")
        super().__init__(setup, partial(_optimizer, path))


def _import(path: Path, name: str) -> Any:
    if not (path / "dlrm_s_pytorch.py").is_file():
        raise NotAvailable(f"{path} is no checkout of facebookresearch/dlrm: it has no dlrm_s_pytorch.py")
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))
    try:
        with redirect_stdout(sys.stderr):  # it prints which optional packages it does without
            return importlib.import_module(name)
    except ImportError as error:
        raise NotAvailable(f"facebookresearch/dlrm needs {error.name or error} to import {name}") from error


def _optimizer(path: Path, tables: list[nn.Parameter], setup: Setup) -> Any:
    if setup.optimizer == "sgd":
        return torch.optim.SGD(tables, lr=setup.rate)
    if setup.optimizer == "adagrad":
        return torch.optim.Adagrad(tables, lr=setup.rate, eps=EPS)
    if setup.optimizer == "rowwise_adagrad":
        return _import(path, "optim.rwsadagrad").RWSAdagrad(tables, lr=setup.rate, eps=EPS)
    raise NotAvailable(f"facebookresearch/dlrm has no {setup.optimizer} for sparse gradients")
