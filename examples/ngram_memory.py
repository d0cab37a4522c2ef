"""A small GPT with a hashed n-gram memory, whose rows are in host memory or in a file.

Run: python examples/ngram_memory.py [--rows 300000000 --host mmap:ngrams]      (about 4 minutes)

At each position, the last two and three tokens are hashed to rows of a table, which join the residual stream by a gate
(Engram, arXiv 2601.07372). The same GPT without memory trains on the same batches, in turns of ten steps.
"""

import collections
import random
import re
import sysconfig
import time
from pathlib import Path

import numpy as np
import torch
import typer
from torch import nn

from adaptive import Batch, RowwiseAdagrad, TableConfig, TierConfig, TieredEmbeddingBag

VOCABULARY, CONTEXT, BATCH, WIDTH, LAYERS, HEADS, ORDERS, ROW = 4096, 128, 16, 256, 4, 4, (2, 3), 64


def read_sources(limit=None):
    """Return the sources of Python's library without its tests, in an order that is the same everywhere."""
    skip = re.compile("site-packages|dist-packages|tests?$|.*_test$").match
    files = sorted(file for file in Path(sysconfig.get_path("stdlib")).rglob("*.py") if not any(map(skip, file.parts)))
    random.Random(0).shuffle(files)
    return [file.read_text(encoding="utf-8", errors="replace") for file in files[:limit]]


def tokenize(sources):
    """Return the tokens of each source: frequent words are tokens, others are spelled in bytes."""
    words = [re.findall(r"\w+| +|\n\s*|[^\w\s]+|\s", source) for source in sources]
    frequent = collections.Counter(word for file in words for word in file).most_common(VOCABULARY - 256)
    tokens = {word: [256 + number] for number, (word, _) in enumerate(frequent)}
    return [np.array([t for word in file for t in tokens.get(word) or word.encode()], np.int64) for file in words]


def windows(files, count):
    """Yield `count` arrays (BATCH, CONTEXT + 1) of tokens; no token is a target twice before all were."""
    text = np.concatenate(files)
    starts = np.arange(0, len(text) - CONTEXT, CONTEXT)
    epochs = [np.random.default_rng((0, epoch)) for epoch in range(-(-count * BATCH // len(starts)))]
    order = np.concatenate([random.permutation(starts) for random in epochs])
    for batch in order[: count * BATCH].reshape(count, BATCH, 1):
        yield text[batch + np.arange(CONTEXT + 1)]


def ngram_rows(tokens, order, num_rows):
    """Hash the last `order` tokens at each of (sequences, positions) to a row; before the first token there is 0."""
    mixed = np.full(tokens.shape, order, np.uint64)
    for back in range(order):
        earlier = np.pad(tokens, ((0, 0), (back, 0)))[:, : tokens.shape[1]].astype(np.uint64)
        mixed = (mixed ^ earlier) * np.uint64(0x9E3779B97F4A7C15)  # odd, so no bit is lost
        mixed ^= mixed >> np.uint64(32)
    return (mixed % np.uint64(num_rows)).astype(np.int64)


def to_batch(tokens, num_rows):
    """Make a batch of (sequences, positions + 1) tokens: rows for all positions but the last, which is a target."""
    rows = {f"gram{order}": ngram_rows(tokens[:, :-1], order, num_rows) for order in ORDERS}
    return Batch.of(rows, labels=np.zeros(len(tokens)), extras={"tokens": tokens})


def make_memory(num_rows, tier, dtype="float32"):
    """Return a memory of `num_rows` rows that all n-grams share; bfloat16 halves its bytes."""
    sizes = {"num_embeddings": num_rows, "embedding_dim": ROW, "dtype": dtype, "init_bound": 0.01}
    table = TableConfig(name="ngrams", features=tuple(f"gram{order}" for order in ORDERS), pooling="none", **sizes)
    return TieredEmbeddingBag([table], tier, policy="lfu", optimizer=RowwiseAdagrad(lr=0.3))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv, self.out = nn.RMSNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.RMSNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        query, key, value = self.qkv(self.norm(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Gpt(nn.Module):
    def __init__(self, device, memory=None, depth=4):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        for table in (self.token, self.position):
            nn.init.normal_(table.weight, std=0.02)
        self.memory, self.depth = memory, depth
        self.key, self.value = (nn.Linear(len(ORDERS) * ROW, WIDTH, bias=False) for _ in range(2))
        self.key_norm, self.query_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.optimizer = torch.optim.AdamW(self.to(device).parameters(), lr=1e-3, weight_decay=0.01)

    def forward(self, batch):
        """Return the cross-entropy of the next tokens in nats, (sequences, positions)."""
        tokens = torch.as_tensor(batch.extras["tokens"], device=self.position.weight.device)
        x = self.token(tokens[:, :-1]) + self.position.weight[: tokens.shape[1] - 1]
        for number, block in enumerate(self.blocks):
            if number == 1 and self.memory is not None:  # the closer a key is to x, the more of its value is added
                vectors = torch.cat(list(self.memory(batch).values()), dim=1).view(*x.shape[:2], -1)
                match = (self.key_norm(self.key(vectors)) * self.query_norm(x)).sum(2, keepdim=True) / WIDTH**0.5
                x = x + torch.sigmoid(match) * self.value(vectors)
            x = block(x)
        return nn.functional.cross_entropy(self.head(self.norm(x)).transpose(1, 2), tokens[:, 1:], reduction="none")

    def learn(self, batches):
        """Train on batches, and yield their losses."""
        for batch in batches if self.memory is None else self.memory.look_ahead(batches, depth=self.depth):
            loss = self(batch).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if self.memory is not None:
                self.memory.step()
            yield loss.item()

    @torch.no_grad()
    def evaluate(self, batches):
        read = (lambda batch: batch) if self.memory is None else self.memory.read
        return np.mean([self(read(batch)).mean().item() for batch in batches])


def main(rows: int = 10_000_000, host: str = "memory", steps: int = 400):
    files = tokenize(read_sources())
    tested, trained = files[: len(files) // 20], files[len(files) // 20 :]
    memory = make_memory(rows, TierConfig(device_rows="1%", host=host))
    gpts = {"without memory": Gpt(memory.device), "with memory": Gpt(memory.device, memory)}
    batches, ratios = windows(trained, steps), []
    for step in range(10, steps + 1, 10):
        turn, times = [to_batch(next(batches), rows) for _ in range(10)], [time.perf_counter()]
        for name, gpt in gpts.items():
            print(f"step {step}: loss {np.mean(list(gpt.learn(turn))):.3f} {name}")
            times.append(time.perf_counter())
        ratios.append((times[2] - times[1]) / (times[1] - times[0]))
    for name, gpt in gpts.items():
        batches = (to_batch(tokens, rows) for tokens in windows(tested, 40))
        print(f"held-out files, {name}: loss {gpt.evaluate(batches):.4f}")
    print(f"time of a step with memory: {np.median(ratios[1:]):.3f} of the time without (median of turns)")


if __name__ == "__main__":
    typer.run(main)
