"""Training rows: streams packed side by side, each a history followed by independent questions.

A question sees the history and itself only (see `attention_mask`), and its positions start at the
end of the history: exactly as at run time, where a question is asked and taken back.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor

from edge_vlm_ros.demo.questions import KIND_NAMES, qa
from edge_vlm_ros.demo.world import MAX_FRAMES, Scene, World
from tools.demo_model.frame_params import FrameParams, grid_targets
from tools.demo_model.tokenizer import PromptEncoder

# Planes of `Batch.tokens`.
ID, STREAM, SEGMENT, POSITION, LEARN = range(5)
N_PLANES = 5

# How an answer was asked for (`Batch.answers`).
AFTER_FRAMES, AFTER_COMMITS, COMMITTED = range(3)
GROUPS = ("after frames only", "after commits", "committed turns")

_FIRST_LENGTHS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 12)
_LENGTHS = (1, 1, 2, 2, 3, 4, 5, 6, 8, 10, 12)
_MAX_MISSES = 3  # failed tries to add a question, after which a stream has enough


@dataclass(frozen=True)
class RowShape:
    rows: int
    tokens: int  # per row
    frames: int  # per row, over all its streams

    @property
    def batch_frames(self) -> int:
        return self.rows * self.frames


@dataclass(frozen=True)
class Batch:
    """tokens: int16 [N_PLANES, rows, tokens]: id (IMAGE for an image token), stream in the row (-1:
    padding), segment (0: history, else the question's number), position, and 1 + the index of the
    answer that the token belongs to (0: nothing to learn).
    image_at, learn_at: flat indices of the image tokens and of the tokens to learn.
    answers: int16 [answers, 3]: kind, number of frames, group. The rest: see FrameParams and
    grid_targets; `background` is padded to one row per frame, so that no shape depends on data.
    """

    tokens: Tensor
    image_at: Tensor
    learn_at: Tensor
    answers: Tensor
    objects: Tensor
    background: Tensor
    scene: Tensor
    targets: Tensor  # [2, frames, grid * grid]

    def to(self, device: torch.device) -> Batch:
        return Batch(*(t.to(device, non_blocking=True) for t in vars(self).values()))

    def pin_memory(self) -> Batch:
        return Batch(*(t.pin_memory() for t in vars(self).values()))


@dataclass
class StreamTokens:
    """The tokens of a history, and what is to be learnt of it."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    learn: list[int] = field(default_factory=list)  # 1 + index into `answers`, or 0
    answers: list[tuple[int, int, int]] = field(default_factory=list)
    next_position: int = 0

    def add(self, ids: Sequence[int], learn: Sequence[int] | None = None) -> None:
        n = len(ids)
        self.ids += ids
        self.learn += learn or [0] * n
        self.positions += range(self.next_position, self.next_position + n)
        self.next_position += n


@dataclass(frozen=True)
class Stream:
    scene: Scene  # the frames that are shown
    tokens: StreamTokens
    group: int


def draw_stream(rng: random.Random, prompt: PromptEncoder, world: World, n_frames: int) -> Stream:
    """A history that shows n_frames frames, in a third of the cases with committed turns."""
    commits = rng.random() < 0.35
    # Sometimes the frames before a turn have left the context, and only the turn is there.
    dropped = rng.randint(1, 5) if commits and rng.random() < 0.25 else 0
    scene = Scene.random(rng, n_frames + dropped, world)
    after: list[int] = []
    if commits:
        after = sorted(rng.randrange(scene.n_frames) for _ in range(rng.choice((1, 1, 2))))
    if dropped:
        after = sorted([rng.randrange(dropped), *after[1:]])
    tokens = StreamTokens()
    tokens.add(prompt.open)
    if rng.random() < 0.4:  # a gap, as if frames had been dropped
        tokens.next_position += rng.randrange(2400)
    for frame in range(scene.n_frames):
        if frame >= dropped:
            tokens.add(prompt.frame)
        for _ in range(after.count(frame)):
            seen = scene.window(max(0, frame + 1 - MAX_FRAMES), frame + 1)
            _add_turn(tokens, prompt, seen, rng, frame + 1, learn=not dropped)
            if frame < dropped and rng.random() < 0.4:
                tokens.next_position += rng.randrange(600)
    shown = scene.window(dropped, scene.n_frames)
    return Stream(shown, tokens, AFTER_COMMITS if commits else AFTER_FRAMES)


def _add_turn(
    tokens: StreamTokens,
    prompt: PromptEncoder,
    seen: Scene,
    rng: random.Random,
    n_frames: int,
    *,
    learn: bool,
) -> None:
    turn = qa(seen, rng)
    assert turn is not None
    kind, question, answer = turn
    tokens.add(prompt.question(question))
    ids = prompt.text(answer)
    if not learn:  # its frames are not in the context
        tokens.add(ids + prompt.close)
        return
    tokens.answers.append((KIND_NAMES.index(kind), n_frames, COMMITTED))
    mark = len(tokens.answers)
    # The first token of `close` is the stop token, which the model has to produce.
    tokens.add(ids + prompt.close, [mark] * (len(ids) + 1) + [0] * (len(prompt.close) - 1))


def draw_batch(
    rng: random.Random,
    looks: np.random.Generator,
    prompt: PromptEncoder,
    shape: RowShape,
    world: World,
    grid: int,
) -> Batch:
    tokens = np.zeros((N_PLANES, shape.rows, shape.tokens), np.int16)
    tokens[STREAM] = -1
    scenes: list[Scene] = []
    answers: list[tuple[int, int, int]] = []
    for row in range(shape.rows):
        streams = _draw_row(rng, prompt, shape, world)
        scenes += [s.scene for s in streams]
        _pack(tokens[:, row], streams, rng, prompt, answers)
    params = FrameParams.draw(scenes, looks)
    background = np.zeros((shape.batch_frames, params.background.shape[1]), np.float32)
    background[: len(params.background)] = params.background
    flat = tokens.reshape(N_PLANES, -1)
    return Batch(
        tokens=torch.as_tensor(tokens),
        image_at=torch.as_tensor(np.flatnonzero(flat[ID] == PromptEncoder.IMAGE)),
        learn_at=torch.as_tensor(np.flatnonzero(flat[LEARN])),
        answers=torch.as_tensor(np.array(answers, np.int16)),
        objects=torch.as_tensor(params.objects),
        background=torch.as_tensor(background),
        scene=torch.as_tensor(params.scene),
        targets=torch.as_tensor(np.stack(grid_targets(params.objects, grid))),
    )


def _draw_row(
    rng: random.Random, prompt: PromptEncoder, shape: RowShape, world: World
) -> list[Stream]:
    """Streams whose frames sum to shape.frames."""
    streams: list[Stream] = []
    left = shape.frames
    while left:
        n = rng.choice(_LENGTHS if streams else _FIRST_LENGTHS)
        if n > left:
            n = rng.choice([length for length in _LENGTHS if length <= left])
        streams.append(draw_stream(rng, prompt, world, n))
        left -= n
    rng.shuffle(streams)
    return streams


def _pack(
    row: npt.NDArray[np.int16],
    streams: Sequence[Stream],
    rng: random.Random,
    prompt: PromptEncoder,
    answers: list[tuple[int, int, int]],
) -> None:
    """Write streams and as many questions as fit into a row [N_PLANES, tokens]."""
    space = row.shape[1] - sum(len(s.tokens.ids) for s in streams)
    weights = [s.scene.n_frames + 3 for s in streams]
    at = segment = 0
    for index, stream in enumerate(streams):
        t = stream.tokens
        n = len(t.ids)
        learn = [mark + len(answers) if mark else 0 for mark in t.learn]
        answers += t.answers
        row[:, at : at + n] = (t.ids, [index] * n, [0] * n, t.positions, learn)
        at += n
        is_last = index == len(streams) - 1
        budget = int(space * weights[index] / sum(weights[index:]))
        asked: set[str] = set()
        misses = 0
        while budget > 20 and misses < _MAX_MISSES:
            turn = qa(stream.scene, rng)
            assert turn is not None
            kind, question, answer = turn
            q, a = prompt.question(question), [*prompt.text(answer), prompt.stop]
            n = len(q) + len(a)
            # A question may overdraw its stream's share a little, but not the row.
            if question in asked or n > (budget if is_last else min(space, budget + 20)):
                misses += 1
                continue
            asked.add(question)
            segment += 1
            answers.append((KIND_NAMES.index(kind), stream.scene.n_frames, stream.group))
            positions = range(t.next_position, t.next_position + n)
            learn = [0] * len(q) + [len(answers)] * len(a)
            row[:, at : at + n] = (q + a, [index] * n, [segment] * n, positions, learn)
            at, budget, space = at + n, budget - n, space - n


def attention_mask(tokens: Tensor) -> Tensor:
    """[rows, 1, tokens, tokens]: causal, within a stream, and of the questions only one's own."""
    stream, segment = tokens[STREAM], tokens[SEGMENT]
    at = torch.arange(stream.shape[1], device=stream.device)
    causal = at[:, None] >= at[None]
    same_stream = stream[:, :, None] == stream[:, None]
    history = segment[:, None] == 0
    same_segment = segment[:, :, None] == segment[:, None]
    return (causal & same_stream & (history | same_segment))[:, None]


class BatchSource(torch.utils.data.IterableDataset[Batch]):
    """Endless batches, drawn in worker processes with Python and NumPy only."""

    def __init__(
        self,
        tokenizer: str,
        n_image_tokens: int,
        shape: RowShape,
        world: World,
        grid: int,
        seed: int,
    ) -> None:
        self._tokenizer = tokenizer  # the text of tokenizer.json
        self._n_image_tokens = n_image_tokens
        self._shape, self._world, self._grid = shape, world, grid
        self._seed = seed

    def __iter__(self) -> Iterator[Batch]:
        worker = torch.utils.data.get_worker_info()
        seed = self._seed * 1000 + (worker.id if worker else 0)
        rng, looks = random.Random(seed), np.random.default_rng(seed)
        prompt = PromptEncoder(Tokenizer.from_str(self._tokenizer), self._n_image_tokens)
        if worker:
            torch.set_num_threads(1)
        while True:
            yield draw_batch(rng, looks, prompt, self._shape, self._world, self._grid)
