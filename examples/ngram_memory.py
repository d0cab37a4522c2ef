"""A small GPT with a hashed n-gram memory, whose rows are in host memory or in a file.

Run: python examples/ngram_memory.py                            (about 4 minutes, 10,000,000 rows)
     python examples/ngram_memory.py --rows 300000000 --host mmap:ngrams

The GPT learns the sources of the Python standard library. At every position, the last two and the last three tokens
are hashed to rows of a table, which join the residual stream through a gate (Engram, arXiv 2601.07372, without its
convolution; over-encoding, arXiv 2501.16975). Ids follow from the tokens, so rows are fetched before the step that
needs them. The same GPT without memory trains on the same batches in turns, which gives both losses and both times.
"""

import argparse
import collections
import random
import re
import statistics
import sysconfig
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from adaptive import Batch, Counter, RowwiseAdagrad, TableConfig, TierConfig, TieredEmbeddingBag

VOCABULARY, CONTEXT, BATCH, WIDTH, LAYERS, HEADS = 4096, 128, 16, 256, 4, 4
ORDERS, ROW = (2, 3), 64  # n-grams of two and three tokens; values in a row
RATE, ROW_RATE = 1e-3, 0.3  # learning rates of AdamW and of the rows
TESTED = 40  # batches of held-out files
TURN = 10  # steps of one model before it is the other's turn


def read_sources(limit: int | None = None) -> list[str]:
    """Return the library's sources without its tests, in an order that is the same everywhere."""
    library = Path(sysconfig.get_path("stdlib"))
    skipped = re.compile("site-packages|dist-packages|tests?$|.*_test$")
    files = [file for file in sorted(library.rglob("*.py")) if not any(map(skipped.match, file.parts))]
    random.Random(0).shuffle(files)
    return [file.read_text(encoding="utf-8", errors="replace") for file in files[:limit]]


def tokenize(sources: list[str]) -> tuple[list[np.ndarray], list[int]]:
    """Return tokens, and bytes, of each source: frequent words are tokens, others are spelled in bytes."""
    words = [re.findall(r"\w+| +|\n\s*|[^\w\s]+|\s", source) for source in sources]
    frequent = collections.Counter(word for file in words for word in file).most_common(VOCABULARY - 256)
    tokens = {word: 256 + number for number, (word, _) in enumerate(frequent)}
    spelled = {word: [tokens[word]] if word in tokens else list(word.encode()) for file in words for word in file}
    files = [np.fromiter((token for word in file for token in spelled[word]), np.int64) for file in words]
    return files, [len(source.encode()) for source in sources]


def ngram_rows(tokens: np.ndarray, order: int, num_rows: int) -> np.ndarray:
    """Hash the last `order` tokens at each of (sequences, positions) to a row; before the first token there is 0."""
    mixed = np.full(tokens.shape, order, np.uint64)
    for back in range(order):
        earlier = np.pad(tokens, ((0, 0), (back, 0)))[:, : tokens.shape[1]].astype(np.uint64)
        mixed = (mixed ^ earlier) * np.uint64(0x9E3779B97F4A7C15)  # odd, so no bit is lost
        mixed ^= mixed >> np.uint64(32)
    return (mixed % np.uint64(num_rows)).astype(np.int64)


def to_batch(tokens: np.ndarray, num_rows: int) -> Batch:
    """Make a batch of (sequences, positions + 1) tokens: rows for all positions but the last, which is a target."""
    rows = {f"gram{order}": ngram_rows(tokens[:, :-1], order, num_rows) for order in ORDERS}
    return Batch.of(rows, labels=np.zeros(len(tokens)), extras={"tokens": tokens})


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.RMSNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.RMSNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Gpt(nn.Module):
    def __init__(self, width: int = WIDTH, layers: int = LAYERS, embeddings: TieredEmbeddingBag | None = None) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        for table in (self.token, self.position):
            nn.init.normal_(table.weight, std=0.02)
        self.embeddings = embeddings
        if embeddings is not None:  # drawn last, so that all other weights are those of the GPT without memory
            self.key, self.value = (nn.Linear(len(ORDERS) * ROW, width, bias=False) for _ in range(2))
            self.key_norm, self.query_norm = nn.RMSNorm(width), nn.RMSNorm(width)

    def recall(self, x: Tensor, batch: Batch) -> Tensor:
        """Return what the memory adds to x, (sequences, positions, width): the closer its key to x, the more."""
        vectors = torch.cat(list(self.embeddings(batch).values()), dim=1).view(*x.shape[:2], -1)
        match = (self.key_norm(self.key(vectors)) * self.query_norm(x)).sum(2, keepdim=True) / x.shape[2] ** 0.5
        return torch.sigmoid(match) * self.value(vectors)

    def forward(self, batch: Batch) -> Tensor:
        """Return the cross-entropy of the next tokens in nats, (sequences, positions)."""
        tokens = torch.as_tensor(batch.extras["tokens"], device=self.position.weight.device)
        x = self.token(tokens[:, :-1]) + self.position.weight[: tokens.shape[1] - 1]
        for number, block in enumerate(self.blocks):
            if number == 1 and self.embeddings is not None:
                x = x + self.recall(x, batch)
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).transpose(1, 2), tokens[:, 1:], reduction="none")


