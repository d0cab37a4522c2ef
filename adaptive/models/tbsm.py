"""TBSM, the time-based sequence model (facebookresearch/tbsm; RMC1 in FAE and Hotline): a DLRM at every step of a
history and at a candidate, an attention of the candidate to the history, and an MLP that judges both.

    v_t = relu(DLRM(step t)) / |...|                     steps 0 ... T - 1 are the history, step T is the candidate
    s_t = v_t . A'A v_T                                  how near each step of the history is to the candidate
    w   = sigmoid(attention MLP(s))                      T -> ... -> T
    logit = final MLP([sum of w_t v_t, v_T])

As published, with the options of its command for Taobao: inner products by A'A (`tsl-inner=def`), one head, an
attention by MLP, vectors on the unit sphere (`tsl-proj`). Layers have DLRM's initial values, and A a deviation of
sqrt(1 / M).

Letters: B samples, S = T + 1 steps, F features of a step, D = `embedding_dim`, M = last size of `top_mlp`. `pooled` is
(B, F * S, D), feature by feature, each in the order of steps; `dense` is (B, S * dense inputs of a step), step by step.
"""

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import normalize

from adaptive.errors import ConfigError
from adaptive.models.common import set_last_bias
from adaptive.models.dlrm import DLRM, LayerSizes, TowerConfig, layers


class TBSMConfig(TowerConfig):
    """Shape of a TBSM. `bottom_mlp`, `top_mlp` and `interaction` are its DLRM's. Defaults: RMC1."""

    bottom_mlp: LayerSizes = Field(
        default=(16,), description="layer sizes of the DLRM's bottom MLP without its input; the last is embedding_dim"
    )
    top_mlp: LayerSizes = Field(
        default=(15, 15), description="layer sizes of the DLRM's top MLP without its input; the last is a step's vector"
    )
    attention_mlp: LayerSizes = Field(
        default=(15, 15), description="layer sizes of the attention between its input and output, which the history is"
    )
    final_mlp: LayerSizes = Field(
        default=(60, 1), description="layer sizes of the MLP on history and candidate without its input; the last is 1"
    )

    @model_validator(mode="after")
    def _check_logit(self) -> "TBSMConfig":
        if self.final_mlp[-1] != 1:
            raise ValueError(f"final_mlp must end with 1 (the logit), found {'-'.join(map(str, self.final_mlp))}")
        return self


class TBSM(nn.Module):
    """Steps of dense inputs and embedding vectors to logits.

    Args:
        num_dense: dense inputs of all steps together.
        num_features: F * S, features of all steps together.
        steps: S, the candidate included.
        seed: of the initial weights, in [0, 2^63); torch's global generator is neither read nor advanced.

    Raises:
        ConfigError: if samples are no sequences, or nothing would reach the DLRM's top MLP.
    """

    def __init__(self, config: TBSMConfig, *, num_dense: int, num_features: int, steps: int, seed: int = 0) -> None:
        super().__init__()
        if steps < 2:
            raise ConfigError(
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
        self._check_shapes(dense, pooled)
        vectors = self._vectors(dense, pooled)
        history, candidate = vectors[:, :-1], vectors[:, -1]
        joined = torch.cat([self._context(history, candidate, dense), candidate], dim=1)
        with self.dlrm.mlp_precision(dense):
            logits: Tensor = self.final(joined)
        return logits.to(pooled.dtype).squeeze(1)

    def set_output_bias(self, logits: Tensor) -> None:
        """Start at log odds (1,); see `adaptive.models.tasks.start_at_base_rate`."""
        set_last_bias(self.final, logits)

    def _vectors(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """(B, S, M) the DLRM's vector of each step, of length 1: all steps of all samples go through it at once."""
        samples, steps = len(pooled), self.steps
        by_step = pooled.view(samples, self.dlrm.num_features, steps, pooled.shape[2]).transpose(1, 2)
        found = self.dlrm.outputs(dense.reshape(samples * steps, self.dlrm.num_dense), by_step.flatten(0, 1))
        return normalize(torch.relu(found), dim=1).view(samples, steps, found.shape[1])

    def _context(self, history: Tensor, candidate: Tensor, dense: Tensor) -> Tensor:
        """(B, M) the history, each step as far as the candidate asks for it."""
        asked = candidate @ self.inner.T @ self.inner
        nearness = torch.bmm(history, asked[:, :, None]).squeeze(2)
        with self.dlrm.mlp_precision(dense):
            weights = self.attention(nearness)
        return torch.bmm(torch.sigmoid(weights.to(history.dtype))[:, None], history).squeeze(1)

    def _check_shapes(self, dense: Tensor, pooled: Tensor) -> None:
        samples = len(pooled)
        needed = (samples, self.num_dense), (samples, self.num_features, self.config.embedding_dim)
        found = tuple(dense.shape), tuple(pooled.shape)
        if found != needed:
            raise ValueError(f"TBSM needs dense {needed[0]} and pooled {needed[1]}, found {found[0]} and {found[1]}")
