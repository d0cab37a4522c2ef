"""`dense_graphs`: the dense part replayed from a recording, bit for bit as run; with a stand-in for CUDA's graphs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from recorded_graph import RecordedGraph
from thread_ranks import outcomes
from torch import Tensor, nn
from toy import ToyData, toy_config
from toy_runs import assert_equal, everything

from adaptive.batch import Batch
from adaptive.build import Components, build
from adaptive.errors import ConfigError, NonFiniteError
from adaptive.models.layers import interaction
from adaptive.planned import Planned
from adaptive.ranks import Ranks
from adaptive.step import capture
from adaptive.telemetry.recorder import Recorder
from adaptive.trainer import Trainer

SHAPES: dict[str, dict[str, Any]] = {
    "dlrm": {"model_options": {"embedding_dim": 4, "bottom_mlp": (8, 4), "top_mlp": (8, 1)}},
    "dlrm, bf16": {"model_options": {"embedding_dim": 4, "bottom_mlp": (8, 4), "top_mlp": (8, 1), "bf16": True}},
    "dlrm, layer": {"model_options": {"embedding_dim": 4, "bottom_mlp": (8, 4), "feature_norm": "layer"}},
    "dcn": {"model": "dcn", "model_options": {"embedding_dim": 4, "deep_mlp": (8, 4)}},
    "deepfm": {"model": "deepfm", "model_options": {"embedding_dim": 4, "deep_mlp": (8,)}},
    "multi-task": {"model": "multi-task", "model_options": {"embedding_dim": 4, "shared_mlp": (8,), "task_mlp": (4,)}},
    "two-tower": {
        "model": "two-tower",
        "model_options": {"embedding_dim": 4, "tower_mlp": (8, 4), "user_tables": ("user",)},
    },
    "widths": {"model_options": {"embedding_dim": 4, "bottom_mlp": (8, 4), "widths": {"user": 6}}},
}
MORE_LABELS = ("click", "second", "third")


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RecordedGraph]]:
    """The graphs that were made. The interaction is torch's operations, as on a GPU without Triton."""
    found: list[RecordedGraph] = []

    def graph_for(device: torch.device) -> RecordedGraph:
        found.append(RecordedGraph(device))
        return found[-1]

    monkeypatch.setattr(capture, "graph_for", graph_for)
    monkeypatch.setattr(interaction, "dot_interaction", interaction.gathered_dot_interaction)
    monkeypatch.setattr("adaptive.models.dlrm.dot_interaction", interaction.gathered_dot_interaction)
    return found


def made(**changed: Any) -> Components:
    labels = MORE_LABELS if changed.get("model") == "multi-task" else ()
    toy = ToyData(labels=labels)
    return build(toy_config(**changed), toy, list(toy.train(32)))


def batches(parts: Components, num_train: int = 336) -> list[Batch]:
    """10 batches of 32, and one of 16."""
    labels = MORE_LABELS if getattr(parts.model, "tasks", None) is not None else ()
    return list(ToyData(num_train=num_train, labels=labels).train(32))


def trained(*, dense_graphs: bool, coming: Sequence[Batch] = (), **changed: Any) -> tuple[Any, Trainer]:
    """All numbers, losses and predictions included."""
    torch.manual_seed(5)
    check = changed.pop("finite_check", "before_update")
    parts = made(**changed)
    recorder = Recorder(parts.embeddings, log_every=100)
    made_of = (parts.embeddings, parts.model, parts.optimizer)
    trainer = Trainer(*made_of, recorder=recorder, dense_graphs=dense_graphs, finite_check=check)
    with parts.embeddings:
        for planned in parts.embeddings.look_ahead(coming or batches(parts), depth=1):
            trainer.step(planned)
        trainer.check()
        found = everything(parts) | {"logits": torch.cat(recorder._logits).numpy()}
    return found | {"losses": np.array(recorder._losses), "random": torch.get_rng_state().numpy()}, trainer


# --- the same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dense", ["sgd", "adagrad", "adam"])
def test_a_graph_gives_the_bits_of_ordinary_passes(shape: str, dense: str, recorded: list[RecordedGraph]) -> None:
    settings = {**SHAPES[shape], "dense_optimizer": {"name": dense, "lr": 0.05}}
    found, trainer = trained(dense_graphs=True, **settings)
    expected, _ = trained(dense_graphs=False, **settings)
    assert_equal(found, expected)
    assert trainer._graph is not None and trainer._graph.replays == 9, "the first batch is ordinary, and the short one"
    assert len(recorded) == 1 and recorded[0].warmed_up == 1


def test_a_step_that_is_looked_at_later_may_be_a_graphs(recorded: list[RecordedGraph]) -> None:
    expected, _ = trained(dense_graphs=False)
    assert_equal(trained(dense_graphs=True, finite_check="a_step_later")[0], expected)
    assert len(recorded) == 1


