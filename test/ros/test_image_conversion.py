"""Every encoding and every malformed message, over both conversion libraries."""

from __future__ import annotations

import struct
import sys
import types
import zlib
from collections.abc import Callable

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sensor_msgs.msg import CompressedImage, Image

from edge_vlm_ros.ros import image_backends
from edge_vlm_ros.ros.image_backends import ImageBackend, default_backend
from edge_vlm_ros.ros.image_conversion import (
    ImageConversionError,
    compressed_to_rgb,
    image_to_rgb,
)

HEIGHT, WIDTH = 6, 8


@pytest.fixture(params=["cv_bridge", "rosbags-image"])
def backend(request: pytest.FixtureRequest) -> ImageBackend:
    load = {
        "cv_bridge": image_backends.load_cv_bridge,
        "rosbags-image": image_backends.load_rosbags_image,
    }[request.param]
    try:
        return load()
    except Exception as error:
        if request.param == "cv_bridge":
            pytest.skip(f"the distribution's cv_bridge is not usable here: {error}")
        raise


def picture(height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """Random colours: any exchange of channels, rows or bytes shows."""
    return np.random.default_rng(5).integers(0, 256, (height, width, 3), dtype=np.uint8)


def blocks() -> np.ndarray:
    """One colour for each half of the picture, for encodings that share colour among pixels."""
    rgb = np.empty((16, 16, 3), dtype=np.uint8)
    rgb[:, :8] = (200, 40, 60)
    rgb[:, 8:] = (30, 90, 220)
    return rgb


def image(encoding: str, data, height: int, width: int, step: int, big_endian: int = 0) -> Image:
    msg = Image()
    msg.height, msg.width, msg.encoding = height, width, encoding
    msg.step, msg.is_bigendian = step, big_endian
    msg.data = bytes(data)
    return msg


def packed(encoding: str, samples: np.ndarray, padding: int = 0, big_endian: bool = False) -> Image:
    """An Image of [height, width(, channels)] samples, each row followed by padding bytes."""
    height, width = samples.shape[:2]
    if samples.dtype == np.uint16:
        samples = samples.astype(">u2" if big_endian else "<u2")
    rows = np.frombuffer(samples.tobytes(), np.uint8).reshape(height, -1)
    padded = np.hstack([rows, np.full((height, padding), 0xAB, np.uint8)])
    step = padded.shape[1]
    return image(encoding, padded.tobytes(), height, width, step, int(big_endian))


def alpha(rgb: np.ndarray) -> np.ndarray:
    return np.dstack([rgb, np.full(rgb.shape[:2], 7, np.uint8)])


def grey(rgb: np.ndarray) -> np.ndarray:
    return rgb[:, :, 0]


def wide(samples: np.ndarray) -> np.ndarray:
    """16-bit samples with the given high bytes and disturbing low bytes."""
    return samples.astype(np.uint16) << 8 | 0x91


def repeated(rgb: np.ndarray) -> np.ndarray:
    return np.repeat(grey(rgb)[:, :, np.newaxis], 3, axis=2)


def same(rgb: np.ndarray) -> np.ndarray:
    return rgb


EXACT: dict[str, tuple[Callable, Callable]] = {
    "rgb8": (same, same),
    "bgr8": (lambda rgb: rgb[:, :, ::-1], same),
    "rgba8": (alpha, same),
    "bgra8": (lambda rgb: alpha(rgb[:, :, ::-1]), same),
    "mono8": (grey, repeated),
    "8UC1": (grey, repeated),
    "8UC3": (lambda rgb: rgb[:, :, ::-1], same),
    "8UC4": (lambda rgb: alpha(rgb[:, :, ::-1]), same),
    "mono16": (lambda rgb: wide(grey(rgb)), repeated),
    "rgb16": (wide, same),
    "bgr16": (lambda rgb: wide(rgb[:, :, ::-1]), same),
    "rgba16": (lambda rgb: wide(alpha(rgb)), same),
    "bgra16": (lambda rgb: wide(alpha(rgb[:, :, ::-1])), same),
}


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("encoding", EXACT)
def test_exact_encodings(backend, encoding: str, big_endian: bool, padding: int) -> None:
    pack, expect = EXACT[encoding]
    rgb = picture()
    msg = packed(encoding, pack(rgb), padding, big_endian)
    result = image_to_rgb(msg, backend=backend)
    assert result.dtype == np.uint8 and result.flags.c_contiguous
    assert np.array_equal(result, expect(rgb))


def test_sixteen_bits_keep_the_high_byte(backend) -> None:
    values = np.array([[0, 255, 256, 0x7FFF, 0xFF00, 0xFFFF]], dtype=np.uint16)
    result = image_to_rgb(packed("mono16", values), backend=backend)
    assert result[0, :, 0].tolist() == [0, 0, 1, 127, 255, 255]


def yuv422(rgb: np.ndarray, order: str) -> np.ndarray:
    """uint8 [height, width, 2] with the samples of two pixels in the given order."""
    y, u, v = studio_yuv(rgb)
    parts = {"U": u[:, ::2], "V": v[:, ::2], "0": y[:, ::2], "1": y[:, 1::2]}
    return np.stack([parts[c] for c in order], axis=2).reshape(rgb.shape[0], rgb.shape[1], 2)


def studio_yuv(rgb: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """BT.601 with Y in 16..235, as cameras send it."""
    r, g, b = (rgb[:, :, c].astype(float) for c in range(3))
    y = 16 + 0.257 * r + 0.504 * g + 0.098 * b
    u = 128 - 0.148 * r - 0.291 * g + 0.439 * b
    v = 128 + 0.439 * r - 0.368 * g - 0.071 * b
    return tuple(np.clip(np.rint(plane), 0, 255).astype(np.uint8) for plane in (y, u, v))


@pytest.mark.parametrize("padding", [0, 6])
@pytest.mark.parametrize(
    ("encoding", "order"),
    [("yuv422", "U0V1"), ("uyvy", "U0V1"), ("yuv422_yuy2", "0U1V"), ("yuyv", "0U1V")],
)
def test_yuv422_in_both_orders(backend, encoding: str, order: str, padding: int) -> None:
    rgb = blocks()
    result = image_to_rgb(packed(encoding, yuv422(rgb, order), padding), backend=backend)
    assert np.abs(result.astype(int) - rgb).max() <= 3


@pytest.mark.parametrize("padding", [0, 4])
@pytest.mark.parametrize(("encoding", "order"), [("nv12", "uv"), ("nv21", "vu")])
def test_nv12_and_nv21(backend, encoding: str, order: str, padding: int) -> None:
    rgb = blocks()
    y, u, v = studio_yuv(rgb)
    planes = {"u": u[::2, ::2], "v": v[::2, ::2]}
    chroma = np.stack([planes[c] for c in order], axis=2).reshape(8, 16)
    msg = packed(encoding, np.vstack([y, chroma]), padding)
    msg.height = 16
    result = image_to_rgb(msg, backend=backend)
    assert result.shape == rgb.shape
    assert np.abs(result.astype(int) - rgb).max() <= 3


def mosaic(rgb: np.ndarray, pattern: str) -> np.ndarray:
    """What a sensor with the given colours, in the order of a 2x2 cell, sees."""
    result = np.empty(rgb.shape[:2], dtype=np.uint8)
    for cell, colour in enumerate(pattern):
        row, column = divmod(cell, 2)
        result[row::2, column::2] = rgb[row::2, column::2, "rgb".index(colour)]
    return result


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
def test_bayer(backend, pattern: str, bits: int) -> None:
    rgb = blocks()
    samples = mosaic(rgb, pattern)
    msg = packed(f"bayer_{pattern}{bits}", wide(samples) if bits == 16 else samples, padding=2)
    result = image_to_rgb(msg, backend=backend)
    inside = np.r_[2:6, 10:14]  # away from borders and from the edge between the colours
    difference = np.abs(result.astype(int) - rgb)[np.ix_(inside, inside)]
    assert difference.max() <= 1


def test_the_result_shares_no_memory_with_the_message(backend) -> None:
    msg = packed("rgb8", picture())
    result = image_to_rgb(msg, backend=backend)
    msg.data[0] ^= 0xFF
    assert np.array_equal(result, picture())
    assert result.flags.writeable


def test_the_padding_of_the_last_row_may_be_missing(backend) -> None:
    msg = packed("bgr8", picture()[:, :, ::-1], padding=5)
    msg.data = msg.data[:-5]
    assert np.array_equal(image_to_rgb(msg, backend=backend), picture())


def test_other_libraries_than_the_default_are_not_needed() -> None:
    assert default_backend().name in ("cv_bridge", "rosbags-image")
    assert np.array_equal(image_to_rgb(packed("bgr8", picture()[:, :, ::-1])), picture())


def test_a_broken_cv_bridge_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def imgmsg_to_cv2(self, msg, encoding):
            raise SystemError("built for another NumPy")

    module = types.ModuleType("cv_bridge")
    module.CvBridge = Broken
    monkeypatch.setitem(sys.modules, "cv_bridge", module)
    assert default_backend.__wrapped__().name == "rosbags-image"
    wrong = lambda self, msg, encoding: np.zeros((1, 1, 3), np.uint8)  # noqa: E731
    monkeypatch.setattr(Broken, "imgmsg_to_cv2", wrong)
    assert default_backend.__wrapped__().name == "rosbags-image"


def test_without_any_library_the_error_says_what_to_install(monkeypatch) -> None:
    for name in ("cv_bridge", "rosbags.image"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImageConversionError, match="install") as caught:
        default_backend.__wrapped__()
    assert caught.value.reason == "no_converter"


def absurd_header() -> Image:
    return image("rgb8", bytes(10), 20_000, 20_000, 60_000)


def largest_header() -> Image:
    return image("rgb8", bytes(10), 2**32 - 1, 2**32 - 1, 2**32 - 1)


MALFORMED = [
    ("empty", lambda: image("rgb8", b"", 4, 4, 12)),
    ("empty", lambda: image("rgb8", bytes(48), 0, 4, 12)),
    ("empty", lambda: image("rgb8", bytes(48), 4, 0, 0)),
    ("empty", lambda: Image()),
    ("too_short", lambda: image("rgb8", bytes(47), 4, 4, 12)),
    ("too_short", lambda: image("mono16", bytes(31), 4, 4, 8)),
    ("too_short", lambda: image("nv12", bytes(16), 4, 4, 4)),
    ("too_short", lambda: image("rgb8", bytes(48), 4, 4, 2**32 - 1)),
    ("too_short", lambda: image("rgb8", bytes(48), 5000, 5000, 15_000)),
    ("bad_step", lambda: image("rgb8", bytes(48), 4, 4, 11)),
    ("bad_step", lambda: image("rgb8", bytes(48), 4, 4, 0)),
    ("bad_step", lambda: image("mono16", bytes(48), 4, 4, 4)),
    ("bad_step", lambda: image("yuv422", bytes(48), 4, 3, 6)),
    ("bad_step", lambda: image("nv21", bytes(48), 3, 4, 4)),
    ("bad_step", lambda: image("nv12", bytes(48), 4, 3, 3)),
    ("too_large", absurd_header),
    ("too_large", largest_header),
    ("unknown_encoding", lambda: image("", bytes(48), 4, 4, 12)),
    ("unknown_encoding", lambda: image("rgb9", bytes(48), 4, 4, 12)),
    ("unknown_encoding", lambda: image("x" * 5000, bytes(48), 4, 4, 12)),
    ("unsupported_encoding", lambda: image("nv24", bytes(48), 4, 4, 4)),
    ("unsupported_encoding", lambda: image("8UC2", bytes(48), 4, 4, 8)),
    ("depth", lambda: image("16UC1", bytes(48), 4, 4, 8)),
    ("depth", lambda: image("32FC1", bytes(64), 4, 4, 16)),
    ("depth", lambda: image("16SC1", bytes(64), 4, 4, 16)),
]


@pytest.mark.parametrize(("reason", "make"), MALFORMED)
def test_malformed_images(backend, reason: str, make: Callable[[], Image]) -> None:
    with pytest.raises(ImageConversionError) as caught:
        image_to_rgb(make(), backend=backend)
    assert caught.value.reason == reason
    assert 20 < len(caught.value.text) < 300


def test_max_pixels_is_a_parameter(backend) -> None:
    msg = packed("rgb8", picture())
    assert image_to_rgb(msg, max_pixels=HEIGHT * WIDTH, backend=backend).shape == (6, 8, 3)
    with pytest.raises(ImageConversionError, match="too_large"):
        image_to_rgb(msg, max_pixels=HEIGHT * WIDTH - 1, backend=backend)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([*EXACT, "yuv422", "yuyv", "nv12", "nv21", "bayer_rggb8", "16UC1", "junk"]),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 40),
    st.integers(0, 400),
    st.integers(0, 1),
)
def test_any_header_gives_a_picture_or_the_error(encoding, height, width, step, size, big) -> None:
    try:
        result = image_to_rgb(image(encoding, bytes(size), height, width, step, big))
    except ImageConversionError as error:
        assert error.reason != "internal", error
    else:
        assert result.shape == (height, width, 3)


