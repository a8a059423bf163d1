"""What the comparison with llama-server sends, reads and makes of its figures; without the
server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.llama_server import Growth, Pair, Plan, Rate, RatePair, Result, question, report
from benchmarks.llama_server_process import Client, ServerError, events, read_completion
from benchmarks.llama_server_sides import Asked, PromptPieces, ServerSide, Settings, server_options
from benchmarks.stand_ins import (
    TOKENS,
    StandIn,
    embedding_rows,
    never_choose,
    stand_in,
    word_ids,
    write_lookup_encoder,
)
from edge_vlm_ros.model_profile import load_profile
from edge_vlm_ros.vision.onnx_encoder import OnnxEncoder
from tools.demo_model.gguf_file import Shape
from tools.demo_model.random_gguf import write_random_gguf
from tools.setup import llama_server as setup
from tools.setup import llama_wheel

PROFILE = Path(__file__).resolve().parents[2] / "config" / "models" / "demo.yaml"


# ---------------------------------------------------------------------------- stand-ins
@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stand_ins") / "lm.gguf"
    write_random_gguf(path, Shape("qwen3", 1, 64, 1, 1, 64, 64, 960, 128, 1e4), "Q8_0")
    return path


def test_an_encoded_stand_in_is_the_rows_of_its_tokens(weights: Path, tmp_path: Path) -> None:
    rows = embedding_rows(weights, 1024)
    assert rows.shape == (960, 64)
    write_lookup_encoder(tmp_path / "vision.onnx", rows)
    demo = load_profile(PROFILE).encoder
    backend = demo.backends[0].model_copy(update={"file": tmp_path / "vision.onnx"})
    profile = demo.model_copy(
        update={
            "size": (7, 7),
            "scale": 1.0,
            "n_embd": 64,
            "resize": "stretch",
        }
    )
    frame = StandIn((*range(256 - 24, 256 + 24), 959))  # both bytes of a number matter
    assert len(frame.token_ids) == TOKENS
    encoder = OnnxEncoder(profile, backend)
    assert np.array_equal(encoder.encode(frame.picture), rows[list(frame.token_ids)])
    white = np.full((7, 7, 3), 255, np.uint8)
    assert np.array_equal(encoder.encode(white), rows[[65535 % 960] * TOKENS])


def test_stand_ins_are_words_and_differ() -> None:
    words = set(word_ids())
    frames = [stand_in(stream, k).token_ids for stream in range(2) for k in range(3)]
    assert len(set(frames)) == len(frames)
    assert all(set(frame) <= words for frame in frames)
    assert stand_in(1, 2) == stand_in(1, 2)
    assert words.isdisjoint({0, 1, 2, 3, 4, 5})  # markers


def test_tokens_that_are_never_chosen_have_no_output(weights: Path, tmp_path: Path) -> None:
    copy = tmp_path / "lm.gguf"
    copy.write_bytes(weights.read_bytes())
    never_choose(copy, [2, 5])
    before, after = embedding_rows(weights, 960), embedding_rows(copy, 960)
    changed = np.flatnonzero((before != after).any(axis=1))
    assert list(changed) == [2, 5]
    assert not after[[2, 5]].any()


# ---------------------------------------------------------------------------- client
def sent(*values: dict[str, Any]) -> list[bytes]:
    """Server-sent events, line by line."""
    return [line for v in values for line in (b"data: " + json.dumps(v).encode() + b"\n", b"\n")]


END = {"tokens": [], "stop": True, "timings": {"cache_n": 11, "prompt_n": 3}}


def test_a_streamed_answer_is_read_to_its_end() -> None:
    lines = sent({"tokens": [5], "stop": False}, {"tokens": [6], "stop": False}, END)
    completion = read_completion([b": ping\n", *lines, b"data: [DONE]\n"], started=0.0)
    assert completion.token_ids == (5, 6)
    assert completion.cached_tokens == 11
    assert completion.ttft_ms > 0


@pytest.mark.parametrize(
    "lines",
    [
        sent({"tokens": [5], "stop": False}),  # cut off
        sent(END),  # no token at all
        sent({"error": {"message": "no room"}}),
        [b'error: {"message": "no room"}\n'],
    ],
)
def test_an_answer_that_is_not_whole_is_refused(lines: list[bytes]) -> None:
    with pytest.raises(ServerError):
        read_completion(lines, started=0.0)


def test_lines_that_are_no_events_are_skipped() -> None:
    assert list(events([b"\n", b": ping\n", b'data: {"tokens": []}\n'])) == [{"tokens": []}]


# ---------------------------------------------------------------------------- a server
@dataclass
class FakeServer:
    """Answers like llama-server, one token per character, and keeps what it was sent."""

    port: int = 0
    prompts: list[tuple[int, list[int], int]] = field(default_factory=list)
    forgets: bool = False
    _kept: dict[int, list[int]] = field(default_factory=dict)

    def complete(self, body: dict[str, Any]) -> list[bytes]:
        slot, prompt, n = body["id_slot"], body["prompt"], body["n_predict"]
        assert body["cache_prompt"]
        self.prompts.append((slot, prompt, n))
        kept = [] if self.forgets else self._kept.get(slot, [])
        cached = next(
            (i for i, (a, b) in enumerate(zip(kept, prompt, strict=False)) if a != b),
            min(len(kept), len(prompt)),
        )
        self._kept[slot] = prompt
        tokens = [{"tokens": [k], "stop": False} for k in range(n)]
        return sent(*tokens, END | {"timings": {"cache_n": cached}})


@contextmanager
def serving(fake: FakeServer) -> Iterator[Client]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            if self.path == "/tokenize":
                tokens = [ord(letter) for letter in body["content"]]
                self.wfile.write(json.dumps({"tokens": tokens}).encode())
            else:
                self.wfile.writelines(fake.complete(body))

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield Client(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


def server_side(client: Client) -> ServerSide:
    return ServerSide(client, PromptPieces.of(load_profile(PROFILE), client))


def text_of(tokens: Sequence[int], frames: Sequence[StandIn]) -> str:
    """The prompt as a person would read it: each frame's tokens by its index."""
    names = {frame.token_ids: f"[{index}]" for index, frame in enumerate(frames)}
    text, k = "", 0
    while k < len(tokens):
        name = names.get(tuple(tokens[k : k + TOKENS]))
        text += name or chr(tokens[k])
        k += TOKENS if name else 1
    return text