def test_other_shapes_and_parts_take_the_ordinary_way(recorded: list[RecordedGraph]) -> None:
    whole = list(ToyData(num_train=336).train(32))
    mixed = [whole[0], whole[-1], *whole[1:4], whole[-1], whole[4]]
    found, trainer = trained(dense_graphs=True, coming=mixed)
    assert_equal(found, trained(dense_graphs=False, coming=mixed)[0])
    assert trainer._graph is not None and trainer._graph.replays == 3, "from the second in a row on"
    in_parts, trainer = trained(dense_graphs=True, policy="contract:InParts")
    assert_equal(in_parts, trained(dense_graphs=False, policy="contract:InParts")[0])


def test_passes_are_run_again_where_memory_runs_out(
    monkeypatch: pytest.MonkeyPatch, recorded: list[RecordedGraph]
) -> None:
    """In the capture, which cannot be ended then either, and after a replay."""
    tier = {"device": "cpu-torch", "device_rows": "100%", "poison": True}
    record, replay, calls = RecordedGraph.record, RecordedGraph.replay, [0, 0]

    def fails_once(self: RecordedGraph, work: Callable[[], object]) -> None:
        calls[0] += 1
        if calls[0] == 1:
            try:
                raise torch.OutOfMemoryError("CUDA out of memory")
            finally:
                raise RuntimeError("operation failed due to a previous error during capture")
        record(self, work)

    def fails_late(self: RecordedGraph) -> None:
        replay(self)
        calls[1] += 1
        if calls[1] in (2, 6):
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(RecordedGraph, "record", fails_once)
    monkeypatch.setattr(RecordedGraph, "replay", fails_late)
    found, trainer = trained(dense_graphs=True, tier=tier, depth=1)
    assert_equal(found, trained(dense_graphs=False, tier=tier, depth=1)[0])
    assert len(recorded) == 2 and trainer._graph is not None and trainer._graph.replays > 5


def test_what_a_graph_has_given_is_not_overwritten_by_the_next() -> None:
    parts = made()
    trainer = Trainer(parts.embeddings, parts.model, parts.optimizer, dense_graphs=True)
    with parts.embeddings:
        kept = []
        for planned in parts.embeddings.look_ahead(batches(parts)[:6], depth=0):
            trainer.step(planned)
            kept.append((trainer.recorder._logits[-1], trainer.recorder._logits[-1].clone()))
    assert len({logits.data_ptr() for logits, _ in kept}) == 6
    assert all(torch.equal(logits, then) for logits, then in kept)


def test_gradients_that_are_there_already_are_added_to() -> None:
    """Of weights that no optimizer clears."""
    sums = []
    for dense_graphs in (False, True):
        parts = made()
        first, *others = parts.model.parameters()
        optimizer = torch.optim.SGD(others, lr=0.1)
        trainer = Trainer(parts.embeddings, parts.model, optimizer, dense_graphs=dense_graphs)
        with parts.embeddings:
            for planned in parts.embeddings.look_ahead(batches(parts)[:7], depth=0):
                trainer.step(planned)
        assert first.grad is not None
        sums.append(first.grad)
    assert torch.equal(*sums)


class Around(nn.Module):
    """A model that does something else, too."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.calls = model, 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        logits: Tensor = self.model(dense, pooled)
        return self.more(logits)

    def more(self, logits: Tensor) -> Tensor:
        return logits


class SharesGradients(Around):
    """Two weights with one gradient, and one whose gradient is a single value for all of them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.one, self.other = nn.Parameter(torch.zeros(32)), nn.Parameter(torch.zeros(32))
        self.all = nn.Parameter(torch.zeros(5, 3).T)

    def more(self, logits: Tensor) -> Tensor:
        return logits + self.one + self.other + self.all.sum()


def test_each_weight_has_a_gradient_of_its_own() -> None:
    found = []
    for dense_graphs in (False, True):
        parts = made()
        model = SharesGradients(parts.model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1, momentum=0.5, maximize=True)
        trainer = Trainer(parts.embeddings, model, optimizer, dense_graphs=dense_graphs)
        trainer.train(batches(parts)[:10], depth=0)
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        assert len({gradient.untyped_storage().data_ptr() for gradient in gradients}) == len(list(model.parameters()))
        assert all(one.grad is not None and one.stride() == one.grad.stride() for one in model.parameters())
        found.append(torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    assert torch.equal(*found)


def test_weights_that_have_moved_are_captured_anew(recorded: list[RecordedGraph]) -> None:
    parts, expected = made(), made()
    trainer = Trainer(parts.embeddings, parts.model, parts.optimizer, dense_graphs=True)
    other = Trainer(expected.embeddings, expected.model, expected.optimizer)
    for number, planned in enumerate(parts.embeddings.look_ahead(batches(parts), depth=0)):
        if number == 5:
            for weight in parts.model.parameters():
                weight.data = weight.data.clone()
        trainer.step(planned)
    other.train(batches(expected), depth=0)
    assert_equal(everything(parts), everything(expected))
    assert len(recorded) == 2


def test_weights_that_move_again_and_again_are_a_mistake() -> None:
    parts = made()
    trainer = Trainer(parts.embeddings, parts.model, parts.optimizer, dense_graphs=True)
    step = trainer.step

    def move_and_step(planned: Planned) -> None:
        for weight in parts.model.parameters():
            weight.data = weight.data.clone()
        step(planned)

    trainer.step = move_and_step  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="have changed 8 times since training began"):
        trainer.train(batches(parts, 640), depth=0)


