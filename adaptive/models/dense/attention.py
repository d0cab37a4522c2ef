"""Attention of a candidate to the sample's sequences: DIN.

DIN, the deep interest network (Zhou et al., KDD 2018, arXiv 1706.06978). Each sequence is summed with weights that an
MLP gives to its steps; weights are not normalized, so their sum says how strong an interest is:

    a_t = attention MLP([h_t, c, h_t - c, h_t * c])         h_t a step of the history, c the candidate
    s = sum of a_t h_t

The end of the model, where p is the plain sum of a sequence, and c its candidate:

    logit = deep MLP([dense, all vectors, each s and p, each s * c and p * c, each <s, c> and <p, c>])

p and the dot products are not in the paper. They are what a DLRM has: a sum of products whose terms share one sign,
which an MLP on s * c must learn, and which few samples of rare items do not teach. Activations are ReLU (the paper:
Dice).

Letters: B samples, F features, P of them with one vector a sample, S sequences, L steps of the longest, D width,
N ids of a sequence in a batch.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from .base import Inputs, check_shapes, precision, side_by_side
from .layers import layers, set_last_bias

if TYPE_CHECKING:
    from adaptive.models.model_settings import DINConfig


class SampleVectors(NamedTuple):
    """The vectors of a batch whose samples have sequences of any length."""

    single: Tensor  # (B, P, D) of the features that are no sequences, in their order
    steps: list[Tensor]  # S of (N, D), sample by sample
    lengths: list[Tensor]  # S of (B,) int64, on the device of the steps


class Sequences(NamedTuple):
    """Steps of a batch's sequences, aligned at their ends."""

    steps: list[Tensor]  # S of (B, L, D); 0 where a sample is shorter
    present: list[Tensor | None]  # S of (B, L), 1 or 0 in the dtype of the steps; None: no sample is shorter

    @classmethod
    def padded(cls, vectors: SampleVectors) -> "Sequences":
        """Pad sequences at their beginning with zeros, which get no gradient."""
        steps: list[Tensor] = []
        present: list[Tensor | None] = []
        for values, lengths in zip(vectors.steps, vectors.lengths, strict=True):
            longest = max(int(lengths.max()), 1)  # one step of zeros if all are empty
            is_step = torch.arange(longest, device=values.device) >= longest - lengths[:, None]
            steps.append(values.new_zeros(*is_step.shape, values.shape[1]).masked_scatter(is_step[:, :, None], values))
            present.append(is_step.to(values.dtype))
        return cls(steps, present)