class Trainer:
    """A GPT and its optimizer; with memory, rows are updated by row-wise Adagrad."""

    def __init__(
        self, device: torch.device, embeddings: TieredEmbeddingBag | None = None, depth: int = 4, **shape: int
    ) -> None:
        torch.manual_seed(0)
        self.gpt, self.embeddings, self.depth = Gpt(**shape, embeddings=embeddings).to(device), embeddings, depth
        self.optimizer = torch.optim.AdamW(self.gpt.parameters(), lr=RATE, weight_decay=0.01)

    def train(self, batches: Iterable[Batch]) -> list[float]:
        """Train on batches, in order, and return their losses."""
        losses = []
        for batch in batches if self.embeddings is None else self.embeddings.look_ahead(batches, depth=self.depth):
            loss = self.gpt(batch).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if self.embeddings is not None:
                self.embeddings.step()
            losses.append(loss.item())
        return losses

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch]) -> float:
        """Return the mean loss of batches, from which nothing is learned."""
        read = (lambda batch: batch) if self.embeddings is None else self.embeddings.read
        return statistics.fmean(self.gpt(read(batch)).mean().item() for batch in batches)


def make_memory(num_rows: int, tier: TierConfig, dtype: str = "float32") -> TieredEmbeddingBag:
    """Return a memory of `num_rows` rows that all n-grams share."""
    features = tuple(f"gram{order}" for order in ORDERS)
    table = TableConfig(
        name="ngrams",
        num_embeddings=num_rows,
        embedding_dim=ROW,
        features=features,
        pooling="none",
        init_bound=0.01,
        dtype=dtype,
    )
    return TieredEmbeddingBag([table], tier, policy="lfu", optimizer=RowwiseAdagrad(lr=ROW_RATE))


def windows(files: list[np.ndarray], count: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Yield `count` arrays (BATCH, CONTEXT + 1) of tokens; no token is a target twice before all were."""
    text = np.concatenate(files)
    starts = np.arange(0, len(text) - CONTEXT, CONTEXT)
    order = np.concatenate([np.random.default_rng((seed, epoch)).permutation(starts)
                            for epoch in range(-(-count * BATCH // len(starts)))])  # fmt: skip
    for number in range(count):
        yield text[order[number * BATCH : (number + 1) * BATCH, None] + np.arange(CONTEXT + 1)]


def parse_flags() -> argparse.Namespace:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--rows", type=int, default=10_000_000, help="rows of the memory")
    flags.add_argument("--device-rows", default="1%", help="rows on the device: a number, percent or bytes")
    flags.add_argument("--host", default="memory", help="place of all rows: memory, or mmap:DIR for a file in DIR")
    flags.add_argument("--dtype", default="float32", help="of the rows: float32, or bfloat16 for half the bytes")
    flags.add_argument("--depth", type=int, default=4, help="batches that are planned ahead")
    flags.add_argument("--steps", type=int, default=400, help="steps of each model")
    flags.add_argument("--plot", metavar="FILE", help="draw the losses (needs matplotlib)")
    return flags.parse_args()


def draw(file: str, curves: dict[str, list[float]], steps: list[int]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    for name, losses in curves.items():
        axes.plot(steps, losses, label=name)
    axes.set(xlabel="step", ylabel="training loss, nats per token")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(file, metadata={"Date": None} if file.endswith(".svg") else None)


def main() -> None:
    flags = parse_flags()
    files, sizes = tokenize(read_sources())
    held_out = len(files) // 20
    memory = make_memory(flags.rows, TierConfig(device_rows=flags.device_rows, host=flags.host), flags.dtype)
    trainers = {"without memory": Trainer(memory.device), "with memory": Trainer(memory.device, memory, flags.depth)}
    print(f"{len(files)} files, {sum(map(len, files)):,} tokens, {sum(sizes):,} bytes; {held_out} files held out")
    print(memory.statistics.device_rows_text())
    batches = windows(files[held_out:], flags.steps)
    curves: dict[str, list[float]] = {name: [] for name in trainers}
    steps, ratios = list(range(TURN, flags.steps + 1, TURN)), []
    for step in steps:
        turn, seconds = [to_batch(next(batches), flags.rows) for _ in range(TURN)], []
        for name, trainer in trainers.items():
            start = time.perf_counter()
            curves[name].append(statistics.fmean(trainer.train(turn)))
            seconds.append(time.perf_counter() - start)
        ratios.append(seconds[1] / seconds[0])
        if step % 50 == 0:
            print(f"step {step}: " + ", ".join(f"loss {losses[-1]:.3f} {name}" for name, losses in curves.items()))
    counted = [Counter.LOOKUPS, Counter.UNIQUE_ROWS, Counter.FETCHED, Counter.WRITTEN_BACK]
    lookups, rows, fetched, written = memory.statistics.take().counts.sum(axis=0)[counted] / flags.steps
    print(f"a step: {lookups:,.0f} lookups of {rows:,.0f} rows, {fetched:,.0f} fetched, {written:,.0f} written back")
    tested = [to_batch(tokens, flags.rows) for tokens in windows(files[:held_out], TESTED)]
    bits = sum(map(len, files[:held_out])) / sum(sizes[:held_out]) / np.log(2)  # per byte, of a nat per token
    for name, trainer in trainers.items():
        loss = trainer.evaluate(tested)
        print(f"held-out files, {name}: loss {loss:.4f}, {loss * bits:.4f} bits per byte")
    print(f"time of a step with memory: {statistics.median(ratios[1:]):.3f} of the time without (median of "
          f"{len(ratios) - 1} turns of {TURN} steps)")  # fmt: skip
    if flags.plot:
        draw(flags.plot, curves, steps)


if __name__ == "__main__":
    main()
