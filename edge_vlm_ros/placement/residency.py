"""Which engine holds which version of which stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from edge_vlm_ros.engines.protocol import Boundary, Origin, TrunkId


@dataclass(frozen=True)
class HeldVersion:
    """The end of a version that a trunk holds, and how it came to."""

    boundary: Boundary
    origin: Origin


@dataclass(eq=False)
class TrunkRecord:
    """A trunk of one engine: how far it was told to go, how far it has come, who needs it."""

    engine: str
    trunk: TrunkId
    last_use: float
    root: Boundary
    """The empty prefix."""
    submitted: Boundary = field(init=False)
    """Where the trunk will be when all commands sent have been carried out."""
    held: list[HeldVersion] = field(default_factory=list)
    importing: Boundary = field(init=False)
    """As far as this it is extended by imports, beyond by computing."""
    planned: list[Boundary] = field(default_factory=list)
    """Ends that the commands sent and not carried out yet will reach, in order."""
    attempts: int = 0
    """Failures in a row at the place where it is now."""
    ahead: bool = False
    """Of an epoch that is not in use yet: nobody needs it."""
    transfers_refused: bool = False
    """A fork or an import failed: the rest is replayed."""
    awaited_n: int = 0
    """The engine was told that a question waits for this version."""
    export: int | None = None
    """Request whose snapshots are to extend this trunk."""
    reserved: dict[int, int] = field(default_factory=dict)
    """Accepted questions (by answer id) that need so many tokens of it."""

    def __post_init__(self) -> None:
        self.submitted = self.importing = self.root

    @property
    def computed(self) -> Boundary:
        return self.held[-1].boundary if self.held else self.root

    @property
    def settled(self) -> bool:
        """Whether no command that was sent to extend the trunk is outstanding."""
        return self.export is None and self.submitted.n == self.computed.n

    @property
    def cells(self) -> int:
        """Cells it takes now or will take for what is decided."""
        return max(self.submitted.tokens, *self.reserved.values(), 0)

    @property
    def tokens_to_import(self) -> int:
        """Of what was ordered."""
        return max(0, min(self.importing.tokens, self.submitted.tokens) - self.computed.tokens)

    @property
    def tokens_to_compute(self) -> int:
        """Of what was ordered; chunks of a version that is not complete count in full."""
        return self.submitted.tokens - self.computed.tokens - self.tokens_to_import

    def boundaries(self, start_n: int) -> list[Boundary]:
        """Ends of the versions held from ``start_n`` on, ``start_n``'s own first if it has one."""
        ends = [self.root, *(held.boundary for held in self.held)]
        return [end for end in ends if end.n >= start_n]

    def tokens_by_origin(self, start_n: int, stop_n: int) -> dict[Origin, int]:
        """Tokens of the versions after ``start_n`` up to ``stop_n``, by how they came here."""
        tokens = dict.fromkeys(Origin, 0)
        before = self.root
        for held in self.held:
            if start_n < held.boundary.n <= stop_n:
                tokens[held.origin] += held.boundary.tokens - before.tokens
            before = held.boundary
        return tokens


class ResidencyTable:
    """All trunks of all engines. A trunk that is begun again after it was dropped has another
    ``life``, so that late events of the old one are told apart."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str, int], TrunkRecord] = {}
        self._lives = 0

    def __iter__(self) -> Iterator[TrunkRecord]:
        return iter(tuple(self._records.values()))

    def begin(
        self, engine: str, stream: str, epoch: int, root: Boundary, now: float
    ) -> TrunkRecord:
        """A record for a trunk that the engine does not hold yet."""
        self._lives += 1
        record = TrunkRecord(engine, TrunkId(stream, epoch, self._lives), now, root)
        self._records[engine, stream, epoch] = record
        return record

    def renew(self, record: TrunkRecord) -> None:
        """Begin the trunk again in the same record, for those who need it: it holds nothing yet."""
        record.held.clear()
        self.cut(record)

    def cut(self, record: TrunkRecord) -> None:
        """Begin the trunk again with what it holds, and nothing more on its way."""
        self._lives += 1
        record.trunk = replace(record.trunk, life=self._lives)
        record.planned.clear()
        record.awaited_n = 0
        record.submitted = record.importing = record.computed

    def get(self, engine: str, stream: str, epoch: int) -> TrunkRecord | None:
        return self._records.get((engine, stream, epoch))

    def of(self, engine: str, trunk: TrunkId) -> TrunkRecord | None:
        """The record of exactly this trunk; None when it was dropped meanwhile."""
        record = self.get(engine, trunk.stream, trunk.epoch)
        return record if record is not None and record.trunk == trunk else None

    def on_engine(self, engine: str) -> list[TrunkRecord]:
        return [record for record in self if record.engine == engine]

    def of_epoch(self, stream: str, epoch: int) -> list[TrunkRecord]:
        return [r for r in self if (r.trunk.stream, r.trunk.epoch) == (stream, epoch)]

    def of_stream(self, stream: str) -> list[TrunkRecord]:
        return [record for record in self if record.trunk.stream == stream]

    def holder(self, engine: str, stream: str, epoch: int, n: int) -> TrunkRecord | None:
        """The trunk of ``engine`` if it holds version ``n``."""
        record = self.get(engine, stream, epoch)
        return record if record is not None and record.computed.n >= n else None

    def has_room(self, question: int, engine: str) -> bool:
        """Whether the question has its history there, or the cells that it takes."""
        return any(question in record.reserved for record in self.on_engine(engine))

    def cells(self, engine: str) -> int:
        """Cells of all trunks of an engine, those decided included; shared ones count for each."""
        return sum(record.cells for record in self.on_engine(engine))

    def drop(self, record: TrunkRecord) -> None:
        self._records.pop((record.engine, record.trunk.stream, record.trunk.epoch), None)


def farthest(records: Iterable[TrunkRecord]) -> TrunkRecord | None:
    """The record that holds most; the first of equals."""
    return max(records, key=lambda record: record.computed.n, default=None)
