"""Host memory that a GPU reads: allocation, pinning, release, with a fake CUDA runtime."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.helpers import bags, one_table, step_all
from support.key_cases import key_table

from adaptive import system
from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.tiers import streams
from adaptive.embeddings.tiers.gpu import build, pinned
from adaptive.embeddings.tiers.gpu.build import choose_transfer
from adaptive.embeddings.tiers.gpu.pinned import Pinned
from adaptive.embeddings.tiers.host import MemoryHost, whole_pages
from adaptive.errors import ConfigError
from adaptive.optim import Adagrad
from adaptive.system import available_bytes

CUDA = torch.device("cuda", 0)
EMPTY = torch.empty


class Runtime:
    """`torch.cuda.cudart()`."""

    def __init__(self, refuse_from: int | None = None) -> None:
        self.registered: dict[int, int] = {}
        self.calls = 0
        self._refuse_from = refuse_from

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 (CUDA's name)
        assert flags == 1 and size > 0
        self.calls += 1
        if self._refuse_from is not None and self.calls > self._refuse_from:
            return 2
        self.registered[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 (CUDA's name)
        del self.registered[address]
        return 0


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    return play(monkeypatch, Runtime())


def play(monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> Runtime:
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(pinned, "_clear_error", lambda device: None)
    monkeypatch.setattr(torch, "as_tensor", lambda seen, device: seen_from_device(seen))
    monkeypatch.setattr(torch, "empty", lambda shape, device: EMPTY(shape, device="meta"))
    return runtime


def seen_from_device(seen: Any) -> torch.Tensor:
    interface = seen.__cuda_array_interface__
    assert (interface["typestr"], interface["version"]) == ("<f4", 3)
    assert interface["data"] == (seen._array.ctypes.data, False)
    return torch.from_numpy(seen._array)


def hosts_of(*rows: int, optimizer: Any = Adagrad()) -> list[MemoryHost]:  # noqa: B008 (immutable)
    tables = [
        TableConfig(name=f"t{width}", num_embeddings=n, embedding_dim=width) for width, n in enumerate(rows, start=4)
    ]
    return [MemoryHost(group, optimizer, own_pages=True) for group in make_groups(tables, 0)]


def test_arrays_have_pages_of_their_own_and_are_not_rounded_up() -> None:
    for rows, width in ((1, 1), (1000, 3), (5000, 64)):
        array = whole_pages(rows, width)
        assert array.ctypes.data % mmap.PAGESIZE == 0 and array.shape == (rows, width) and array.flags.c_contiguous
        assert not array.any() and array.flags.writeable
    assert whole_pages(5, 0).shape == (5, 0)


def mapping(array: np.ndarray[Any, Any], name: str) -> list[str]:
    """A field of the array's mapping, such as VmFlags or Rss; see proc_pid_smaps(5)."""
    smaps = Path("/proc/self/smaps")
    if not smaps.is_file() or f"{name}:" not in (text := smaps.read_text()):
        pytest.skip("the system does not report how memory is mapped")
    inside = False
    for line in text.splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and ":" not in first:
            start, stop = (int(bound, 16) for bound in first.split("-"))
            inside = start <= array.ctypes.data < stop
        elif inside and first == f"{name}:":
            return rest.split()
    raise AssertionError


def mapping_flags(array: np.ndarray[Any, Any]) -> set[str]:
    """Whether it is shared, not inherited by forked processes, and may have huge pages."""
    return set(mapping(array, "VmFlags")) & {"sh", "dc", "hg"}


@pytest.mark.usefixtures("runtime")
def test_pages_are_private_and_become_huge_when_pinned() -> None:
    """Python maps shared memory by default, which gets no huge pages. Memory that is not pinned asks for none: each row
    that is written would take one."""
    array = whole_pages(1 << 20, 2)
    assert mapping_flags(array) == {"dc"}
    table = Pinned(array, CUDA)
    assert mapping_flags(array) == {"dc", "hg"}
    table.close()


