"""DLRM and TBSM, in the versions of their papers.

DLRM's dense part (Naumov et al. 2019, arXiv 1906.00091): bottom MLP, interaction, top MLP.

TBSM, the time-based sequence model (facebookresearch/tbsm; RMC1 in FAE and Hotline): a DLRM for each step of a history
and for a candidate, an attention of the candidate to the history, and an MLP on both.

    v_t = relu(DLRM(step t)) / |...|                     steps 0 ... T - 1 are the history, step T is the candidate
    s_t = v_t . A'A v_T                                  similarity of each step of the history to the candidate
    w   = sigmoid(attention MLP(s))                      T -> ... -> T
    logit = final MLP([sum of w_t v_t, v_T])

Options are those of its command for Taobao: inner products by A'A (`tsl-inner=def`), one head, an attention by MLP,
vectors on the unit sphere (`tsl-proj`). Layers have DLRM's initial values, and A has a deviation of sqrt(1 / M).

Letters: B samples, F features (of TBSM: of a step), D = `embedding_dim`, S = T + 1 steps, M = last size of `top_mlp`.
TBSM's `pooled` is (B, F * S, D), feature by feature, each in the order of steps; its `dense` is (B, S * dense inputs of
a step), step by step.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from .base import check_shapes, precision
from .interactions import aligned, concatenation, dot_interaction, num_dots
from .layers import layers, set_last_bias

if TYPE_CHECKING:
    from adaptive.models.model_settings import TBSMConfig, TowerConfig


class DLRM(nn.Module):
    """A model from dense inputs and pooled vectors to logits, or to vectors for another model.

    The top MLP's input is padded with zero columns to a multiple of 16. Their weights start at zero and get zero
    gradients; all other weights are those of the model without padding.

    Args:
        num_dense: dense inputs of a sample; 0: there is no bottom MLP, and only features interact.
        num_features: F >= 1.
        seed: of the initial weights; torch's global generator is neither read nor advanced.

    Raises:
        ValueError: if the top MLP would have no input (one feature, no dense inputs, dots).
    """

    def __init__(self, config: "TowerConfig", *, num_dense: int, num_features: int, seed: int = 0) -> None:
        super().__init__()
        assert num_dense >= 0
        assert num_features >= 1
        self.config = config
        self.num_dense, self.num_features = num_dense, num_features
        generator = torch.Generator().manual_seed(seed)
        self.bottom: nn.Sequential | None = None
        if num_dense:
            sizes = (num_dense, *config.bottom_mlp)
            self.bottom = nn.Sequential(*layers(sizes, generator, dropout=config.dropout), nn.ReLU(inplace=True))
        width = self._top_inputs()
        sizes = (width, *config.top_mlp)
        self.top = nn.Sequential(*layers(sizes, generator, columns=aligned(width), dropout=config.dropout))

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Return logits (B,) float32 for `dense` (B, num_dense) and `pooled` (B, F, D).

        A model converted with `.double()` takes and returns float64.

        Raises:
            ValueError: if a shape does not fit the model.
        """
        return self.outputs(dense, pooled).squeeze(1)

    def set_output_bias(self, logits: Tensor) -> None:
        """Set the bias to log odds (1,); see `adaptive.models.loss.start_at_base_rate`."""
        set_last_bias(self.top, logits)

    def outputs(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Return the output of the top MLP, (B, its last size), for the arguments of `forward`."""
        check_shapes(self, dense, pooled, self.num_dense, self.num_features, self.config.embedding_dim)
        with precision(dense, self.config):
            bottom = pooled.new_empty((pooled.shape[0], 0)) if self.bottom is None else self.bottom(dense)
        if self.config.interaction == "cat":
            joined = concatenation(bottom.to(pooled.dtype), pooled)
        else:
            joined = dot_interaction(bottom.to(pooled.dtype), pooled)
        with precision(dense, self.config):
            outputs: Tensor = self.top(joined)
        return outputs.to(pooled.dtype)

    def _top_inputs(self) -> int:
        """Return the number of columns of the interaction's output, before padding."""
        bottom_width = self.config.embedding_dim if self.num_dense else 0
        if self.config.interaction == "cat":
            return bottom_width + self.num_features * self.config.embedding_dim
        width = bottom_width + num_dots(self.num_features + (bottom_width > 0))
        if width == 0:
            raise ValueError(
                "model.interaction: expected two vectors or more for dot, got one feature and no dense inputs. Set "
                "model.interaction = cat."
            )
        return width


class TBSM(nn.Module):
    """A model from steps of dense inputs and embedding vectors to logits.

    Args:
        num_dense: dense inputs of all steps together.
        num_features: F * S, features of all steps together.
        steps: S, the candidate included.
        seed: of the initial weights, in [0, 2^63); torch's global generator is neither read nor advanced.

    Raises:
        ValueError: if samples are not sequences, or the DLRM's top MLP would have no input.
    """

    def __init__(self, config: "TBSMConfig", *, num_dense: int, num_features: int, steps: int, seed: int = 0) -> None:
        super().__init__()
        if steps < 2:
            raise ValueError(
                "model tbsm: expected samples that are sequences, got single steps. Use --data sequences or "
                "taobao:PATH."
            )
        for name, count in (("num_dense", num_dense), ("num_features", num_features)):
            if count % steps:
                raise ValueError(f"{name}: expected a multiple of the {steps} steps, got {count}. It counts all steps.")
        self.config, self.steps = config, steps
        self.num_dense, self.num_features = num_dense, num_features
        self.dlrm = DLRM(config, num_dense=num_dense // steps, num_features=num_features // steps, seed=seed)
        generator = torch.Generator().manual_seed(seed + 2**63)  # a number that no DLRM is seeded with
        width, history = config.top_mlp[-1], steps - 1
        self.inner = nn.Parameter(torch.empty(width, width).normal_(0, width**-0.5, generator=generator))
        sizes = (history, *config.attention_mlp, history)
        self.attention = nn.Sequential(*layers(sizes, generator, dropout=config.dropout))
        self.final = nn.Sequential(*layers((2 * width, *config.final_mlp), generator, dropout=config.dropout))

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Return logits (B,) float32 for `dense` (B, num_dense), `pooled` (B, num_features, D).

        A model converted with `.double()` takes and returns float64.

        Raises:
            ValueError: if a shape does not fit the model.
        """
        check_shapes(self, dense, pooled, self.num_dense, self.num_features, self.config.embedding_dim)
        vectors = self._vectors(dense, pooled)
        history, candidate = vectors[:, :-1], vectors[:, -1]
        joined = torch.cat([self._context(history, candidate, dense), candidate], dim=1)
        with precision(dense, self.config):
            logits: Tensor = self.final(joined)
        return logits.to(pooled.dtype).squeeze(1)

    def set_output_bias(self, logits: Tensor) -> None:
        """Set the bias to log odds (1,); see `adaptive.models.loss.start_at_base_rate`."""
        set_last_bias(self.final, logits)

    def _vectors(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Return (B, S, M) the DLRM's vector of each step, of length 1, in one pass."""
        samples, steps = pooled.shape[0], self.steps
        by_step = pooled.view(samples, self.dlrm.num_features, steps, pooled.shape[2]).transpose(1, 2)
        vectors = self.dlrm.outputs(dense.reshape(samples * steps, self.dlrm.num_dense), by_step.flatten(0, 1))
        return normalize(torch.relu(vectors), dim=1).view(samples, steps, vectors.shape[1])

    def _context(self, history: Tensor, candidate: Tensor, dense: Tensor) -> Tensor:
        """Return (B, M) the sum of the history's vectors, weighted by the attention."""
        nearness = torch.bmm(history, (candidate @ self.inner.T @ self.inner)[:, :, None]).squeeze(2)
        with precision(dense, self.config):
            weights = self.attention(nearness)
        return torch.bmm(torch.sigmoid(weights.to(history.dtype))[:, None], history).squeeze(1)