def test_the_whole_history_is_sent_with_each_question() -> None:
    frames = [StandIn(tuple(range(n, n + TOKENS))) for n in (1000, 2000, 3000)]
    fake = FakeServer()
    with serving(fake) as client:
        side = server_side(client)
        side.see(0, frames[0])
        side.see(1, frames[2])
        side.catch_up()
        asked = side.ask(0, "Now?", 3, new=frames[1])
        again = side.ask(0, "What?", 1)
    opening = "<|im_start|>user\n"
    shown = [f"<|vision_start|>[{k}]<|vision_end|>\n" for k in range(3)]
    asking = "<|im_end|>\n<|im_start|>assistant\n"
    assert [(slot, text_of(prompt, frames), n) for slot, prompt, n in fake.prompts] == [
        (0, opening + shown[0], 0),
        (1, opening + shown[2], 0),
        (0, opening + shown[0] + shown[1] + "Now?" + asking, 3),
        (0, opening + shown[0] + shown[1] + "What?" + asking, 1),
    ]
    assert asked.token_ids == (0, 1, 2)
    assert again.prompt_tokens == len(fake.prompts[-1][1])


def test_a_slot_that_lost_its_history_is_an_error_and_not_a_result() -> None:
    fake = FakeServer()
    with serving(fake) as client:
        side = server_side(client)
        side.ask(0, "What?", 1, new=stand_in(0, 0))
        fake.forgets = True
        with pytest.raises(ServerError, match="had 0 of"):
            side.ask(0, "Now?", 1)
        side.reset()
        side.ask(0, "Now?", 1, new=stand_in(0, 1))


