"""The streams of a device as `mover` wants them: on CUDA, with events and pinned memory; elsewhere none."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor

from adaptive.embeddings.tiers.mover import Event, Shape, Stream, Streams, inline
from adaptive.errors import ConfigError
from adaptive.system import is_out_of_memory


def streams_of(device: torch.device) -> Streams:
    """The streams of a device."""
    if device.type != "cuda":
        return inline(device)
    if device.index is None:  # "the current device" is another one in another thread
        device = torch.device("cuda", torch.cuda.current_device())

    def another() -> Stream:
        return _CudaStream(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]

    settle = partial(torch.cuda.synchronize, device)
    return Streams(device, another(), _CudaStream(device, None), _pinned, settle, another)


class _CudaStream:
    """A stream of its own, or whichever is current in the calling thread."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None) -> None:
        self._device, self._own = device, stream

    @property
    def _stream(self) -> torch.cuda.Stream:
        return self._own or torch.cuda.current_stream(self._device)

    def _entered(self) -> AbstractContextManager[object]:
        """Nothing to enter, and 5 us saved a dozen times a step, for the stream and the device that are current."""
        if self._own is None and torch.cuda.current_device() == self._device.index:
            return nullcontext()
        return torch.cuda.stream(self._stream)

    def run(self, work: Callable[[], None]) -> None:
        with self._entered():
            work()

    def copy(self, to: Tensor, source: Tensor) -> None:
        with self._entered():
            to.copy_(source, non_blocking=True)

    def empty(self, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
        with self._entered():
            return torch.empty(shape, dtype=dtype, device=self._device)

    def record(self) -> Event:
        return _CudaEvent(self._stream)

    def after(self, event: Event) -> None:
        assert isinstance(event, _CudaEvent)
        self._stream.wait_event(event.event)


class _CudaEvent:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        # A thread that waits sleeps and leaves the core to the readers.
        self.event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self.event.record(stream)

    def wait(self) -> None:
        self.event.synchronize()


def _pinned(num_bytes: int) -> Tensor:
    """
    Raises:
        ConfigError: if the host has no such memory to pin. CUDA says so in the words in which it says that the device's
            memory is full; fewer device rows would not help.
    """
    try:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(
            f"a buffer of {num_bytes:,} bytes of host memory cannot be pinned: {str(error).splitlines()[0]}. Free host "
            f"memory, or lower batch_size or depth"
        ) from error