def test_a_number_that_is_not_finite_is_told_as_ever() -> None:
    for sample in (40, 250):  # while replays are compared, and later
        parts = made()
        trainer = Trainer(parts.embeddings, parts.model, parts.optimizer, dense_graphs=True)
        message = f"step {sample // 32 + 1}: the loss is nan; not finite: dense input 0; 1 of"
        with pytest.raises(NonFiniteError, match=message):
            trainer.train(ToyData(spoil={sample: float("nan")}).train(32), depth=1)


# --- models that cannot be captured ----------------------------------------------------------------------------------


def refusal(model: Callable[[nn.Module], nn.Module]) -> str:
    parts = made()

    def train() -> None:
        trainer = Trainer(parts.embeddings, model(parts.model), parts.optimizer, dense_graphs=True)
        trainer.train(batches(parts), depth=0)

    with pytest.raises(ConfigError) as caught:
        train()
    assert "set dense_graphs=false" in str(caught.value)
    return str(caught.value)


class CountsItself(Around):
    def more(self, logits: Tensor) -> Tensor:
        self.calls += 1
        return logits


class KeepsStatistics(Around):
    def more(self, logits: Tensor) -> Tensor:
        self.seen += logits.detach().mean()
        return logits


class Draws(Around):
    def more(self, logits: Tensor) -> Tensor:
        return logits + 0.01 * torch.rand_like(logits)


class Reads(Around):
    def more(self, logits: Tensor) -> Tensor:
        return logits * 2 if logits.sum() > 0 else logits


STEP = [0]


class LooksElsewhere(Around):
    def more(self, logits: Tensor) -> Tensor:
        return logits * (1 + STEP[0])


class OnTheHost(Around):
    def more(self, logits: Tensor) -> Tensor:
        return logits + torch.from_numpy(np.tanh(logits.detach().numpy()))


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (CountsItself, "its forward pass changes attribute calls"),
        (KeepsStatistics, "its forward pass changes the values of seen"),
        (Draws, "its forward pass changes torch's random numbers"),
        (Reads, "something in its passes waits for the GPU or copies from ordinary memory: operation not permitted"),
        (OnTheHost, "replayed, its passes give other numbers than run anew, by up to"),
        (lambda model: nn.Sequential(nn.Dropout(0.5), model), "Dropout 0 draws other numbers in every step"),
    ],
)  # fmt: skip
def test_a_model_that_a_graph_would_falsify_is_refused(model: Callable[[nn.Module], nn.Module], why: str) -> None:
    assert f"the model cannot be captured as a graph: {why}" in refusal(model)


def test_a_model_that_looks_elsewhere_is_found_by_comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = RecordedGraph.replay

    def later(self: RecordedGraph) -> None:
        STEP[0] += 1
        replay(self)

    monkeypatch.setattr(RecordedGraph, "replay", later)
    assert "other numbers than run anew" in refusal(LooksElsewhere)


def test_kernels_that_are_no_work_of_the_device_are_found_by_comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(capture, "graph_for", RecordedGraph)
    assert "other numbers than run anew" in refusal(lambda model: model)


def test_hooks_are_refused() -> None:
    def hooked(model: nn.Module) -> nn.Module:
        model.register_forward_hook(lambda *given: None)
        return model

    def weight_hooked(model: nn.Module) -> nn.Module:
        next(model.parameters()).register_hook(lambda gradient: gradient)  # type: ignore[no-untyped-call]
        return model

    assert "DLRM has hooks, which a replay does not call" in refusal(hooked)
    assert "weight bottom.0.weight has hooks" in refusal(weight_hooked)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"dropout": 0.2}, "DroppedReLU bottom.1 draws other numbers in every step, which the host chooses"),
        ({"feature_norm": "batch"}, "BatchFeatureNorm feature_norm changes its running statistics"),
    ],
)
def test_what_settings_ask_for_is_refused_on_any_device(options: dict[str, Any], why: str) -> None:
    shape = {"embedding_dim": 4, "bottom_mlp": (8, 4), "top_mlp": (8, 1)} | options
    parts = made(model_options=shape)
    with pytest.raises(ConfigError, match=why):
        Trainer(parts.embeddings, parts.model, parts.optimizer, dense_graphs=True)


def test_ranks_are_refused() -> None:
    def rank(ranks: Ranks) -> None:
        parts = build(toy_config(), ToyData(), (), ranks)
        with parts.embeddings:
            Trainer(parts.embeddings, parts.model, parts.optimizer, dense_graphs=True)

    assert "ranks train block by block" in str(outcomes(1, rank)[0])


def test_without_a_gpu_nothing_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert capture.graph_for(torch.device("cpu")) is None
    found, trainer = trained(dense_graphs=True)
    assert_equal(found, trained(dense_graphs=False)[0])
    assert trainer._graph is not None and trainer._graph.replays == 0
