"""A model of several labels, with a shared bottom or a mixture of experts.

MMoE: Ma et al., KDD 2018, https://doi.org/10.1145/3219819.3220007.

    shared bottom    y_t = h_t(f(x))
    MMoE             y_t = h_t( sum_e g_t(x)_e f_e(x) ),      g_t(x) = softmax(W_t x + b_t)

x are the concatenated dense inputs and pooled vectors; f, f_e are MLPs that end with ReLU, h_t is an MLP to one logit.
The loss is the sum over labels of weight times mean log loss.

Letters: B samples, T labels, X experts.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from .base import CheckedModel, Inputs, Tasks, side_by_side
from .layers import activation, layers, linear, set_last_bias

if TYPE_CHECKING:
    from adaptive.models.model_settings import MultiTaskConfig


def log_odds(scores: Tensor) -> Tensor:
    """Return the log odds (B, T) of the probabilities softmax(scores), of scores (B, T)."""
    is_same = torch.eye(scores.shape[1], dtype=torch.bool, device=scores.device)
    others = scores[:, None].expand(-1, scores.shape[1], -1).masked_fill(is_same, -torch.inf)
    return scores - others.logsumexp(dim=2)


class MultiTask(CheckedModel):
    """A model of several labels. See `CheckedModel` for its arguments.

    Attributes:
        tasks: the labels in the order of the logits, and the weights of their losses.
    """

    def __init__(self, config: "MultiTaskConfig", inputs: Inputs, *, seed: int = 0) -> None:
        super().__init__(config, inputs)
        self.config, self.is_softmax = config, getattr(config, "loss", "log") == "softmax"
        self.tasks = Tasks(inputs.labels, tuple(config.loss_weights.get(name, 1.0) for name in inputs.labels))
        generator, width = torch.Generator().manual_seed(seed), inputs.width(config.embedding_dim)
        is_mixed, count = config.sharing == "mmoe", len(self.tasks.names)

        def bottom() -> nn.Sequential:
            sizes = (width, *config.shared_mlp)
            return nn.Sequential(*layers(sizes, generator, dropout=config.dropout), activation(config.dropout))

        self.shared = nn.ModuleList(bottom() for _ in range(config.experts if is_mixed else 1))
        self.gates = nn.ModuleList(linear(width, config.experts, generator) for _ in range(count if is_mixed else 0))
        sizes = (config.shared_mlp[-1], *config.task_mlp, 1)
        self.heads = nn.ModuleList(
            nn.Sequential(*layers(sizes, generator, dropout=config.dropout)) for _ in range(count)
        )

    def set_output_bias(self, logits: Tensor) -> None:
        """Set the biases to log odds (T,); see `adaptive.models.tasks.start_at_base_rate`."""
        biases = logsigmoid(logits) if self.is_softmax else logits
        for head, logit in zip(self.heads, biases, strict=True):
            assert isinstance(head, nn.Sequential)
            set_last_bias(head, logit)

    def logits(self, dense: Tensor, pooled: Tensor) -> Tensor:
        values = side_by_side(dense, pooled)
        shared = torch.stack([part(values) for part in self.shared], dim=1)  # (B, X, E)
        mixed = [self._mixed(shared, values, task) for task in range(len(self.heads))]
        logits = torch.cat([head(mixture) for head, mixture in zip(self.heads, mixed, strict=True)], dim=1)
        return log_odds(logits) if self.is_softmax else logits

    def _mixed(self, shared: Tensor, values: Tensor, task: int) -> Tensor:
        """Return (B, E) the input of a label's head."""
        if not len(self.gates):
            return shared[:, 0]
        weights = torch.softmax(self.gates[task](values), dim=1)
        return torch.bmm(weights[:, None], shared).squeeze(1)