class DIN(nn.Module):
    """A deep interest network.

    The candidate of a sequence is the vector of the feature that shares its table, the first if there are several.
    Samples with a fixed number of steps have a candidate, the last step, for each table.

    Attributes:
        takes_sequences: True if `forward` takes `SampleVectors`; False: a tensor of a fixed number of steps.
        candidates: (S,) positions of the candidates among the P features with one vector a sample.
        num_vectors: P.
        max_steps: L at most.

    Args:
        seed: of the initial weights; torch's global generator is neither read nor advanced.
    """

    def __init__(self, config: "DINConfig", inputs: Inputs, *, seed: int = 0) -> None:
        super().__init__()
        self.inputs, self.settings = inputs, config
        self.takes_sequences = bool(inputs.sequences)
        if self.takes_sequences:
            single = [number for number in range(inputs.num_features) if number not in inputs.sequences]
            self.num_vectors, self.max_steps = len(single), max(inputs.sequences.values())
            self.candidates = [_candidate(inputs, sequence, single) for sequence in sorted(inputs.sequences)]
        elif inputs.steps > 1:
            self.num_vectors, self.max_steps = inputs.num_features // inputs.steps, inputs.steps - 1
            self.candidates = list(range(self.num_vectors))
        else:
            raise ValueError(
                "model din: expected samples that are sequences, got none. Set sequence = true for a column of the "
                "schema, or use --data sequences or taobao:PATH."
            )
        generator = torch.Generator().manual_seed(seed)
        sizes = (4 * config.embedding_dim, *config.attention_mlp, 1)
        mlps = [nn.Sequential(*layers(sizes, generator, dropout=config.dropout)) for _ in self.candidates]
        for mlp in mlps:
            set_last_bias(mlp, torch.ones(1))  # begins near a plain sum
        self.attentions = nn.ModuleList(mlps)
        width = inputs.num_dense + (self.num_vectors + 4 * len(self.candidates)) * config.embedding_dim
        sizes = (width + 2 * len(self.candidates), *config.deep_mlp, 1)
        self.deep = nn.Sequential(*layers(sizes, generator, dropout=config.dropout))

    def gather(self, vectors: Sequence[Tensor], lengths: Sequence[Tensor]) -> SampleVectors:
        """Return the argument of `forward` for a model that takes sequences.

        Args:
            vectors: F of (B, D), or (N, D) for sequences, in the order of features.
            lengths: S of (B,) int64, in the order of sequences.
        """
        sequences = sorted(self.inputs.sequences)
        single = [part for number, part in enumerate(vectors) if number not in sequences]
        return SampleVectors(torch.stack(single, dim=1), [vectors[number] for number in sequences], list(lengths))

    def forward(self, dense: Tensor, vectors: Tensor | SampleVectors) -> Tensor:
        """Return logits (B,).

        A model converted with `.double()` takes and returns float64.

        Args:
            dense: (B, num_dense).
            vectors: if the model takes sequences, these; else (B, F, D), each table in the order of steps.

        Raises:
            ValueError: if a shape does not fit the model.
        """
        inputs, width = self.inputs, self.settings.embedding_dim
        if isinstance(vectors, SampleVectors):
            single, sequences = vectors.single, Sequences.padded(vectors)
            check_shapes(self, dense, single, inputs.num_dense, self.num_vectors, width)
        else:
            check_shapes(self, dense, vectors, inputs.num_dense, inputs.num_features, width)
            by_step = vectors.view(vectors.shape[0], self.num_vectors, inputs.steps, width)
            single = by_step[:, :, -1]
            sequences = Sequences(list(by_step[:, :, :-1].unbind(1)), [None] * self.num_vectors)
        with precision(dense, self.settings):
            candidates = [single[:, place] for place in self.candidates]
            attended = map(_interest, self.attentions, sequences.steps, sequences.present, candidates)
            sums = (steps.sum(1) for steps in sequences.steps)
            taken = list(zip([*attended, *sums], candidates * 2, strict=True))
            products = [part * candidate for part, candidate in taken]
            dots = [product.sum(dim=1, keepdim=True) for product in products]
            parts = [side_by_side(dense, single), *(part for part, _ in taken), *products, *dots]
            logits: Tensor = self.deep(torch.cat(parts, dim=1))
        return logits.to(single.dtype).squeeze(1)

    def set_output_bias(self, logits: Tensor) -> None:
        """Set the bias to log odds (1,); see `adaptive.models.loss.start_at_base_rate`."""
        set_last_bias(self.deep, logits)


def _candidate(inputs: Inputs, sequence: int, single: list[int]) -> int:
    """Return the position in `single` of the first feature with the table of the feature `sequence`."""
    table = inputs.tables[sequence]
    places = [place for place, feature in enumerate(single) if inputs.tables[feature] == table]
    if not places:
        raise ValueError(
            f"model din: expected a candidate for the sequence of table {table!r}, a column of one value with the "
            "same table, got none. Give both the same table in the schema, or remove sequence = true."
        )
    return places[0]


def _interest(mlp: nn.Module, steps: Tensor, present: Tensor | None, candidate: Tensor) -> Tensor:
    """Return (B, D) the sum of steps (B, L, D), weighted by an MLP on them and the candidate (B, D)."""
    query = candidate[:, None].expand_as(steps)
    joined = torch.cat([steps, query, steps - query, steps * query], dim=2)
    weights = mlp(joined.flatten(0, 1)).view(steps.shape[:2])
    if present is not None:
        weights = weights * present
    return torch.bmm(weights[:, None].to(steps.dtype), steps).squeeze(1)