def test_exactly_the_tables_are_pinned_until_they_are_closed(runtime: Runtime) -> None:
    hosts = hosts_of(100, 77)
    tables, text = choose_transfer(hosts, TierConfig(transfer="direct"), CUDA)
    sizes = {array.ctypes.data: array.nbytes for host in hosts for array in (host.weights, host.state)}
    assert runtime.registered == sizes
    assert text == "rows are read and written in place in pinned host memory"
    for pair in tables:
        for table in pair:
            table.close()
            table.close()
    assert runtime.registered == {}


def test_memory_that_is_dropped_is_unpinned(runtime: Runtime) -> None:
    array = whole_pages(10, 4)
    table = Pinned(array, CUDA)
    table.tensor[3, 1] = 5
    assert array[3, 1] == 5
    del array
    assert len(runtime.registered) == 1
    del table
    assert runtime.registered == {}


def test_large_tables_are_pinned_in_pieces_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10,000 bytes a piece here: 64,000 bytes of weights."""
    monkeypatch.setattr(pinned, "PIECE_BYTES", 10_000)
    array, runtime = whole_pages(1000, 16), play(monkeypatch, Runtime())
    first = array.ctypes.data
    table = Pinned(array, CUDA)
    assert runtime.registered == {first + 10_000 * n: 10_000 for n in range(6)} | {first + 60_000: 4000}
    table.close()
    assert runtime.registered == {}
    runtime = play(monkeypatch, Runtime(refuse_from=4))
    with pytest.raises(MemoryError, match=r"CUDA error 2 for 10,000 of 64,000 bytes"):
        Pinned(array, CUDA)
    assert runtime.registered == {} and runtime.calls == 5


@pytest.mark.usefixtures("runtime")
def test_pages_are_touched_before_pinning_and_values_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "TOUCHED_BYTES", 3 * mmap.PAGESIZE)
    array = whole_pages(40, 1024)
    array[5:] = np.arange(35 * 1024).reshape(35, 1024)
    before, sites = array.copy(), []
    registered = Runtime.cudaHostRegister

    def resident(self: Runtime, address: int, size: int, flags: int) -> int:
        sites.append(1024 * int(mapping(array, "Rss")[0]))
        return registered(self, address, size, flags)

    monkeypatch.setattr(Runtime, "cudaHostRegister", resident)
    table = Pinned(array, CUDA)
    assert sites == [array.nbytes]
    assert np.array_equal(array, before)
    table.close()


def test_an_empty_array_is_on_the_device() -> None:
    """The state of SGD: on a GPU, kernels refuse tables of two devices."""
    tensor = Pinned(whole_pages(5, 0), torch.device("meta")).tensor
    assert tensor.device.type == "meta" and tensor.shape == (5, 0)


def test_nothing_is_pinned_if_every_row_has_a_slot(runtime: Runtime) -> None:
    hosts = hosts_of(50)
    tables, text = choose_transfer(hosts, TierConfig(), CUDA, fits=True)
    assert runtime.calls == 0 and tables == []
    assert text == "rows cross in pinned buffers: every row has a slot, so each crosses at most once"
    assert choose_transfer(hosts, TierConfig(transfer="direct"), CUDA, fits=True)[0]


def test_a_host_that_cannot_pin_is_not_a_full_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **options: Any) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory\nmore lines")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", full)
        with pytest.raises(
            ConfigError, match=r"expected 1,000 bytes of host memory that can be pinned, got CUDA error: .*lower"
        ):
            streams._pinned(1000)


def test_rows_are_staged_if_the_system_refuses_to_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = play(monkeypatch, Runtime(refuse_from=3))
    tables, text = choose_transfer(hosts_of(100, 77), TierConfig(), CUDA)
    assert tables == [] and runtime.registered == {}
    assert "cannot be pinned (CUDA error 2 for 1,540 of 1,540 bytes)" in text


def test_direct_is_an_error_if_the_system_refuses_to_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = play(monkeypatch, Runtime(refuse_from=0))
    with pytest.raises(
        ConfigError, match=r"tier.transfer=direct: expected .* got CUDA error 2 .* Set it to auto or staged"
    ):
        choose_transfer(hosts_of(100), TierConfig(transfer="direct"), CUDA)
    assert runtime.registered == {}


def test_a_capacity_that_the_memory_cannot_hold_is_not_pinned(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Touching its pages would end the process: for tables with keys the system lends any capacity."""
    monkeypatch.setattr(pinned, "available_bytes", lambda: 1 << 30)
    (group,) = make_groups([key_table(num_embeddings=1 << 30)], 0)
    with pytest.raises(
        ConfigError, match=r"tier.transfer=direct: expected .* got 1,073,741,824 bytes of free memory for 12,.* staged"
    ):
        choose_transfer([MemoryHost(group, Adagrad())], TierConfig(transfer="direct"), CUDA)
    assert runtime.calls == 0


