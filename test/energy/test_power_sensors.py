"""Power sensors, on made-up trees of sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_vlm_ros.energy.sensors import (
    CounterSensor,
    NoSensor,
    PowerSensor,
    Rail,
    find_sensor,
)


def tree(root: Path, files: dict[str, str | int]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def chip(number: int, name: str, **files: str | int) -> dict[str, str | int]:
    folder = f"class/hwmon/hwmon{number}"
    return {f"{folder}/name": name} | {f"{folder}/{file}": text for file, text in files.items()}


def rails(*named: tuple[str, int, int]) -> dict[str, str | int]:
    """Files of an INA3221: label, millivolts, milliamperes of each channel."""
    files: dict[str, str | int] = {}
    for number, (label, millivolts, milliamperes) in enumerate(named, 1):
        files[f"in{number}_label"] = label
        files[f"in{number}_input"] = millivolts
        files[f"curr{number}_input"] = milliamperes
    return files


def watts(sensor: object) -> float:
    assert isinstance(sensor, PowerSensor)
    return sum(rail.watts() for rail in sensor._rails)


# ------------------------------------------------------------------------- finding
def test_the_boards_supply_is_preferred_to_its_parts(tmp_path: Path) -> None:
    named = rails(("VDD_IN", 5000, 1500), ("VDD_CPU_GPU_CV", 5000, 400), ("VDD_SOC", 5000, 300))
    sensor = find_sensor(root=tree(tmp_path, chip(0, "ina3221", **named)))
    assert (sensor.name, watts(sensor)) == ("hwmon VDD_IN", pytest.approx(7.5))


def test_without_a_supply_the_parts_are_summed(tmp_path: Path) -> None:
    first = rails(
        ("VDD_GPU_SOC", 19000, 200), ("VDD_CPU_CV", 19000, 100), ("VIN_SYS_5V0", 5000, 600)
    )
    first |= {"curr4_input": 900, "in4_input": 13}  # a sum of currents, and a shunt's voltage
    second = rails(("NC", 5000, 77), ("VDDQ_VDD2_1V8AO", 5000, 100), ("OFF", 5000, 5))
    second["in3_enable"] = 0
    files = chip(0, "ina3221", **first) | chip(1, "ina3221", **second)
    files |= chip(2, "amdgpu", power1_input=50_000_000, curr1_input=1)
    sensor = find_sensor(root=tree(tmp_path, files))
    assert sensor.name == "hwmon VDD_GPU_SOC + VDD_CPU_CV + VIN_SYS_5V0"
    assert watts(sensor) == pytest.approx(3.8 + 1.9 + 3.0)


def test_an_ina226_says_its_power_itself(tmp_path: Path) -> None:
    files = chip(3, "ina226", power1_input=6_250_000, in1_input=12000, curr1_input=1)
    sensor = find_sensor(root=tree(tmp_path, files))
    assert (sensor.name, watts(sensor)) == ("hwmon ina226 (hwmon3, 1)", pytest.approx(6.25))


def test_rapl_sums_packages_and_memory_unless_the_platform_is_there(tmp_path: Path) -> None:
    folder = "class/powercap"
    zones = {
        "intel-rapl:0": "package-0",
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "dram",
        "intel-rapl:1": "package-1",
        "intel-rapl-mmio:0": "package-0",
    }
    files: dict[str, str | int] = {}
    for zone, name in zones.items():
        files |= {f"{folder}/{zone}/name": name, f"{folder}/{zone}/energy_uj": 0}
        files |= {f"{folder}/{zone}/max_energy_range_uj": 10_000_000}
    root = tree(tmp_path, files)
    sensor = find_sensor(root=root)
    assert sensor.name == "RAPL package-0 + dram + package-1"
    for zone in zones:
        (root / folder / zone / "energy_uj").write_text("2000000")
    assert sensor.joules() == pytest.approx(6.0)
    tree(root, {f"{folder}/intel-rapl:2/name": "psys", f"{folder}/intel-rapl:2/energy_uj": 5})
    assert find_sensor(root=root).name == "RAPL psys"


def test_a_file_may_be_named(tmp_path: Path) -> None:
    tree(tmp_path, {"power1_average": 3_000_000, "energy2_input": 0, "rapl/energy_uj": 4})
    power = find_sensor(str(tmp_path / "power1_average"))
    assert watts(power) == pytest.approx(3.0)
    counter = find_sensor(str(tmp_path / "energy2_input"))
    (tmp_path / "energy2_input").write_text("1500000")
    assert counter.joules() == pytest.approx(1.5)
    assert find_sensor(str(tmp_path / "rapl" / "energy_uj")).name.endswith("energy_uj")


def test_why_there_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoSensor, match="no INA power sensor in .*; no RAPL in "):
        find_sensor(root=tmp_path)
    with pytest.raises(NoSensor, match="off"):
        find_sensor("off", tmp_path)
    with pytest.raises(NoSensor, match="temp1_input"):
        find_sensor("/sys/class/hwmon/hwmon0/temp1_input")
    with pytest.raises(NoSensor, match="cannot be read"):
        find_sensor(str(tmp_path / "power1_input"))
    tree(tmp_path, {"energy1_input": "not a number"})
    with pytest.raises(NoSensor, match="cannot be read"):
        find_sensor(str(tmp_path / "energy1_input"))


def test_a_file_that_may_not_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(
        tmp_path,
        {"class/powercap/intel-rapl:0/name": "psys", "class/powercap/intel-rapl:0/energy_uj": 5},
    )
    read = Path.read_text

    def refuse(path: Path) -> str:
        if path.name == "energy_uj":  # root, who runs tests in containers, may read everything
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(NoSensor, match="intel-rapl:0/energy_uj may not be read"):
        find_sensor(root=root)


# ------------------------------------------------------------------------- reading
def test_power_is_integrated(tmp_path: Path) -> None:
    tree(tmp_path, {"power1_input": 2_000_000})
    times = iter([10.0, 11.0, 13.0])
    sensor = PowerSensor("s", (Rail("r", tmp_path / "power1_input"),), lambda: next(times))
    assert sensor.joules() == 0.0
    assert sensor.joules() == pytest.approx(2.0)
    tree(tmp_path, {"power1_input": 4_000_000})
    assert sensor.joules() == pytest.approx(2.0 + 2 * 3.0)


def test_a_counter_that_began_anew_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "energy_uj"
    file.write_text("9000000")
    sensor = CounterSensor("s", (file,), (10_000_000,))
    assert sensor.joules() == 0.0
    file.write_text("500000")
    assert sensor.joules() == pytest.approx(1.5)
    unbounded = CounterSensor("s", (file,), (0,))
    unbounded.joules()
    file.write_text("100000")
    assert unbounded.joules() == 0.0, "a counter that was set back took nothing"
