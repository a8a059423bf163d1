"""Which part of the questions each engine should get while they keep coming.

Every engine is taken as a queue with processor sharing (answers in a batch share it): Poisson
arrivals at rate x_e, service capacity mu_e, mean time in it 1 / (mu_e - x_e), whatever the
distribution of lengths (M/G/1-PS; Kleinrock, Queueing Systems II, 4.4). Splitting a stream of rate
lambda so that the mean time is least gives the square-root rule

    x_e = mu_e - sqrt(mu_e) * (sum(mu) - lambda) / sum(sqrt(mu))

over the engines for which it is positive (Bell and Stidham, Management Science 29(7), 1983; Tantawi
and Towsley, JACM 32(2), 1985). Assumptions: questions of all streams alike, state moved for free,
engines do not disturb each other. mu_e is one over the engine's time for a question in a full
batch, less what its frames take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt

from .comparison import ingest_loads
from .costs import CostModel
from .state import EngineState, PlanningState

SUSTAINED_ABOVE, SUSTAINED_BELOW = 0.7, 0.5
"""Utilisation of the best engine alone from which on, and below which no more, shares are used."""

MOST_INGESTION = 0.95
"""An engine is never counted as busier with frames than this."""


@dataclass(frozen=True)
class EngineLoad:
    """``shares`` and ``utilisation`` by engine, 0 to 1 (utilisation above 1 in overload);
    ``service_s`` is an engine's time for a question."""

    sustained: bool = False
    shares: Mapping[str, float] = field(default_factory=dict)
    utilisation: Mapping[str, float] = field(default_factory=dict)
    service_s: Mapping[str, float] = field(default_factory=dict)


def question_rate(state: PlanningState) -> float:
    """Questions a second about all streams."""
    return sum(stream.question_rate_hz for stream in state.streams)


def square_root_shares(rate: float, capacity: Mapping[str, float]) -> dict[str, float]:
    """Fractions of ``rate`` by engine, for capacities in questions a second (at least one is
    positive). At or beyond what all can do together they are proportional to capacity."""
    total = sum(capacity.values())
    if rate >= total:
        return {name: mu / total for name, mu in capacity.items()}
    used = dict(sorted(capacity.items(), key=lambda item: -item[1]))
    while True:
        spare = (sum(used.values()) - rate) / sum(map(sqrt, used.values()))
        rates = {name: mu - sqrt(mu) * spare for name, mu in used.items()}
        if min(rates.values()) >= 0.0 or len(used) == 1:
            break
        used.popitem()  # the slowest gets nothing
    given = sum(rates.values())
    if given <= 0.0:  # no questions: all would go to the fastest
        return {name: float(name == next(iter(used))) for name in capacity}
    return {name: max(0.0, rates.get(name, 0.0)) / given for name in capacity}


def engine_load(state: PlanningState, costs: CostModel, sustained: bool) -> EngineLoad:
    """``sustained`` is what held before: the new value has hysteresis."""
    rate = question_rate(state)
    if not rate or not state.engines:
        return EngineLoad()
    mean = mean_question(state)
    service = {e.name: service_s(e, mean, costs) for e in state.engines}
    frames = ingest_loads(state, costs)
    ingest = {name: min(MOST_INGESTION, load) for name, load in frames.items()}
    capacity = {name: (1.0 - ingest[name]) / service[name] for name in service}
    shares = square_root_shares(rate, capacity)
    alone = rate / max(capacity.values())
    return EngineLoad(
        sustained=alone > (SUSTAINED_BELOW if sustained else SUSTAINED_ABOVE),
        shares=shares,
        utilisation={name: ingest[name] + rate * shares[name] * service[name] for name in service},
        service_s=service,
    )


@dataclass(frozen=True)
class MeanQuestion:
    """What the streams ask for, weighted by how often; in tokens."""

    prompt: float
    answer: float
    history: float


def mean_question(state: PlanningState) -> MeanQuestion:
    """At least one stream asks."""
    rate = prompt = answer = history = 0.0
    for stream in state.streams:
        weight = stream.question_rate_hz
        rate += weight
        prompt += weight * stream.prompt_tokens
        answer += weight * stream.answer_tokens
        history += weight * stream.history_tokens
    return MeanQuestion(prompt / rate, answer / rate, history / rate)


def service_s(engine: EngineState, mean: MeanQuestion, costs: CostModel) -> float:
    """An engine's time for one question: prefill, and its part of the steps of a full batch."""
    cost = costs.engines[engine.name]
    batch = engine.max_parallel if engine.batching else 1
    decode = max(0.0, mean.answer - 1.0) * cost.decode.seconds(batch, mean.history) / batch
    prefill = cost.prefill_s(mean.prompt, mean.history, engine.chunk_tokens)
    return max(1e-6, prefill + decode)