class BrokenMessage:
    """A message whose fields are of the wrong type."""

    height, width, encoding, step, is_bigendian = 4, 4, "rgb8", 12, 0
    data = object()
    format = "jpeg"


def test_nothing_but_the_one_error_is_raised() -> None:
    def fail(plain):
        raise MemoryError("no memory")

    with pytest.raises(ImageConversionError, match="internal"):
        image_to_rgb(BrokenMessage())
    with pytest.raises(ImageConversionError, match="internal"):
        compressed_to_rgb(BrokenMessage())
    with pytest.raises(ImageConversionError, match="MemoryError"):
        image_to_rgb(packed("bgr8", picture()), backend=ImageBackend("failing", fail))


# --- compressed


def compressed(data: bytes, format_text: str = "jpeg") -> CompressedImage:
    msg = CompressedImage()
    msg.format = format_text
    msg.data = bytes(data)
    return msg


def encoded(extension: str, array: np.ndarray, *options: int) -> bytes:
    """OpenCV's encoding of an array in its own channel order."""
    done, data = cv2.imencode(extension, array, list(options))
    assert done
    return data.tobytes()


def bgr(rgb: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rgb[:, :, ::-1])


def smooth() -> np.ndarray:
    return cv2.resize(blocks(), (320, 240), interpolation=cv2.INTER_LINEAR)


