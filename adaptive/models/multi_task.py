"""Several labels at once, from one bottom that all share, or from a mixture of experts for each (MMoE: Ma et al., KDD
2018, https://doi.org/10.1145/3219819.3220007).

    shared bottom    y_t = h_t(f(x))
    MMoE             y_t = h_t( sum_e g_t(x)_e f_e(x) ),      g_t(x) = softmax(W_t x + b_t)

x are the dense inputs and all pooled vectors side by side; f, f_e are MLPs that end with ReLU, h_t an MLP to one logit.
The loss is the sum over labels of weight times mean log loss.

Letters: B samples, T labels, X experts.
"""

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from adaptive.errors import ConfigError
from adaptive.models.common import CheckedModel, Inputs, ModelConfig, set_last_bias, side_by_side
from adaptive.models.dlrm import LayerSizes, activation, layers, linear
from adaptive.models.tasks import Tasks


class MultiTaskConfig(ModelConfig):
    """Shape of a model of several labels."""

    sharing: Literal["bottom", "mmoe"] = Field(
        default="mmoe", description="bottom: all labels share one MLP; mmoe: each mixes the experts for itself"
    )
    shared_mlp: LayerSizes = Field(
        default=(128, 64), description="layer sizes of the shared MLP, or of each expert, without its input"
    )
    experts: int = Field(default=4, ge=1, le=256, description="experts of mmoe")
    task_mlp: LayerSizes = Field(
        default=(32,), description="layer sizes of each label's own MLP, without its input and its output of 1"
    )
    loss_weights: dict[str, float] = Field(
        default_factory=dict, description="label -> weight of its loss; those that are not named have 1"
    )

    @model_validator(mode="after")
    def _weights(self) -> "MultiTaskConfig":
        if bad := [name for name, weight in self.loss_weights.items() if weight < 0]:
            raise ValueError(f"loss_weights of {', '.join(bad)} is below 0")
        return self


class MultiTask(CheckedModel):
    """A model of several labels, see the module. Takes what `CheckedModel` says.

    Attributes:
        tasks: the labels in the order of the logits, and the weights of their losses.

    Raises:
        ConfigError: if the samples have one label, or a weight is of none of theirs.
    """

    def __init__(self, config: MultiTaskConfig, inputs: Inputs, *, seed: int = 0) -> None:
        super().__init__(config, inputs)
        self.config = config
        self.tasks = _tasks(config, inputs)
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
        """Start at log odds (T,); see `adaptive.models.tasks.start_at_base_rate`."""
        for head, logit in zip(self.heads, logits, strict=True):
            assert isinstance(head, nn.Sequential)
            set_last_bias(head, logit)

    def logits(self, dense: Tensor, pooled: Tensor) -> Tensor:
        values = side_by_side(dense, pooled)
        shared = torch.stack([part(values) for part in self.shared], dim=1)  # (B, X, E)
        mixed = [self._mixed(shared, values, task) for task in range(len(self.heads))]
        return torch.cat([head(one) for head, one in zip(self.heads, mixed, strict=True)], dim=1)

    def _mixed(self, shared: Tensor, values: Tensor, task: int) -> Tensor:
        """(B, E) what the head of a label is given."""
        if not len(self.gates):
            return shared[:, 0]
        weights = torch.softmax(self.gates[task](values), dim=1)
        return torch.bmm(weights[:, None], shared).squeeze(1)


def _tasks(config: MultiTaskConfig, inputs: Inputs) -> Tasks:
    if len(inputs.labels) < 2:
        raise ConfigError(
            "model multi-task needs samples with several labels, and these have one: name more columns in the schema "
            "([[more_labels]]), or of the built-in stream set data.synthetic.labels"
        )
    unknown = [name for name in config.loss_weights if name not in inputs.labels]
    if unknown:
        raise ConfigError(f"model.loss_weights: no label {', '.join(unknown)}; there are: {', '.join(inputs.labels)}")
    return Tasks(inputs.labels, tuple(config.loss_weights.get(name, 1.0) for name in inputs.labels))
