"""Power sensors that Linux shows as files: hwmon (INA and others) and RAPL (powercap)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

SYSFS = Path("/sys")
_MICRO = 1e-6

_WHOLE_BOARD = ("VDD_IN", "POM_5V_IN", "DC_IN", "VIN")
"""Rails through which everything else of a board is fed; with one of them the others say nothing
new."""
_FED_BY_ANOTHER = ("NC", "VDDQ_VDD2_1V8AO")
"""Unconnected, or counted in another rail (Jetson AGX Orin: VIN_SYS_5V0)."""


class NoSensor(RuntimeError):
    """The machine shows no power, or not to us; the text says why."""


class Sensor(Protocol):
    """Reads cumulative energy. Not thread-safe."""

    @property
    def name(self) -> str:
        """What is measured, for people."""
        ...

    def joules(self) -> float:
        """Energy since the first call. Raises OSError or ValueError when it cannot be read."""
        ...


class CounterSensor:
    """Sums files that count microjoules up to a maximum and begin at 0 again (RAPL)."""

    def __init__(self, name: str, files: tuple[Path, ...], maxima: tuple[int, ...]) -> None:
        """``maxima``: the value after which each counter begins anew, in microjoules; 0: never."""
        self.name = name
        self._files = files
        self._maxima = maxima
        self._before: tuple[int, ...] | None = None
        self._total = 0.0

    def joules(self) -> float:
        now = tuple(_number(file) for file in self._files)
        if self._before is not None:
            for before, value, maximum in zip(self._before, now, self._maxima, strict=True):
                step = value - before
                self._total += _MICRO * (step if step >= 0 else max(step + maximum, 0))
        self._before = now
        return self._total


@dataclass(frozen=True)
class Rail:
    """One measured supply: a file of microwatts, or files of millivolts and milliamperes."""

    label: str
    power: Path | None
    voltage: Path | None = None
    current: Path | None = None

    def watts(self) -> float:
        if self.power is not None:
            return _MICRO * _number(self.power)
        assert self.voltage is not None and self.current is not None
        return _MICRO * _number(self.voltage) * _number(self.current)


class PowerSensor:
    """Integrates the power of rails between calls (trapezoids): call it often."""

    def __init__(
        self, name: str, rails: tuple[Rail, ...], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self._rails = rails
        self._clock = clock
        self._before: tuple[float, float] | None = None
        self._total = 0.0

    def joules(self) -> float:
        now, watts = self._clock(), sum(rail.watts() for rail in self._rails)
        if self._before is not None:
            then, watts_then = self._before
            self._total += (now - then) * (watts + watts_then) / 2
        self._before = (now, watts)
        return self._total


def find_sensor(choice: str = "auto", root: Path = SYSFS) -> Sensor:
    """The sensor that parameter ``power_sensor`` means; it has been read once.

    ``auto`` takes the board's supply if an INA chip measures it, then RAPL; ``off`` takes none.
    Anything else is the path of a file that shows microwatts (``power*_input``,
    ``power*_average``) or counts microjoules (``energy*_input``, ``energy_uj``).

    Raises NoSensor.
    """
    if choice == "off":
        raise NoSensor("power_sensor is off")
    if choice != "auto":
        return _tried(_of_file(Path(choice)))
    reasons = []
    for find in (_find_ina, _find_rapl):
        try:
            return _tried(find(root))
        except NoSensor as error:
            reasons.append(str(error))
    raise NoSensor("; ".join(reasons))


def _of_file(path: Path) -> Sensor:
    if path.name == "energy_uj":
        return CounterSensor(str(path), (path,), (_maximum(path.parent),))
    if path.name.startswith("energy") and path.name.endswith("_input"):
        return CounterSensor(str(path), (path,), (0,))
    if path.name.startswith("power") and path.name.endswith(("_input", "_average")):
        return PowerSensor(str(path), (Rail(path.name, path),))
    raise NoSensor(
        f"power_sensor must be auto, off, or the path of a file called power*_input, "
        f"power*_average, energy*_input or energy_uj; not {str(path)!r}"
    )


def _tried(sensor: Sensor) -> Sensor:
    try:
        sensor.joules()
    except PermissionError as error:
        text = f"{error.filename} may not be read: let the node's user read it (chmod, udev rule)"
        raise NoSensor(text) from error
    except (OSError, ValueError) as error:
        raise NoSensor(f"{sensor.name} cannot be read: {error}") from error
    return sensor


# ------------------------------------------------------------------------- hwmon
def _find_ina(root: Path) -> Sensor:
    """INA chips measure supplies of boards; other hwmon chips measure a part, e.g. a GPU."""
    rails: list[Rail] = []
    for folder in sorted((root / "class" / "hwmon").glob("hwmon*")):
        chip = _text(folder / "name")
        if chip.startswith("ina"):
            rails += _rails(chip, folder)
    whole = [rail for rail in rails if rail.label in _WHOLE_BOARD]
    chosen = whole[:1] or [rail for rail in rails if rail.label not in _FED_BY_ANOTHER]
    if not chosen:
        raise NoSensor(f"no INA power sensor in {root / 'class' / 'hwmon'}")
    return PowerSensor(f"hwmon {' + '.join(rail.label for rail in chosen)}", tuple(chosen))


def _rails(chip: str, folder: Path) -> list[Rail]:
    """The rails of one chip. Of an INA3221 each has a voltage and a current, the others show the
    power of their only one."""
    rails = []
    for number in (1, 2, 3):  # of an INA3221, larger numbers are sums and shunts
        current = folder / f"curr{number}_input"
        if not current.exists() or _text(folder / f"in{number}_enable") == "0":
            continue
        power, voltage = folder / f"power{number}_input", folder / f"in{number}_input"
        label = _text(folder / f"in{number}_label") or f"{chip} ({folder.name}, {number})"
        if power.exists():
            rails.append(Rail(label, power))
        elif voltage.exists():
            rails.append(Rail(label, None, voltage, current))
    return rails


# ------------------------------------------------------------------------- RAPL
def _find_rapl(root: Path) -> Sensor:
    """The platform's domain, or processors and their memory. Subdomains (core, uncore) are parts
    of their processor, memory is not."""
    folders = sorted((root / "class" / "powercap").glob("intel-rapl:*"))
    zones = {folder: _text(folder / "name") for folder in folders}
    platform = [zone for zone, name in zones.items() if name == "psys"][:1]
    parts = [z for z, name in zones.items() if name.startswith("package") or name == "dram"]
    chosen = platform or parts
    if not chosen:
        raise NoSensor(f"no RAPL in {root / 'class' / 'powercap'}")
    return CounterSensor(
        f"RAPL {' + '.join(zones[zone] for zone in chosen)}",
        tuple(zone / "energy_uj" for zone in chosen),
        tuple(_maximum(zone) for zone in chosen),
    )


def _maximum(zone: Path) -> int:
    try:
        return _number(zone / "max_energy_range_uj")
    except (OSError, ValueError):
        return 0


def _number(file: Path) -> int:
    return int(file.read_text())


def _text(file: Path) -> str:
    """What a file holds; nothing if it is not there."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
