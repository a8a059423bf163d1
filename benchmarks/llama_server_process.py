"""A llama-server process on loopback, and a client of it."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

START_TIMEOUT_S = 120.0
_REQUEST_TIMEOUT_S = 300.0


class ServerError(RuntimeError):
    """The server did not start, refused a request or ended an answer with an error."""


@dataclass(frozen=True)
class Completion:
    """One answer: milliseconds to the first token, the token ids, and how many tokens of the prompt
    the server took from its cache."""

    ttft_ms: float
    token_ids: tuple[int, ...]
    cached_tokens: int


class LlamaServer:
    """Starts the executable with ``options`` on a free port; raises ServerError."""

    def __init__(self, executable: Path, options: Sequence[str], log: IO[bytes]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port: int = listener.getsockname()[1]
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        self._log = log
        self._process = subprocess.Popen(
            [str(executable), *address, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            code = self._process.poll()
            if code is not None:
                raise ServerError(f"llama-server ended with {code}:\n{self._last_lines()}")
            try:
                Client(self.port).check_health()
                return
            except (OSError, ServerError):
                time.sleep(0.1)
        raise ServerError(f"llama-server was not ready in {START_TIMEOUT_S:g} s")

    def _last_lines(self) -> str:
        self._log.seek(0)
        return b"".join(self._log.readlines()[-20:]).decode(errors="replace")

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Client:
    """Asks a server. Every request has a connection of its own: llama-server ends the connection
    after a streamed answer, and after five idle seconds."""

    def __init__(self, port: int) -> None:
        self._port = port

    def check_health(self) -> None:
        """Raises OSError or ServerError where the server is not ready."""
        with self._request("GET", "/health"):
            pass

    def tokenize(self, text: str, *, parse_special: bool) -> tuple[int, ...]:
        body = {"content": text, "add_special": False, "parse_special": parse_special}
        with self._request("POST", "/tokenize", body) as response:
            return tuple(json.load(response)["tokens"])

    def compute(self, prompt: Sequence[int], slot: int) -> None:
        """Have the slot compute a prompt and keep it, without an answer."""
        body = {"prompt": list(prompt), "id_slot": slot, "n_predict": 0, "cache_prompt": True}
        with self._request("POST", "/completion", body) as response:
            response.read()

    def complete(
        self, prompt: Sequence[int], slot: int, n_tokens: int, started: float
    ) -> Completion:
        """The greedy answer to a prompt, streamed; the time to its first token counts from
        ``started``, a reading of ``time.perf_counter()``. Raises ServerError."""
        with self._request("POST", "/completion", completion_request(prompt, slot, n_tokens)) as r:
            return read_completion(r, started)

    @contextmanager
    def _request(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_REQUEST_TIMEOUT_S)
        with closing(connection):
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                raise ServerError(f"llama-server answered {response.status}: {response.read()!r}")
            yield response


def read_completion(lines: Iterable[bytes], started: float) -> Completion:
    """Read a streamed answer. Raises ServerError when the stream ends before the answer does."""
    token_ids: list[int] = []
    first: float | None = None
    last: dict[str, Any] = {}
    for event in events(lines):
        if event["tokens"] and first is None:
            first = time.perf_counter()
        token_ids += event["tokens"]
        last = event
    if first is None or not last.get("stop"):
        raise ServerError(f"llama-server ended an answer early: {last}")
    ttft_ms = 1000.0 * (first - started)
    return Completion(ttft_ms, tuple(token_ids), last["timings"]["cache_n"])


def completion_request(prompt: Sequence[int], slot: int, n_tokens: int) -> dict[str, Any]:
    """Greedy, the cheapest way that the server has, with the prompt's cached part reused."""
    return {
        "prompt": list(prompt),
        "id_slot": slot,
        "n_predict": n_tokens,
        "cache_prompt": True,
        "stream": True,
        "samplers": ["top_k"],
        "top_k": 1,
    }


def events(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The data of server-sent events. Raises ServerError where the server tells one."""
    for line in lines:
        field, _, value = line.partition(b":")
        if field == b"error":
            raise ServerError(f"llama-server failed: {value.decode().strip()}")
        if field != b"data" or value.strip() == b"[DONE]":
            continue
        event = json.loads(value)
        if "error" in event:
            raise ServerError(f"llama-server failed: {event['error']}")
        yield event
