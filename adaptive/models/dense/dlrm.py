"""DLRM's dense part (Naumov et al. 2019, arXiv 1906.00091): bottom MLP, interaction, top MLP. And TBSM, the time-based
sequence model (facebookresearch/tbsm; RMC1 in FAE and Hotline): a DLRM at every step of a history and at a candidate,
an attention of the candidate to the history, and an MLP that judges both.

    v_t = relu(DLRM(step t)) / |...|                     steps 0 ... T - 1 are the history, step T is the candidate
    s_t = v_t . A'A v_T                                  how near each step of the history is to the candidate
    w   = sigmoid(attention MLP(s))                      T -> ... -> T
    logit = final MLP([sum of w_t v_t, v_T])

As published, with the options of its command for Taobao: inner products by A'A (`tsl-inner=def`), one head, an
attention by MLP, vectors on the unit sphere (`tsl-proj`). Layers have DLRM's initial values, and A a deviation of
sqrt(1 / M).

Letters: B samples, F features (of TBSM: of a step), D = `embedding_dim`, S = T + 1 steps, M = last size of `top_mlp`.
TBSM's `pooled` is (B, F * S, D), feature by feature, each in the order of steps; its `dense` is (B, S * dense inputs of
a step), step by step.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from .base import check_shapes, feature_norm, precision
from .interactions import aligned, concatenation, dot_interaction, num_dots
from .layers import layers, set_last_bias

if TYPE_CHECKING:
    from adaptive.models.model_settings import TBSMConfig, TowerConfig


class DLRM(nn.Module):
    """Dense inputs and pooled embedding vectors to logits, or to the vectors that another model goes on with.

    The top MLP's input is padded with zero columns to a multiple of 16. Their weights start at zero and get zero
    gradients, and all other weights are those of the model without padding.

    Args:
        num_dense: dense inputs of a sample; 0: no bottom MLP, the features interact among themselves.
        num_features: F >= 1.
        seed: of the initial weights; torch's global generator is neither read nor advanced.

    Raises:
        ValueError: if nothing would reach the top MLP (one feature, no dense inputs, dots without `interaction_self`).
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
        self.feature_norm = feature_norm(config.feature_norm, num_features=num_features, width=config.embedding_dim)
        width = self._top_inputs()
        sizes = (width, *config.top_mlp)
        self.top = nn.Sequential(*layers(sizes, generator, columns=aligned(width), dropout=config.dropout))

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Logits (B,) float32 of `dense` (B, num_dense) and `pooled` (B, F, D), both float32.

        A model converted with `.double()` takes and returns float64.

        Raises:
            ValueError: if a shape does not fit the model.
        """
        return self.outputs(dense, pooled).squeeze(1)

    def set_output_bias(self, logits: Tensor) -> None:
        """Start at log odds (1,); see `adaptive.models.tasks.start_at_base_rate`."""
        set_last_bias(self.top, logits)

    def outputs(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """What the top MLP gives, (B, its last size), of the same arguments."""
        check_shapes(self, dense, pooled, self.num_dense, self.num_features, self.config.embedding_dim)
        pooled = self.feature_norm(pooled)
        with precision(dense, self.config):
            bottom = pooled.new_empty((pooled.shape[0], 0)) if self.bottom is None else self.bottom(dense)
        if self.config.interaction == "cat":
            joined = concatenation(bottom.to(pooled.dtype), pooled)
        else:
            joined = dot_interaction(bottom.to(pooled.dtype), pooled, include_self=self.config.interaction_self)
        with precision(dense, self.config):
            outputs: Tensor = self.top(joined)
        return outputs.to(pooled.dtype)

    def _top_inputs(self) -> int:
        """Columns of the interaction's output before padding."""
        bottom_width = self.config.embedding_dim if self.num_dense else 0
        if self.config.interaction == "cat":
            return bottom_width + self.num_features * self.config.embedding_dim
        num_vectors = self.num_features + (bottom_width > 0)
        width = bottom_width + num_dots(num_vectors, include_self=self.config.interaction_self)
        if width == 0:
            raise ValueError(
                "interaction = dot needs two vectors, found one feature and no dense inputs; "
                "set interaction = cat or interaction_self = true"
            )
        return width


class TBSM(nn.Module):
    """Steps of dense inputs and embedding vectors to logits.

    Args:
        num_dense: dense inputs of all steps together.
        num_features: F * S, features of all steps together.
        steps: S, the candidate included.
        seed: of the initial weights, in [0, 2^63); torch's global generator is neither read nor advanced.

    Raises:
        ValueError: if samples are no sequences, or nothing would reach the DLRM's top MLP.
    """

    def __init__(self, config: "TBSMConfig", *, num_dense: int, num_features: int, steps: int, seed: int = 0) -> None:
        super().__init__()
        if steps < 2:
            raise ValueError(
                "model tbsm needs samples that are sequences, and these data have none: give --data sequences (built "
                "in), taobao:PATH or tbsm:PATH"
            )
        assert num_dense % steps == 0 and num_features % steps == 0
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
        """Logits (B,) float32 of `dense` (B, num_dense) and `pooled` (B, num_features, D), both float32.

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
        """Start at log odds (1,); see `adaptive.models.tasks.start_at_base_rate`."""
        set_last_bias(self.final, logits)

    def _vectors(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """(B, S, M) the DLRM's vector of each step, of length 1: all steps of all samples go through it at once."""
        samples, steps = pooled.shape[0], self.steps
        by_step = pooled.view(samples, self.dlrm.num_features, steps, pooled.shape[2]).transpose(1, 2)
        vectors = self.dlrm.outputs(dense.reshape(samples * steps, self.dlrm.num_dense), by_step.flatten(0, 1))
        return normalize(torch.relu(vectors), dim=1).view(samples, steps, vectors.shape[1])

    def _context(self, history: Tensor, candidate: Tensor, dense: Tensor) -> Tensor:
        """(B, M) the history, each step as far as the candidate asks for it."""
        nearness = torch.bmm(history, (candidate @ self.inner.T @ self.inner)[:, :, None]).squeeze(2)
        with precision(dense, self.config):
            weights = self.attention(nearness)
        return torch.bmm(torch.sigmoid(weights.to(history.dtype))[:, None], history).squeeze(1)