JPEG = encoded(".jpg", bgr(smooth()), cv2.IMWRITE_JPEG_QUALITY, 95)
PROGRESSIVE = encoded(".jpg", bgr(smooth()), cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
RESTARTS = encoded(".jpg", bgr(smooth()), cv2.IMWRITE_JPEG_RST_INTERVAL, 4)
PNG = encoded(".png", bgr(picture()))


@pytest.mark.parametrize("data", [JPEG, PROGRESSIVE, RESTARTS], ids=["base", "progressive", "rst"])
@pytest.mark.parametrize("format_text", ["jpeg", "rgb8; jpeg compressed bgr8", "", "png"])
def test_jpeg(data: bytes, format_text: str) -> None:
    result = compressed_to_rgb(compressed(data, format_text))
    assert result.flags.c_contiguous and result.dtype == np.uint8
    assert np.abs(result.astype(int) - smooth()).mean() < 3


def test_grey_jpeg() -> None:
    result = compressed_to_rgb(compressed(encoded(".jpg", smooth()[:, :, 0]), "mono8; jpeg"))
    assert result.shape == (240, 320, 3)
    assert np.abs(result[:, :, 1].astype(int) - smooth()[:, :, 0]).mean() < 3


def test_bytes_after_the_end_of_a_jpeg_are_ignored() -> None:
    assert compressed_to_rgb(compressed(JPEG + bytes(100))).shape == (240, 320, 3)


def test_an_exif_orientation_does_not_turn_the_picture() -> None:
    tiff = b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0) + b"\0\0\0\0"
    payload = b"Exif\0\0" + tiff
    segment = b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload
    assert compressed_to_rgb(compressed(JPEG[:2] + segment + JPEG[2:])).shape == (240, 320, 3)


