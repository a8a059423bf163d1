"""Cases in which llama.cpp would end the process: each is run in a process of its own.

`python abort_cases.py <case>` prints one line for each thing that must happen.
"""

from __future__ import annotations

import ctypes
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import llama_cpp.llama_cpp as llama
import numpy as np

from edge_vlm_ros.engines import devices, ggml, native_abort
from edge_vlm_ros.engines.context import LlamaContext
from edge_vlm_ros.engines.devices import (
    CPU,
    Device,
    DeviceInfo,
    list_server_devices,
    open_device,
)
from edge_vlm_ros.engines.errors import DeviceError, NativeAbortError
from edge_vlm_ros.engines.model import LlamaModel
from edge_vlm_ros.engines.rpc_server import RpcServer

MODEL = Path(__file__).resolve().parents[2] / "models" / "demo" / "lm.Q8_0.gguf"
PATIENCE_S = 60.0


def say(*words: object) -> None:
    print(*words, flush=True)


def kill(device: Device) -> None:
    assert device.server is not None
    device.server._process.kill()
    device.server._process.wait()


def context_on(device: Device, model: LlamaModel | None = None) -> LlamaContext:
    model = model or LlamaModel(MODEL, device=device)
    return LlamaContext(model, n_ctx=256, n_seq_max=4, n_batch=64, kv_type="q8_0", n_threads=1)


def greedy(context: LlamaContext, n: int) -> list[int]:
    tokens = [5]
    n_vocab = llama.llama_vocab_n_tokens(
        llama.llama_model_get_vocab(llama.llama_get_model(context.handle))
    )
    for position in range(n):
        context.decode_tokens(tokens[-1:], [position], [0], [True])
        logits = llama.llama_get_logits_ith(context.handle, -1)
        tokens.append(int(np.ctypeslib.as_array(logits, (n_vocab,)).argmax()))
    return tokens


def on_a_new_server() -> None:
    """What a restart does: another server, another port, the same computation."""
    device = open_device("rpc", n_threads=1)
    context = context_on(device)
    say("new server computes the same:", greedy(context, 20) == greedy(context_on(CPU), 20))
    context.close()
    device.close()


class Engine(threading.Thread):
    """Decodes for ever, under a guard."""

    def __init__(self, context: LlamaContext, device: Device) -> None:
        super().__init__(name="engine", daemon=True)
        self.context, self.device = context, device
        self.decoding, self.lost = threading.Event(), threading.Event()
        self.message = ""

    def run(self) -> None:
        with native_abort.guard(self.device.endpoint, self.on_abort, self.device.is_lost):
            while True:
                self.context.trim(0)
                greedy(self.context, 100)
                self.decoding.set()

    def on_abort(self, message: str) -> None:
        self.message = message
        self.lost.set()


def decode() -> None:
    device = open_device("rpc", n_threads=1)
    model = LlamaModel(MODEL, device=device)
    engine = Engine(context_on(device, model), device)
    engine.start()
    assert engine.decoding.wait(PATIENCE_S)
    kill(device)
    say("engine told:", engine.lost.wait(PATIENCE_S), "crashed" in engine.message)
    say("its thread stays:", engine.is_alive())
    engine.context.close()
    model.close()
    device.close()
    say("abandoned")
    on_a_new_server()


def load() -> None:
    device = open_device("rpc", n_threads=1)
    seen: list[float] = []

    def progress(fraction: float) -> None:
        if not seen:
            kill(device)
        seen.append(fraction)

    try:
        LlamaModel(MODEL, progress, device=device)
    except NativeAbortError as error:
        say("load raised:", error)
    say("lost:", device.is_lost(), "in the middle:", seen[-1] < 1)
    device.close()
    on_a_new_server()


def context() -> None:
    device = open_device("rpc", n_threads=1)
    model = LlamaModel(MODEL, device=device)
    kill(device)
    try:
        context_on(device, model)
    except NativeAbortError as error:
        say("context raised:", error)
    on_a_new_server()


def transfer(what: str) -> None:
    device = open_device("rpc", n_threads=1)
    held = context_on(device)
    greedy(held, 40)
    blob = held.export_range(0, 0, 20)
    held.trim(1)
    kill(device)
    try:
        if what == "export":
            device.call(lambda: held.export_range(0, 20, 40))
        else:
            device.call(lambda: held.import_range(blob, 1, 0, 20))
    except NativeAbortError as error:
        say(what, "raised:", error)
    held.close()
    on_a_new_server()


