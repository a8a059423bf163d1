"""A KV cache that holds nothing: computing on it only takes its time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edge_vlm_ros.engines.native import Chunk
from edge_vlm_ros.engines.step_record import Activity
from edge_vlm_ros.planning.costs import EngineCosts


class VirtualContext:
    """Implements KvContext. ``spend`` is told what takes how many seconds with all else idle;
    ``is_decoding`` says whether tokens are those of running answers, else they are prefilled."""

    def __init__(
        self,
        n_ctx: int,
        cell_bytes: int,
        costs: EngineCosts,
        spend: Callable[[Activity, float], None],
        is_decoding: Callable[[], bool],
    ) -> None:
        self.n_ctx = n_ctx
        self._cell_bytes = cell_bytes
        self._costs = costs
        self._spend = spend
        self._is_decoding = is_decoding

    @property
    def handle(self) -> object:
        return None

    def extend(self, sequence: int, first: int, chunk: Chunk) -> None:
        self._spend(Activity.INGEST, self._costs.prefill.seconds(len(chunk), first))

    def decode_tokens(
        self,
        tokens: Sequence[int],
        places: Sequence[int],
        sequences: Sequence[int],
        wants_logits: Sequence[bool],
    ) -> None:
        n = len(tokens)
        if self._is_decoding():
            mean = sum(places) / n
            self._spend(Activity.DECODE, self._costs.decode.call_s(n, mean))
        else:
            self._spend(Activity.PREFILL, self._costs.prefill.seconds(n, places[0]))

    def fork(self, source: int, target: int, n_tokens: int) -> None:
        self._spend(Activity.PREFILL, self._costs.fork_s)

    def trim(self, sequence: int, first: int = 0) -> None:
        pass

    def export_range(self, sequence: int, start: int, stop: int) -> NDArray[np.uint8]:
        """An array of the right size that takes one byte of memory."""
        n_bytes = (stop - start) * self._cell_bytes
        self._spend(Activity.EXPORT, self._costs.export.seconds(n_bytes))
        return np.broadcast_to(np.uint8(0), (n_bytes,))

    def import_range(
        self,
        blob: NDArray[np.uint8],
        sequence: int,
        start: int,
        stop: int,
        next_position: int | None = None,
    ) -> None:
        self._spend(Activity.IMPORT, self._costs.import_.seconds(blob.nbytes))