@pytest.mark.parametrize(
    ("free", "expected"), [(10**9, "in place"), (3000, "pinning 0.0 GiB would take more than half of the free memory")]
)
def test_auto_pins_at_most_half_of_the_free_memory(
    free: int, expected: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "available_bytes", lambda: free)
    tables, text = choose_transfer(hosts_of(50), TierConfig(), CUDA)  # 1,600 bytes
    assert expected in text
    assert bool(tables) == (free > 3200) == (runtime.calls > 0)


def test_other_choices(runtime: Runtime) -> None:
    assert choose_transfer(hosts_of(50), TierConfig(transfer="staged"), CUDA)[0] == []
    assert choose_transfer(hosts_of(50), TierConfig(), torch.device("cpu"))[0] == []
    assert choose_transfer(hosts_of(50), TierConfig(host="mmap:/x"), CUDA)[0] == []
    with pytest.raises(ConfigError, match=r"tier.transfer=direct: expected tier.host=memory, got mmap:/x"):
        choose_transfer(hosts_of(50), TierConfig(transfer="direct", host="mmap:/x"), CUDA)
    assert runtime.calls == 0


def test_on_the_cpu_rows_in_place_need_no_pinning() -> None:
    with one_table(10, "3", device="cpu-torch", transfer="direct") as embeddings:
        step_all(embeddings, [bags([1]), bags([2]), bags([3]), bags([4]), bags([5])], depth=1)
        assert embeddings.statistics.device_rows_text().endswith(
            "rows are read and written in place in pinned host memory"
        )
    embeddings.close()


def write(root: Path, place: str, **files: str) -> None:
    folder = root / place
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(text)


def test_a_container_may_have_less_memory_than_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me = tmp_path / "self"
    me.write_text("0::/\n")
    assert list(system._of_groups(tmp_path, me)) == []
    write(tmp_path, "", max="1000\n", current="700\n", stat="anon 500\nactive_file 60\ninactive_file 40\n")
    assert list(system._of_groups(tmp_path, me)) == [340]  # what files keep in memory can be dropped
    write(tmp_path, "a/b", max="max\n", current="5\n", stat="")
    write(tmp_path, "a", max="50\n", current="70\n", stat="inactive_file 3\n")
    me.write_text("1:cpu:/elsewhere\n0::/a/b\n")
    assert list(system._of_groups(tmp_path, me)) == [0, 340]  # groups around it count, too
    assert list(system._of_groups(tmp_path, tmp_path / "none")) == []
    monkeypatch.setattr(system, "_of_groups", lambda root, membership: iter([12_345]))
    assert available_bytes() == 12_345


def test_groups_of_the_first_version(tmp_path: Path) -> None:
    me = tmp_path / "self"
    me.write_text("5:cpu,cpuacct:/x\n4:memory:/x\n")
    limits = {"limit_in_bytes": "900", "usage_in_bytes": "800", "stat": "inactive_file 1\ntotal_inactive_file 7\n"}
    write(tmp_path, "memory/x", **limits)
    assert list(system._of_groups(tmp_path, me)) == [107]


def test_an_error_that_was_handled_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = []

    class Scratch:
        def fill_(self, value: float) -> None:
            launches.append(value)
            raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "empty", lambda size, device: Scratch())
    pinned._clear_error(CUDA)
    assert launches == [1.0]
