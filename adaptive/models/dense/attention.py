"""Attention of a candidate to the sample's sequences: DIN and HSTU.

DIN, the deep interest network (Zhou et al., KDD 2018, arXiv 1706.06978). Each sequence is summed with weights that an
MLP gives to its steps; weights are not normalized, so their sum says how strong an interest is:

    a_t = attention MLP([h_t, c, h_t - c, h_t * c])         h_t a step of the history, c the candidate
    s = sum of a_t h_t

HSTU, the hierarchical sequential transduction unit (Zhai et al., ICML 2024, arXiv 2402.17152). The steps of all
sequences are summed to one token a step, with the candidate as the last token. In each layer:

    u, v, q, k = split(silu(linear(norm(x))))
    a = silu(q k' + bias of the distance) / number of positions      to itself and earlier tokens; no softmax
    x = x + linear(norm(a v) * u)
    s = what the layers add to the candidate c

Both end in the same way, where p is the plain sum of a sequence, and c its candidate:

    logit = deep MLP([dense, all vectors, each s and p, each s * c and p * c, each <s, c> and <p, c>])

p and the dot products are not in the papers. They are what a DLRM has: a sum of products whose terms share one sign,
which an MLP on s * c must learn, and which few samples of rare items do not teach. HSTU's norm divides by the root of
the variance + 0.1. New rows are near 0; a smaller number would enlarge their first gradients some hundred times, and
Adagrad would take small steps ever after.

Activations in MLPs are ReLU (the papers: Dice; SiLU), and HSTU has no bias of time, because sequences carry no times.
`scaled_dot_product_attention` is for softmax weights, which neither model has, so both use plain products.

Letters: B samples, F features, P of them with one vector a sample, S sequences, L steps of the longest, D width,
N ids of a sequence in a batch, H heads.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, silu

from .base import Inputs, check_shapes, precision, side_by_side
from .layers import layers, linear, set_last_bias

if TYPE_CHECKING:
    from adaptive.models.model_settings import DINConfig, HSTUConfig, ModelConfig


TOKEN_EPSILON: Final = 0.1  # added to variances of tokens; of 1e-5, 0.01, 0.1 and 1, the best on diginetica


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


class SequenceModel(nn.Module):
    """Base of models of sequences. Subclasses compute `attended` from sequences and candidates.

    The candidate of a sequence is the vector of the feature that shares its table, the first if there are several.
    Samples with a fixed number of steps have a candidate, the last step, for each table.

    Attributes:
        takes_sequences: True if `forward` takes `SampleVectors`; False: a tensor of a fixed number of steps.
        candidates: (S,) positions of the candidates among the P features with one vector a sample.
        num_vectors: P.
        max_steps: L at most.
    """

    sums_steps = False

    def __init__(self, name: str, config: "ModelConfig", inputs: Inputs) -> None:
        super().__init__()
        self.inputs, self.settings = inputs, config
        self.takes_sequences = bool(inputs.sequences)
        if self.takes_sequences:
            single = [number for number in range(inputs.num_features) if number not in inputs.sequences]
            self.num_vectors, self.max_steps = len(single), max(inputs.sequences.values())
            self.candidates = [_candidate(name, inputs, sequence, single) for sequence in sorted(inputs.sequences)]
        elif inputs.steps > 1:
            self.num_vectors, self.max_steps = inputs.num_features // inputs.steps, inputs.steps - 1
            self.candidates = list(range(self.num_vectors))
        else:
            raise ValueError(
                f"model {name}: expected samples that are sequences, got none. Set sequence = true for a column of the "
                "schema, or use --data sequences or taobao:PATH."
            )

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
            sums = [(s.sum(1), single[:, place]) for s, place in zip(sequences.steps, self.candidates, strict=True)]
            taken = [*self.attended(single, sequences), *sums]
            products = [part * candidate for part, candidate in taken]
            dots = [product.sum(dim=1, keepdim=True) for product in products]
            parts = [side_by_side(dense, single), *(part for part, _ in taken), *products, *dots]
            logits: Tensor = self.deep(torch.cat(parts, dim=1))
        return logits.to(single.dtype).squeeze(1)

    def attended(self, vectors: Tensor, sequences: Sequences) -> list[tuple[Tensor, Tensor]]:
        """Return what candidates take from sequences, and the candidates, each (B, D), for `vectors` (B, P, D)."""
        raise NotImplementedError

    def _add_deep(self, num_attended: int, generator: torch.Generator, sizes: tuple[int, ...]) -> None:
        taken = num_attended + len(self.candidates)
        width = self.inputs.num_dense + (self.num_vectors + 2 * taken) * self.settings.embedding_dim + taken
        self.deep = nn.Sequential(*layers((width, *sizes, 1), generator, dropout=self.settings.dropout))

    def set_output_bias(self, logits: Tensor) -> None:
        """Set the bias to log odds (1,); see `adaptive.models.tasks.start_at_base_rate`."""
        set_last_bias(self.deep, logits)


def _candidate(name: str, inputs: Inputs, sequence: int, single: list[int]) -> int:
    """Return the position in `single` of the first feature with the table of the feature `sequence`."""
    table = inputs.tables[sequence]
    places = [place for place, feature in enumerate(single) if inputs.tables[feature] == table]
    if not places:
        raise ValueError(
            f"model {name}: expected a candidate for the sequence of table {table!r}, a column of one value with the "
            "same table, got none. Give both the same table in the schema, or remove sequence = true."
        )
    return places[0]


class DIN(SequenceModel):
    """A deep interest network. `seed` is that of the initial weights; torch's global generator is not used."""

    def __init__(self, config: "DINConfig", inputs: Inputs, *, seed: int = 0) -> None:
        super().__init__("din", config, inputs)
        generator = torch.Generator().manual_seed(seed)
        sizes = (4 * config.embedding_dim, *config.attention_mlp, 1)
        mlps = [nn.Sequential(*layers(sizes, generator, dropout=config.dropout)) for _ in self.candidates]
        for mlp in mlps:
            set_last_bias(mlp, torch.ones(1))  # begins near a plain sum
        self.attentions = nn.ModuleList(mlps)
        self._add_deep(len(self.candidates), generator, config.deep_mlp)

    def attended(self, vectors: Tensor, sequences: Sequences) -> list[tuple[Tensor, Tensor]]:
        pairs = []
        for mlp, place, steps, present in zip(self.attentions, self.candidates, *sequences, strict=True):
            candidate = vectors[:, place]
            pairs.append((_interest(mlp, steps, present, candidate), candidate))
        return pairs


