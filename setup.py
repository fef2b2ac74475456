"""The C engine: one source, one library for each instruction set. All else is in setup.cfg.

The libraries are loaded by ctypes, so they are plain shared objects that setuptools builds in the
place of extension modules, and one wheel serves every Python 3. Each is optional: without a
compiler the install succeeds, and rnnop says at first use that it runs without its engine.
"""

import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

KERNELS = Path("rnnop/cpu/kernels")
FLAGS = [
    "-std=c11",
    "-O3",
    "-g0",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-Wno-psabi",
    "-pthread",
]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"]
VARIANTS = {"generic": ["-DVECTOR_BYTES=16"]}
if platform.machine().lower() in ("x86_64", "amd64"):
    VARIANTS["avx2"] = ["-mavx2", "-mfma", "-DVECTOR_BYTES=32"]
    VARIANTS["avx512"] = [*AVX512, "-DVECTOR_BYTES=64"]
    VARIANTS["avx512bf16"] = [*AVX512, "-mavx512bf16", "-DVECTOR_BYTES=64"]
elif platform.machine().lower() in ("aarch64", "arm64"):
    VARIANTS = {"neon": ["-DVECTOR_BYTES=16"]}
    VARIANTS["neonbf16"] = ["-march=armv8.2-a+bf16", "-DVECTOR_BYTES=16"]


class BuildEngine(build_ext):
    """Build each variant apart, since all are made of the same sources."""

    def build_extension(self, ext: Extension) -> None:
        """Give the variant a folder of its own for its objects."""
        shared = self.build_temp
        self.build_temp = str(Path(shared) / ext.name)
        try:
            super().build_extension(ext)
        finally:
            self.build_temp = shared

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """Return none: there is no module to initialise."""
        return []

    def get_ext_filename(self, fullname: str) -> str:
        """Return a name without the tag of a Python: none is linked in."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))


class AnyPythonWheel(bdist_wheel):
    """A wheel bound to a platform, not to a Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tags of Python, of its ABI, and of the platform."""
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            f"rnnop.cpu.engine_{name}",
            sources=[str(KERNELS / "engine.c"), str(KERNELS / "threads.c")],
            depends=[str(header) for header in sorted(KERNELS.glob("*.h"))],
            extra_compile_args=[*FLAGS, *flags],
            extra_link_args=["-pthread"],
            optional=True,
        )
        for name, flags in VARIANTS.items()
    ],
    cmdclass={"build_ext": BuildEngine, "bdist_wheel": AnyPythonWheel},
)
