"""The NVIDIA GPUs of this machine, as their driver tells them: no framework is needed to ask it."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, create_string_buffer
from typing import Any

_DRIVER = "libcuda.so.1"
# CUdevice_attribute of cuda.h
_MAJOR, _MINOR = 75, 76


def devices() -> list[dict[str, Any]] | str:
    """Return name, compute capability and memory of each GPU, or why there is none."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return f"no GPU: there is no NVIDIA driver ({_DRIVER} cannot be opened)"
    status, count = driver.cuInit(0), c_int()
    if status == 0:
        status = driver.cuDeviceGetCount(byref(count))
    if status != 0:
        return f"no GPU: the NVIDIA driver finds none (status {status})"
    return [_device(driver, index) for index in range(count.value)] or "no GPU: none is visible"


def _device(driver: ctypes.CDLL, index: int) -> dict[str, Any]:
    number, name, memory = c_int(), create_string_buffer(256), c_size_t()
    major, minor = c_int(), c_int()
    driver.cuDeviceGet(byref(number), index)
    driver.cuDeviceGetName(name, len(name), number)
    driver.cuDeviceTotalMem_v2(byref(memory), number)
    driver.cuDeviceGetAttribute(byref(major), _MAJOR, number)
    driver.cuDeviceGetAttribute(byref(minor), _MINOR, number)
    return {
        "name": name.value.decode(),
        "capability": f"{major.value}.{minor.value}",
        "memory_gib": round(memory.value / 2**30, 1),
    }