def test_an_end_marker_inside_a_segment_is_not_the_end() -> None:
    segment = b"\xff\xe1\x00\x06\xff\xd9\xff\xd9"
    inner = JPEG[:2] + segment + JPEG[2:]
    assert compressed_to_rgb(compressed(inner)).shape == (240, 320, 3)
    with pytest.raises(ImageConversionError, match="truncated"):
        compressed_to_rgb(compressed(inner[: len(inner) // 2]))


@pytest.mark.parametrize("format_text", ["png", "bgr8; png compressed bgr8", "jpeg"])
def test_png(format_text: str) -> None:
    assert np.array_equal(compressed_to_rgb(compressed(PNG, format_text)), picture())


def test_grey_sixteen_bit_and_transparent_png() -> None:
    rgb = picture()
    for array, expected in (
        (grey(rgb), repeated(rgb)),
        (wide(grey(rgb)), repeated(rgb)),
        (wide(bgr(rgb)), rgb),
        (alpha(bgr(rgb)), rgb),
    ):
        result = compressed_to_rgb(compressed(encoded(".png", array), "png"))
        assert np.array_equal(result, expected)


@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
def test_a_compressed_bayer_mosaic_is_coloured(backend, pattern: str) -> None:
    data = encoded(".png", mosaic(blocks(), pattern))
    msg = compressed(data, f"bayer_{pattern}8; png compressed ")
    result = compressed_to_rgb(msg, backend=backend)
    inside = np.r_[2:6, 10:14]
    assert np.abs(result.astype(int) - blocks())[np.ix_(inside, inside)].max() <= 1


def png_with_size(width: int, height: int) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return PNG[:8] + chunk + PNG[33:]


def jpeg_with_size(width: int, height: int) -> bytes:
    frame = JPEG.index(b"\xff\xc0")
    return JPEG[: frame + 5] + struct.pack(">HH", height, width) + JPEG[frame + 9 :]


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :]


MALFORMED_COMPRESSED = [
    ("empty", b"", "jpeg"),
    ("truncated", JPEG[:3], "jpeg"),
    ("truncated", JPEG[:100], "jpeg"),
    ("truncated", JPEG[: len(JPEG) // 2], "jpeg"),
    ("truncated", JPEG[:-1], "jpeg"),
    ("truncated", JPEG[:-2], "jpeg"),
    ("truncated", PROGRESSIVE[: len(PROGRESSIVE) // 2], "jpeg"),
    ("truncated", PNG[:20], "png"),
    ("truncated", PNG[: len(PNG) // 2], "png"),
    ("truncated", PNG[:-1], "png"),
    ("corrupt", flipped(PNG, len(PNG) // 2), "png"),
    ("corrupt", JPEG[:2] + b"\xff\xd9", "jpeg"),
    ("corrupt", JPEG[:2] + b"\xff\xfe\x00\x01" + JPEG[2:], "jpeg"),
    ("corrupt", JPEG[:2] + b"\xff\xfe\x00\x04abcdef" + JPEG[2:], "jpeg"),
    ("corrupt", png_with_size(8, 60)[:33] + PNG[-12:], "png"),
    ("empty", jpeg_with_size(0, 240), "jpeg"),
    ("too_large", png_with_size(100_000, 100_000), "png"),
    ("too_large", jpeg_with_size(65_500, 65_500), "jpeg"),
    ("unknown_format", b"GIF89a" + bytes(50), "gif"),
    ("unknown_format", bytes(50), "jpeg"),
    ("unknown_format", b"\x00\x00\x00\x01\x67" + bytes(50), "h264"),
    ("depth", PNG, "16UC1; compressedDepth png"),
    ("depth", PNG, "32FC1; compressedDepth"),
    ("depth", PNG, "16UC1; png compressed "),
]


@pytest.mark.parametrize(("reason", "data", "format_text"), MALFORMED_COMPRESSED)
def test_malformed_compressed_images(reason: str, data: bytes, format_text: str) -> None:
    with pytest.raises(ImageConversionError) as caught:
        compressed_to_rgb(compressed(data, format_text))
    assert caught.value.reason == reason
    assert 20 < len(caught.value.text) < 300


def test_a_wrong_checksum_is_found_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cv2, "imdecode", lambda *arguments: pytest.fail("decoded"))
    with pytest.raises(ImageConversionError, match="checksum"):
        compressed_to_rgb(compressed(flipped(PNG, len(PNG) // 2)))


def test_a_second_small_header_does_not_hide_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cv2, "imdecode", lambda *arguments: pytest.fail("decoded"))
    large, start = jpeg_with_size(65_500, 65_500), JPEG.index(b"\xff\xc0")
    end = start + 2 + int.from_bytes(JPEG[start + 2 : start + 4], "big")
    for data in (
        png_with_size(100_000, 100_000)[:33] + PNG[8:],
        large[:end] + JPEG[start:],
    ):
        with pytest.raises(ImageConversionError, match="too_large"):
            compressed_to_rgb(compressed(data))


def test_max_pixels_is_checked_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cv2, "imdecode", lambda *arguments: pytest.fail("decoded"))
    with pytest.raises(ImageConversionError, match="too_large"):
        compressed_to_rgb(compressed(JPEG), max_pixels=320 * 240 - 1)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([JPEG, PROGRESSIVE, PNG]), st.data())
def test_damaged_data_gives_a_picture_or_the_error(data: bytes, choose) -> None:
    position = choose.draw(st.integers(0, len(data) - 1))
    length = choose.draw(st.integers(0, 20))
    damaged = data[:position] + choose.draw(st.binary(max_size=20)) + data[position + length :]
    try:
        result = compressed_to_rgb(compressed(damaged), max_pixels=1_000_000)
    except ImageConversionError as error:
        assert error.reason != "internal", error
    else:
        assert result.ndim == 3 and result.shape[2] == 3