def _interest(mlp: nn.Module, steps: Tensor, present: Tensor | None, candidate: Tensor) -> Tensor:
    """Return (B, D) the sum of steps (B, L, D), weighted by an MLP on them and the candidate (B, D)."""
    query = candidate[:, None].expand_as(steps)
    joined = torch.cat([steps, query, steps - query, steps * query], dim=2)
    weights = mlp(joined.flatten(0, 1)).view(steps.shape[:2])
    if present is not None:
        weights = weights * present
    return torch.bmm(weights[:, None].to(steps.dtype), steps).squeeze(1)


class HSTU(SequenceModel):
    """Hierarchical sequential transduction units. `seed` as in `DIN`."""

    sums_steps = True
    """True: steps of all sequences are those of the same events, so sequences of a sample have equal lengths."""

    def __init__(self, config: "HSTUConfig", inputs: Inputs, *, seed: int = 0) -> None:
        super().__init__("hstu", config, inputs)
        generator = torch.Generator().manual_seed(seed)
        positions = self.max_steps + 1
        self.units = nn.ModuleList(
            _Unit(config.embedding_dim, config.heads, positions, generator) for _ in range(config.attention_layers)
        )
        self._add_deep(1, generator, config.deep_mlp)

    def attended(self, vectors: Tensor, sequences: Sequences) -> list[tuple[Tensor, Tensor]]:
        if not _are_equal(sequences.present):
            raise ValueError("model hstu: expected sequences of equal lengths in each sample, got others")
        candidate = torch.stack([vectors[:, place] for place in self.candidates]).sum(0)
        tokens = torch.cat([torch.stack(sequences.steps).sum(0), candidate[:, None]], dim=1)
        present = sequences.present[0]
        if present is not None:
            present = torch.cat([present, present.new_ones(len(present), 1)], dim=1)
        last = len(self.units) - 1
        for number, unit in enumerate(self.units):
            tokens = unit(tokens, present, candidate_only=number == last)
        return [(tokens[:, -1] - candidate, candidate)]


def _are_equal(masks: list[Tensor | None]) -> bool:
    """Return True if all masks are equal; None if all samples have all steps."""
    first, *others = masks
    return first is None or all(other is not None and torch.equal(first, other) for other in others)


class _Unit(nn.Module):
    """A layer: pointwise attention with a bias by distance, gated, added to its input."""

    def __init__(self, width: int, heads: int, positions: int, generator: torch.Generator) -> None:
        super().__init__()
        self.heads, self.positions = heads, positions
        self.projection = linear(width, 4 * width, generator)
        self.output = linear(width, width, generator)
        # silu(0) is 0: from 1 on attention begins near a mean
        self.distance = nn.Parameter(torch.ones(heads, positions))

    def forward(self, x: Tensor, present: Tensor | None, *, candidate_only: bool) -> Tensor:
        """Return the tokens (B, T, D), or only the last of them (B, 1, D), after attention to `x` (B, T, D)."""
        num_tokens = x.shape[1]
        first = num_tokens - 1 if candidate_only else 0
        gate, value, query, key = silu(self.projection(_normalized(x))).chunk(4, dim=2)
        query, key, value = (_by_head(part, self.heads) for part in (query[:, first:], key, value))
        places = torch.arange(num_tokens, device=x.device)
        back = places[first:, None] - places  # (queries, T) how many steps a query looks back
        scores = query @ key.transpose(2, 3) + self.distance[:, back.clamp(min=0)]
        weights = silu(scores) * (back >= 0).to(scores.dtype) / self.positions
        if present is not None:
            weights = weights * present[:, None, None]
        context = (weights.to(value.dtype) @ value).transpose(1, 2).flatten(2)
        result: Tensor = x[:, first:] + self.output(_normalized(context) * gate[:, first:])
        return result


def _normalized(x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:], eps=TOKEN_EPSILON)


def _by_head(x: Tensor, heads: int) -> Tensor:
    """Return (B, T, D) as (B, H, T, D / H)."""
    return x.view(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)
