"""QnnEncoder with stand-ins for its libraries. `make test-qnn` runs the real ones."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qnn_stand_ins import Options, StandIns

from edge_vlm_ros.model_profile import ProfileError, QnnBackend, load_profile
from edge_vlm_ros.vision import qnn_cache, qnn_runtime
from edge_vlm_ros.vision.encoder import Encoder
from edge_vlm_ros.vision.errors import EncoderError
from edge_vlm_ros.vision.opening import open_encoder
from edge_vlm_ros.vision.qnn_encoder import QnnEncoder

ROOT = Path(__file__).resolve().parents[2]
PROFILE = load_profile(ROOT / "config/models/demo.yaml").encoder
QUANTISED = "QuantizeLinear MatMul DequantizeLinear"
PICTURE = np.random.default_rng(1).integers(0, 256, (224, 224, 3), dtype=np.uint8)


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> StandIns:
    return installed(monkeypatch, StandIns())


def installed(monkeypatch: pytest.MonkeyPatch, stand_ins: StandIns) -> StandIns:
    monkeypatch.setitem(sys.modules, "onnxruntime", stand_ins.onnxruntime)
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", stand_ins.plugin)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return stand_ins


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "vision.onnx"
    path.write_text(QUANTISED)
    return path


def opened(model: Path, **fields: Any) -> QnnEncoder:
    backend = QnnBackend(type="qnn", file=model, **{"input": "image", "output": "embeds", **fields})
    return QnnEncoder(PROFILE, backend, cache=model.parent / "cache")


def compiled_files(model: Path) -> list[Path]:
    return sorted((model.parent / "cache").rglob("*.onnx"))


def test_it_is_an_encoder_and_names_the_npu(libraries: StandIns, model: Path) -> None:
    encoder: Encoder = opened(model)
    assert encoder.backend == "Qualcomm HTP v68, emulated on x86-64"
    assert encoder.input_size == (224, 224) and (encoder.n_tokens, encoder.n_embd) == (49, 256)
    embeddings = encoder.encode(PICTURE)
    assert embeddings.shape == (49, 256) and embeddings.dtype == np.float32
    (fed,) = libraries.fed
    assert np.array_equal(fed[0], (PICTURE / 255).astype(np.float32).transpose(2, 0, 1))


def test_everything_must_be_on_the_npu(libraries: StandIns, model: Path) -> None:
    opened(model, soc_model=43, htp_arch=73)
    (options,) = libraries.options
    assert isinstance(options, Options)
    assert options.entries["session.disable_cpu_ep_fallback"] == "1"
    assert options.provider["backend_path"] == "libQnnHtp.so"
    assert options.provider["soc_model"] == "43" and options.provider["htp_arch"] == "73"
    assert options.provider["offload_graph_io_quantization"] == "0"


def test_operations_that_the_npu_lacks_are_named(libraries: StandIns, model: Path) -> None:
    model.write_text(f"{QUANTISED} LayerNormalization LayerNormalization")
    with pytest.raises(EncoderError, match=r"soc_model 35, htp_arch 68.*: 2 LayerNormalization"):
        opened(model)


def test_a_session_that_uses_the_cpu_all_the_same_is_refused(
    libraries: StandIns, model: Path
) -> None:
    libraries.honest = False
    model.write_text(f"{QUANTISED} LayerNormalization")
    with pytest.raises(EncoderError, match="cannot run: 1 LayerNormalization"):
        opened(model)


def test_a_backend_that_does_not_start_is_said(libraries: StandIns, model: Path) -> None:
    libraries.starts = False
    with pytest.raises(EncoderError, match="does not start with soc_model 35.*remoteproc"):
        opened(model)
    assert libraries.options[-1].log_severity_level == 3  # so the library says why
    libraries.honest = False
    with pytest.raises(EncoderError, match="cannot run"):
        opened(model)


def test_a_float_model_is_refused_with_the_way_to_quantise_it(
    libraries: StandIns, model: Path
) -> None:
    model.write_text("MatMul LayerNormalization")
    with pytest.raises(EncoderError, match="not quantised.*tools.convert_encoder qdq"):
        opened(model)


def test_a_damaged_model_is_refused(libraries: StandIns, model: Path) -> None:
    libraries.refuses = lambda words: True
    with pytest.raises(EncoderError, match="cannot load .*make the file again"):
        opened(model)


def test_a_missing_file_is_said(libraries: StandIns, tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match="no encoder file .*tools.convert_encoder qdq"):
        opened(tmp_path / "nothing.onnx")


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"input": "pixels"}, "no input named"), ({"output": "features"}, "no output named")],
)
def test_a_model_that_differs_from_its_profile_is_refused(
    libraries: StandIns, model: Path, fields: dict[str, str], words: str
) -> None:
    with pytest.raises(EncoderError, match=words):
        opened(model, **fields)


# ---- libraries and the board


def test_without_the_plugin_it_says_what_to_install(
    libraries: StandIns, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", None)
    with pytest.raises(EncoderError, match="pip install onnxruntime-qnn==.*Python 3.11"):
        opened(model)


def test_the_version_to_install_is_the_one_of_setup_py_and_of_the_tests() -> None:
    from tools.setup import npu_qnn
    from tools.setup.venv import declarations

    assert qnn_runtime.REQUIREMENT in declarations()["EXTRAS_REQUIRE"]["qnn"]
    assert qnn_runtime.REQUIREMENT in npu_qnn.REQUIREMENTS


def test_an_onnxruntime_that_is_too_old_is_said(libraries: StandIns, model: Path) -> None:
    del libraries.onnxruntime.register_execution_provider_library
    with pytest.raises(EncoderError, match="install onnxruntime 1.24.2 or newer"):
        opened(model)


def test_no_device_is_said(libraries: StandIns, model: Path) -> None:
    libraries.onnxruntime.get_ep_devices = lambda: []
    with pytest.raises(EncoderError, match="finds no NPU"):
        opened(model)


def test_a_second_encoder_does_not_register_the_plugin_again(
    libraries: StandIns, model: Path
) -> None:
    opened(model).close()
    opened(model).close()


def test_on_arm_the_board_is_looked_at_first(
    libraries: StandIns, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", None)
    looked_at: list[Path] = []
    monkeypatch.setattr(qnn_runtime, "check_board", looked_at.append)
    with pytest.raises(EncoderError, match="pip install"):
        opened(model)
    assert looked_at == [Path("/dev")]


def test_on_a_board_the_backend_is_the_npu(
    libraries: StandIns, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulated = opened(model)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(qnn_runtime, "check_board", lambda devices: None)
    on_board = opened(model)
    assert on_board.backend == "Qualcomm HTP v68"
    assert on_board.identity != emulated.identity


def test_another_computer_than_a_qualcomm_board(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match="not a Qualcomm board.*docker run --device"):
        qnn_runtime.check_board(tmp_path)


def test_a_device_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = tmp_path / "fastrpc-cdsp"
    node.touch()

    def refuse(path: Path, flags: int) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(EncoderError, match=r"fastrpc-cdsp \(Permission denied\).*usermod"):
        qnn_runtime.check_board(tmp_path)


def test_a_board_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fastrpc-cdsp-secure").touch()

    def load(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(ctypes, "CDLL", load)
    with pytest.raises(EncoderError, match=r"libcdsprpc.so: cannot open.*libfastrpc1"):
        qnn_runtime.check_board(tmp_path)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    qnn_runtime.check_board(tmp_path)


def test_the_name_of_a_processor_is_refused_by_the_profile(tmp_path: Path) -> None:
    text = (ROOT / "config/models/demo.yaml").read_text()
    named = text.replace("type: onnx ", "type: qnn\n      soc_model: QCS6490\n      #", 1)
    (tmp_path / "named.yaml").write_text(named)
    with pytest.raises(ProfileError, match="soc_model: is 'QCS6490'.*valid integer"):
        load_profile(tmp_path / "named.yaml")


def test_an_encoder_that_cannot_start_is_passed_over(model: Path) -> None:
    """With the real libraries of this environment, which has no onnxruntime-qnn."""
    pytest.importorskip("onnxruntime")
    qnn = QnnBackend(type="qnn", file=model, input="image", output="embeds")
    both = PROFILE.model_copy(update={"backends": (qnn, *PROFILE.backends)})
    found = open_encoder(both)
    assert found.encoders[0].backend == "ONNX Runtime, CPU, 1 thread"
    assert len(found.refused) == 1 and "qnn is not used" in found.refused[0]
    found.close()


def test_importing_the_module_loads_no_library() -> None:
    code = (
        "import sys\n"
        "import edge_vlm_ros.vision.qnn_encoder\n"
        "assert not {'onnxruntime', 'onnxruntime_qnn'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# ---- frames


def test_a_failing_npu_is_said(libraries: StandIns, model: Path) -> None:
    encoder = opened(model)

    def fail(image: np.ndarray) -> None:
        raise RuntimeError("QNN graph execute error")

    libraries.output = fail
    with pytest.raises(EncoderError, match="could not encode a frame: QNN graph execute error"):
        encoder.encode(PICTURE)


def test_results_are_checked(libraries: StandIns, model: Path) -> None:
    encoder = opened(model)
    libraries.output = lambda image: np.full((1, 49, 256), np.inf)
    with pytest.raises(EncoderError, match="inf or nan"):
        encoder.encode(PICTURE)
    libraries.output = lambda image: np.zeros((1, 48, 256))
    with pytest.raises(EncoderError, match="shape"):
        encoder.encode(PICTURE)
    with pytest.raises(EncoderError, match="uint8"):
        encoder.encode(PICTURE.astype(np.float32))


def test_a_closed_encoder_says_so(libraries: StandIns, model: Path) -> None:
    encoder = opened(model)
    encoder.close()
    encoder.close()
    with pytest.raises(EncoderError, match="closed"):
        encoder.encode(PICTURE)


def test_identity_holds_for_one_npu_and_version(libraries: StandIns, model: Path) -> None:
    first = opened(model).identity
    assert opened(model).identity == first and len(first) == 32
    assert opened(model, soc_model=43).identity != first
    libraries.plugin.__version__ = "2.8.0"
    assert opened(model).identity != first


# ---- compiled models


def test_a_model_is_compiled_once(libraries: StandIns, model: Path) -> None:
    opened(model)
    (file,) = compiled_files(model)
    assert file.read_text().startswith("EPContext")
    assert libraries.opened == [model]
    opened(model)
    assert libraries.opened == [model, file]
    assert compiled_files(model) == [file]
    assert [path.name for path in file.parent.iterdir()] == [file.name]  # nothing is left over


def test_a_damaged_compiled_model_is_made_again(libraries: StandIns, model: Path) -> None:
    opened(model)
    (file,) = compiled_files(model)
    file.write_text(file.read_text() + "?")  # the NPU would take it
    opened(model)
    assert libraries.opened == [model, model]
    assert [path.read_text() for path in compiled_files(model)] == ["EPContext 2"]


def test_a_compiled_model_that_is_refused_is_made_again(libraries: StandIns, model: Path) -> None:
    opened(model)
    (file,) = compiled_files(model)
    libraries.refuses = lambda words: words.startswith("EPContext")
    opened(model)
    assert libraries.opened == [model, file, model]
    assert [path.read_text() for path in compiled_files(model)] == ["EPContext 3"]


def test_compiled_models_hold_for_one_file_version_and_npu(
    libraries: StandIns, model: Path
) -> None:
    opened(model)
    opened(model, htp_arch=73)
    opened(model, soc_model=43)
    libraries.plugin.__version__ = "2.8.0"
    opened(model)
    model.write_text(f"{QUANTISED} MatMul")
    opened(model)
    assert libraries.opened == [model] * 5
    assert len(compiled_files(model)) == 5


def test_without_a_place_for_it_the_model_is_compiled_each_time(
    libraries: StandIns, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (model.parent / "cache").write_text("a file where a folder should be")
    opened(model).encode(PICTURE)
    assert "cannot be kept" in caplog.text
    assert libraries.opened == [model]


def test_the_file_of_a_profile_may_be_compiled_already(libraries: StandIns, model: Path) -> None:
    model.write_text("EPContext")
    opened(model).encode(PICTURE)
    assert compiled_files(model) == []
    libraries.refuses = lambda words: True
    with pytest.raises(EncoderError, match="compiled for another NPU.*compile it again"):
        opened(model)


def test_the_folder_follows_the_xdg_rules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert qnn_cache.default_folder() == tmp_path / "edge_vlm_ros" / "qnn"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert qnn_cache.default_folder() == Path.home() / ".cache" / "edge_vlm_ros" / "qnn"