def test_both_sides_get_the_same_settings() -> None:
    options = server_options(Path("lm.gguf"), Settings(n_threads=3, n_ctx=512))
    value = dict(zip(options, options[1:], strict=False))
    assert (value["--threads"], value["--threads-batch"], value["--ctx-size"]) == ("3", "3", "512")
    assert (value["--cache-type-k"], value["--cache-type-v"]) == ("q8_0", "q8_0")
    assert value["--flash-attn"] == "on"


def test_the_server_is_built_as_the_wheel_is(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = setup.build_arguments()
    assert set(llama_wheel.build_arguments().split()) <= set(arguments)
    before = setup.cache_directory()
    assert before.parent.name == "llama_server"
    monkeypatch.setattr(llama_wheel, "build_arguments", lambda: "-DGGML_OPENMP=ON")
    assert setup.cache_directory() != before


# ---------------------------------------------------------------------------- figures
def asked(ttft_ms: float, tokens: int = 64, answer: tuple[int, ...] = (1, 2)) -> Asked:
    return Asked(ttft_ms, answer, tokens)


def pair(frames: int, ours: float, server: float, tokens: int = 64) -> Pair:
    return Pair(frames, asked(ours, tokens), asked(server, tokens))


def rate(requests_s: float, ttft_ms: float, unasked_ms: float) -> Rate:
    return Rate(requests_s, (asked(ttft_ms), asked(ttft_ms)), asked(unasked_ms))


def test_sides_that_were_given_different_prompts_are_no_pair() -> None:
    with pytest.raises(RuntimeError, match="64 and 65"):
        Pair(1, asked(1.0, 64), asked(1.0, 65))


def test_ratios_are_taken_within_pairs_of_a_band() -> None:
    """A machine that is ten times slower for one frame changes no ratio."""
    arriving = (pair(1, 10.0, 30.0, 64), pair(2, 100.0, 300.0, 116), pair(3, 10.0, 30.0, 168))
    computed = (pair(1, 5.0, 10.0), pair(2, 50.0, 100.0), pair(3, 5.0, 10.0))
    growth = Growth(arriving, computed)
    rates = (RatePair(rate(2.0, 8.0, 5.0), rate(1.0, 4.0, 50.0)),)
    text = report(Result("model", Plan(1, 1, frames=3, band=2), growth, growth, rates))
    assert "| 1-2 | 90 | 165.0 | 55.0 | **3.00** | 55.0 | 27.5 | **2.00** | **6.00** |" in text
    assert "| 3 | 168 | 30.0 | 10.0 | **3.00** | 10.0 | 5.0 | **2.00** | **6.00** |" in text
    assert "| requests/s | 1.000 | 2.000 | **2.00** |" in text
    assert "| first token meanwhile, ms | 4.0 | 8.0 | **0.50** |" in text
    assert "without a question, ms | 50.0 | 5.0 | **10.00** |" in text
    assert "15 of 15 answers have the same tokens on both sides; lengths: 2." in text


def test_answers_that_differ_are_told() -> None:
    differs = Pair(1, asked(1.0), asked(1.0, answer=(1, 3, 4)))
    growth = Growth((differs,), (pair(1, 1.0, 1.0),))
    rates = (RatePair(rate(1.0, 1.0, 1.0), rate(1.0, 1.0, 1.0)),)
    text = report(Result("model", Plan(1, 1, frames=1), growth, growth, rates))
    assert "5 of 7 answers have the same tokens on both sides; lengths: 2, 3." in text


def test_questions_share_no_beginning_with_the_one_before() -> None:
    questions = [question(n) for n in range(40)]
    firsts = [text.split()[0] for text in questions]
    assert all(a != b for a, b in zip(firsts, firsts[1:], strict=False))
    assert len(set(questions)) == len(questions)
