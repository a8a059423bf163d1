"""What an engine has to do, one step at a time, whoever turns the crank."""

from __future__ import annotations

from collections import deque

from .answers import Answers
from .core import EngineCore
from .exports import Exports
from .protocol import (
    AppendToTrunk,
    DropTrunk,
    EndAnswer,
    EngineStatus,
    ExportRange,
    ForkTrunk,
    HandOffAnswer,
    HurryTrunk,
    ImportIntoTrunk,
    StartAnswer,
)
from .step_scheduler import StepKind, StepScheduler
from .trunks import Trunks


class EngineWork:
    """Takes commands and does the steps that follow from them. Used by one thread."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self.doing: StepKind | None = None
        """The kind of the step that is being done, while it is."""
        self._scheduler = StepScheduler(core.config.ingest_share)
        self.trunks = Trunks(core)
        self.answers = Answers(core, self.trunks)
        self._exports = Exports(core, self.trunks)
        self._prefills: deque[Answers | Trunks] = deque((self.answers, self.trunks))
        self._transfers: deque[Answers | Trunks | Exports] = deque(
            (self.answers, self.trunks, self._exports)
        )

    @property
    def is_there(self) -> bool:
        """Whether ``step`` has something to do."""
        trunks = self.trunks.can_ingest or self.trunks.can_prefill
        return bool(self.answers.running) or trunks or self._can_transfer

    def carry_out(self, command: object) -> None:
        """Take a command; raises TypeError for anything else."""
        match command:
            case AppendToTrunk():
                self.trunks.append(command)
            case ImportIntoTrunk():
                self.trunks.import_(command)
            case ForkTrunk():
                self.trunks.fork(command)
            case HurryTrunk(trunk, n):
                self.trunks.hurry(trunk, n)
            case DropTrunk(trunk):
                self.trunks.drop(trunk)
            case ExportRange():
                self._exports.accept(command)
            case StartAnswer():
                self.answers.accept(command)
            case HandOffAnswer(answer_id):
                self.answers.hand_off(answer_id)
            case EndAnswer():
                self.answers.end(command)
            case _:
                raise TypeError(f"engine {self._core.config.name}: not a command: {command!r}")
        self.answers.start_waiting()

    def step(self) -> None:
        """Do what is next, if anything."""
        kind = self._scheduler.choose(
            ingest=self.trunks.can_ingest,
            prefill=self.answers.can_prefill or self.trunks.can_prefill,
            decode=self.answers.can_decode,
            transfer=self._can_transfer,
        )
        if kind is not None:
            self._do(kind)
        self.answers.start_waiting()
        self._core.meter.read(self._core.ledger)

    def status(
        self, *, device: str, model: str, weights_bytes: int, kv_bytes: int, unordered: int
    ) -> EngineStatus:
        """A reading from any thread; counters may be one step apart."""
        core, meter = self._core, self._core.meter
        return EngineStatus(
            name=core.config.name,
            device=device,
            model=model,
            exact=core.config.exact,
            cells=core.context.n_ctx,
            cells_used=meter.cells_used,
            cells_reserved=meter.cells_reserved,
            trunks=len(self.trunks),
            running_answers=len(self.answers.running),
            waiting_answers=len(self.answers.waiting),
            prefill_tokens=meter.prefill_tokens,
            ingest_tokens=meter.ingest_tokens,
            generated_tokens=meter.generated_tokens,
            prefill_tok_s=meter.prefill_rate.value,
            decode_tok_s=meter.decode_rate.value,
            busy_s=meter.busy_s,
            exported_bytes=meter.exported_bytes,
            imported_bytes=meter.imported_bytes,
            export_bytes_s=meter.export_rate.value,
            import_bytes_s=meter.import_rate.value,
            unordered_tokens=unordered,
            memory_weights_bytes=weights_bytes,
            memory_kv_bytes=kv_bytes,
        )

    def close(self) -> None:
        self.answers.close()

    def _do(self, kind: StepKind) -> None:
        if kind is not StepKind.DECODE:
            self.answers.tell_all()
        self.doing = kind
        start = self._core.clock()
        done, n = self._carry_out_step(kind)
        seconds = self._core.clock() - start
        self.doing = None
        self._scheduler.account(kind, seconds)
        self._core.meter.count(done, n, seconds)

    def _carry_out_step(self, kind: StepKind) -> tuple[StepKind, int]:
        """Returns what was done and rows computed. Whose turn it is and what is done are two things
        where a question waits for frames."""
        match kind:
            case StepKind.INGEST:
                return kind, self.trunks.ingest_step()
            case StepKind.PREFILL:
                return self._prefill_step()
            case StepKind.DECODE:
                return kind, self.answers.decode_step()
            case StepKind.TRANSFER:
                self._transfer_step()
        return kind, 0

    def _prefill_step(self) -> tuple[StepKind, int]:
        """One chunk; questions and the frames that others wait for take turns."""
        part = next(part for part in self._prefills if part.can_prefill)
        self._prefills.remove(part)
        self._prefills.append(part)
        kind = StepKind.INGEST if part is self.trunks else StepKind.PREFILL
        return kind, part.prefill_step()

    @property
    def _can_transfer(self) -> bool:
        return any(part.can_transfer for part in self._transfers)

    def _transfer_step(self) -> None:
        """One snapshot; answers, trunks and exports take turns."""
        part = next(part for part in self._transfers if part.can_transfer)
        self._transfers.remove(part)
        self._transfers.append(part)
        part.transfer_step()