def free(what: str) -> None:
    """What close() avoids: free all the same."""
    device = open_device("rpc", n_threads=1)
    model = LlamaModel(MODEL, device=device)
    held = context_on(device, model)
    greedy(held, 5)
    kill(device)
    try:
        if what == "context":
            device.call(lambda: llama.llama_free(held.handle))
        else:
            device.call(lambda: llama.llama_model_free(model.handle))
    except NativeAbortError as error:
        say("free raised:", error)
    on_a_new_server()


def free_context() -> None:
    free("context")


def free_model() -> None:
    free("model")


def export_range() -> None:
    transfer("export")


def import_range() -> None:
    transfer("import")


def close() -> None:
    """A server that died while nobody used it."""
    device = open_device("rpc", n_threads=1)
    model = LlamaModel(MODEL, device=device)
    held = context_on(device, model)
    greedy(held, 5)
    kill(device)
    say("lost:", device.is_lost())
    held.close()
    model.close()
    device.close()
    say("abandoned")
    on_a_new_server()


def listing() -> None:
    """The server ends while it is asked for its devices; nothing else uses the connection."""
    server = RpcServer(n_threads=1)
    describe = ggml.describe

    def describe_later(handle: int) -> DeviceInfo:
        server.close()
        return describe(handle)

    ggml.describe = describe_later
    try:
        list_server_devices(server.endpoint)
    except DeviceError as error:
        say("listing raised:", str(error).replace(server.endpoint, "ENDPOINT"))
    on_a_new_server()


def vanishes() -> None:
    """The server ends between our check and llama.cpp's connection: a lock stays held."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    check, devices.check_server = devices.check_server, lambda *_: None
    for text in (f"rpc:{endpoint}", "rpc"):
        try:
            open_device(text)
        except DeviceError as error:
            say(text.partition(":")[0], "refused:", error)
        devices.check_server = check


# ------------------------------------------------------------------ aborts without a server
def ggml_abort() -> None:
    """What a failed assertion in llama.cpp does."""
    ggml.base().ggml_abort(b"some_file.cpp", 7, b"%s", b"something impossible")


def in_native_thread(function: Callable[[], None]) -> None:
    """Call a function in a thread that Python has not started, as a native library's are."""
    start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: function())
    _kept.append(start)
    thread = ctypes.c_ulong()
    assert ctypes.CDLL(None).pthread_create(ctypes.byref(thread), None, start, None) == 0


_kept: list[object] = []


def own_thread() -> None:
    """Only the guards of the aborting thread are told, and guards of what is lost."""
    told: queue.SimpleQueue[str] = queue.SimpleQueue()

    def other_engine(name: str, is_lost: Callable[[], bool]) -> None:
        with native_abort.guard(name, lambda _: told.put(name), is_lost):
            ready.wait()
            time.sleep(1e6)

    ready = threading.Barrier(3)
    for name, lost in (("unharmed", False), ("lost too", True)):
        arguments = (name, lambda lost=lost: lost)
        threading.Thread(target=other_engine, args=arguments, daemon=True).start()
    ready.wait()
    try:
        native_abort.run_guarded(ggml_abort, "mine")
    except NativeAbortError as error:
        say("raised:", error)
    say("told:", told.get(timeout=PATIENCE_S), told.empty())
    say("remembered:", native_abort.aborted("mine") != "", native_abort.aborted("unharmed") == "")


def native_thread() -> None:
    """A thread that a library started from a guarded thread is known by its inherited name."""
    done = threading.Event()

    def hang_on_it() -> None:
        in_native_thread(ggml_abort)
        done.wait()

    try:
        native_abort.run_guarded(hang_on_it, "mine")
    except NativeAbortError as error:
        say("raised:", error)


def unclaimed() -> None:
    """Nobody is guarded: the process must end, and say why."""
    native_abort.install()
    threading.Thread(target=ggml_abort, daemon=True).start()
    time.sleep(PATIENCE_S)


def after_a_guard() -> None:
    """A guard that was left protects nothing."""
    said = native_abort.run_guarded(lambda: "fine", "mine")
    try:
        native_abort.run_guarded(lambda: 1 // 0, "mine")
    except ZeroDivisionError:
        said += ", failed in Python"
    name = Path("/proc/self/comm")
    names = [name.read_text()]
    with native_abort.guard("mine", lambda _: say("told")):
        names.append(name.read_text())
    names.append(name.read_text())
    say(said, names[0] == names[2] != names[1])
    ggml_abort()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    say("ended")
