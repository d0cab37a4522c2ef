"""Streams of a device for `mover`: CUDA's with pinned memory, or inline ones elsewhere."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor

from adaptive.embeddings.tiers.mover import Event, Shape, Stream, Streams, inline
from adaptive.errors import ConfigError
from adaptive.system import is_out_of_memory


def streams_of(device: torch.device) -> Streams:
    """Return the streams of a device."""
    if device.type != "cuda":
        return inline(device)
    if device.index is None:  # "the current device" is another one in another thread
        device = torch.device("cuda", torch.cuda.current_device())

    def another() -> Stream:
        return _CudaStream(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]

    settle = partial(torch.cuda.synchronize, device)
    return Streams(device, another(), _CudaStream(device, None), _pinned, settle, another)


class _CudaStream:
    """A separate stream, or the stream that is current in the calling thread (None)."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None) -> None:
        self._device, self._separate = device, stream

    @property
    def _stream(self) -> torch.cuda.Stream:
        return self._separate or torch.cuda.current_stream(self._device)

    def _entered(self) -> AbstractContextManager[object]:
        """Return the stream as a context; a stream that is current already need not be entered.

        That saves 5 us a dozen times a step.
        """
        if self._separate is None and torch.cuda.current_device() == self._device.index:
            return nullcontext()
        return torch.cuda.stream(self._stream)

    def run(self, work: Callable[[], object]) -> None:
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
        # Blocking: a thread that waits sleeps, and leaves the core to the readers.
        self.event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self.event.record(stream)

    def wait(self) -> None:
        self.event.synchronize()


def _pinned(num_bytes: int) -> Tensor:
    """Return pinned host memory.

    Raises:
        ConfigError: if the host cannot pin so much memory. CUDA reports that in the same words as a full device, where
            fewer device rows would help; here they would not.
    """
    try:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(
            f"expected {num_bytes:,} bytes of host memory that can be pinned, got {str(error).splitlines()[0]}. Free "
            f"host memory, or lower batch_size or depth"
        ) from error
