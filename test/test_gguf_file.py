"""Headers and rows of GGUF files, and what is said of files that are none."""

from __future__ import annotations

import ctypes
import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from helpers import MODEL

from edge_vlm_ros.engines import ggml
from edge_vlm_ros.gguf_file import GgufError, GgufFile

LANGUAGE = MODEL / "lm.Q8_0.gguf"
READABLE = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"),
)


def write(path: Path, matrix: npt.NDArray[Any], kind: str) -> GgufFile:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_bool("yes", True)
    writer.add_array("words", ["a", "", "\N{GREEK SMALL LETTER PI}"])
    writer.add_array("scores", [0.5, 1.5])
    writer.add_array("none", [0])
    writer.add_uint32("last", 7)
    writer.add_tensor("first", np.zeros(3, np.float32))
    type_ = gguf.GGMLQuantizationType[kind]
    writer.add_tensor("token_embd.weight", matrix, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


def encoded(kind: str) -> npt.NDArray[np.uint8]:
    """10 rows of 256 values; without inf and nan, in which bit patterns may differ."""
    type_ = gguf.GGMLQuantizationType[kind]
    block, n_bytes = gguf.GGML_QUANT_SIZES[type_]
    rng = np.random.default_rng(0)
    if block == 1:
        values = rng.standard_normal((10, 256)).astype(np.float32)
        matrix: npt.NDArray[np.uint8] = gguf.quants.quantize(values, type_)
        return matrix
    # Bytes below 0x78 make no exponent of a float16 that is all ones.
    return rng.integers(0, 0x78, (10, 256 // block * n_bytes), np.uint8)


def llama_cpps(data: bytes, kind: str, n: int) -> npt.NDArray[np.float32]:
    """n values as the C code that llama.cpp looks rows up with decodes them."""

    class Traits(ctypes.Structure):
        _fields_ = [
            ("name", ctypes.c_char_p),
            ("block", ctypes.c_int64),
            ("interleave", ctypes.c_int64),
            ("n_bytes", ctypes.c_size_t),
            ("is_quantized", ctypes.c_bool),
            ("to_float", ctypes.c_void_p),
        ]

    get = ggml.base().ggml_get_type_traits
    get.restype, get.argtypes = ctypes.POINTER(Traits), [ctypes.c_int]
    convert = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)
    result = np.empty(n, np.float32)
    address = get(gguf.GGMLQuantizationType[kind]).contents.to_float
    convert(address)(data, result.ctypes.data, n)
    return result


def test_values_are_what_the_library_reads_without_passing_over_arrays() -> None:
    file, reader = GgufFile(LANGUAGE), gguf.GGUFReader(LANGUAGE)
    assert file.architecture == "qwen3" and file.n_tensors == len(reader.tensors)
    for key, field in reader.fields.items():
        value = field.contents()
        if isinstance(value, str):
            assert file.text(key) == value
        elif isinstance(value, bool):
            assert file.flag(key) == value
        elif isinstance(value, int):
            assert file.number(key) == value
        else:
            assert file.text(key) == "" and file.number(key) is None and not file.flag(key)
    for key in ("block_count", "context_length", "embedding_length"):
        assert file.of_architecture(key) == reader.fields[f"qwen3.{key}"].contents()
    assert [t.data_offset for t in file._reader.tensors] == [t.data_offset for t in reader.tensors]


def test_values_after_arrays_and_values_of_another_type(tmp_path: Path) -> None:
    file = write(tmp_path / "x.gguf", encoded("F32"), "F32")
    assert file.number("last") == 7 and file.text("last") == "" and not file.flag("last")
    assert file.flag("yes") and file.number("yes") is None
    assert file.number("absent") is None and file.text("absent") == "" and not file.flag("absent")


@pytest.mark.parametrize("kind", READABLE)
def test_rows_are_bit_for_bit_what_llama_cpp_looks_up(tmp_path: Path, kind: str) -> None:
    matrix = encoded(kind)
    file = write(tmp_path / "x.gguf", matrix, kind)
    rows = file.rows("token_embd.weight", [9, 0, 4])
    assert rows.dtype == np.float32 and rows.shape == (3, 256)
    expected = matrix
    if kind != "F32":
        expected = np.stack([llama_cpps(row.tobytes(), kind, 256) for row in matrix])
    assert np.isfinite(expected).all() and np.ptp(expected) > 0
    np.testing.assert_array_equal(rows, expected[[9, 0, 4]])


def test_rows_that_are_not_there(tmp_path: Path) -> None:
    file = write(tmp_path / "x.gguf", encoded("Q8_0"), "Q8_0")
    assert file.rows("token_embd.weight", []).shape == (0, 256)
    with pytest.raises(GgufError, match="has 10 rows"):
        file.rows("token_embd.weight", [10])
    with pytest.raises(GgufError, match="has 10 rows"):
        file.rows("token_embd.weight", [-1])
    with pytest.raises(GgufError, match="has no tensor output.weight"):
        file.rows("output.weight", [0])


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    with pytest.raises(GgufError, match="there is no file .* put it there"):
        GgufFile(path)
    with pytest.raises(GgufError, match="cannot read .* directory"):
        GgufFile(tmp_path)
    path.write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(GgufError, match="git lfs pull"):
        GgufFile(path)
    for content in (b"", b"GG", b"<!doctype html>"):
        path.write_bytes(content)
        with pytest.raises(GgufError, match="is it a web page"):
            GgufFile(path)


def test_a_file_that_ends_too_early_is_always_noticed(tmp_path: Path) -> None:
    whole = LANGUAGE.read_bytes()
    path = tmp_path / "x.gguf"
    header = GgufFile(LANGUAGE)._reader.data_offset
    lengths = [4, 7, 10, 23, 24, 100, 5000, header - 1, header, len(whole) - 1]
    lengths += random.Random(0).sample(range(4, header), 60)
    for length in lengths:
        path.write_bytes(whole[:length])
        with pytest.raises(GgufError, match="the download was cut off; fetch it again"):
            GgufFile(path)


def test_a_damaged_header_is_an_error_of_its_own(tmp_path: Path) -> None:
    whole = LANGUAGE.read_bytes()
    path = tmp_path / "x.gguf"
    path.write_bytes(whole[:16] + b"\xff" * 100)
    with pytest.raises(GgufError):
        GgufFile(path)
    at = whole.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens") + 4
    for element, count in ((8, 2**63), (4, 2**63), (9, 1), (77, 1)):
        damaged = element.to_bytes(4, "little") + count.to_bytes(8, "little")
        path.write_bytes(whole[:at] + damaged + whole[at + 12 :])
        with pytest.raises(GgufError, match="is damaged"):
            GgufFile(path)
