"""What pyproject.toml can't say: the compiled core, and the folders that install inside the package."""

import os
import re
import subprocess
import sys

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

NO_COMPILER = """
pyredisson: its core can't be compiled. {reason}
  Debian, Ubuntu: apt-get install gcc libc6-dev python3-dev    Fedora: dnf install gcc python3-devel
  Alpine: apk add gcc musl-dev python3-dev                     macOS: xcode-select --install
  A wheel needs none of it: `make wheel` on a machine where it can be compiled.
"""


class Build(build):
    """Compiles first: what is missing is said at once, not behind the list of the copied files."""

    sub_commands = sorted(build.sub_commands, key=lambda command: command[0] != "build_ext")


class BuildCore(build_ext):
    """Says in a few lines what is missing, where otherwise the compiler's output or a traceback would."""

    def build_extensions(self) -> None:
        self.check_compiler()
        super().build_extensions()

    def check_compiler(self) -> None:
        if self.compiler.compiler_type == "unix" and (reason := self._missing()):
            sys.exit(NO_COMPILER.format(reason=reason))

    def _missing(self) -> str | None:
        # By the preprocessor, as it also searches where flags and variables (CFLAGS, CPATH) say.
        compiler = self.compiler.compiler_so
        folders = [f"-I{folder}" for folder in [*self.include_dirs, *self.compiler.include_dirs]]
        try:
            subprocess.run(
                [*compiler, *folders, "-E", "-x", "c", "-"],
                input="#include <Python.h>\n",
                text=True,
                capture_output=True,
                check=True,
                env={**os.environ, "LC_ALL": "C"},
            )
        except OSError:
            return f"There is no C compiler: {compiler[0]!r} can't be run."
        except subprocess.CalledProcessError as error:
            # As gcc and as clang say it. If something else is wrong, the compiler says it best.
            missing = re.search(r"error: (.+): No such file|error: '(.+)' file not found", error.stderr)
            header = missing and (missing[1] or missing[2])
            if header == "Python.h":
                return f"Python's headers (Python.h) are missing for {sys.executable}."
            if header:
                return f"The header {header}, which Python.h includes, is missing: a package of the C library has it."
        return None


class CheckCompiler(BuildCore):
    """Only says what is missing: `make venv` does so before anything is downloaded."""

    def build_extensions(self) -> None:
        self.check_compiler()


setup(
    packages=[*find_packages(include=["pyredisson", "pyredisson.*"]), "pyredisson.lua", "pyredisson.dashboard.page"],
    py_modules=["pyredisson_pytest"],
    package_dir={"pyredisson.lua": "lua"},
    package_data={
        "pyredisson": ["py.typed", "*.pyi"],
        "pyredisson.dashboard.page": ["*"],
        "pyredisson.lua": ["*.lua"],
    },
    cmdclass={"build": Build, "build_ext": BuildCore, "check_compiler": CheckCompiler},
    ext_modules=cythonize(
        # Without -g0 the debug symbols that some interpreters ask for make the core ten times as large.
        [Extension("pyredisson._core", ["_core/core.pyx"], extra_compile_args=["-O3", "-g0"])],
        build_dir="build",
    ),
)
