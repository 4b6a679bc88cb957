"""What pyproject.toml can't say: the compiled core, and the folders that install inside the package."""

import subprocess
import sys

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

NO_COMPILER = """
pyredisson: its core can't be compiled. {reason}
  Debian, Ubuntu: apt-get install gcc python3-dev    Fedora: dnf install gcc python3-devel
  Alpine: apk add gcc musl-dev python3-dev           macOS: xcode-select --install
  A wheel needs none of it: pip install --only-binary pyredisson pyredisson
"""


class Build(build):
    """Compiles first: what is missing is said at once, not behind the list of the copied files."""

    sub_commands = sorted(build.sub_commands, key=lambda command: command[0] != "build_ext")


class BuildCore(build_ext):
    """Says in a few lines what is missing, where otherwise the compiler's output or a traceback would."""

    def build_extensions(self) -> None:
        if self.compiler.compiler_type == "unix" and (reason := self._missing()):
            sys.exit(NO_COMPILER.format(reason=reason))
        super().build_extensions()

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
            )
        except OSError:
            return f"There is no C compiler: {compiler[0]!r} can't be run."
        except subprocess.CalledProcessError as error:
            if "Python.h" in error.stderr:
                return f"Python's headers (Python.h) are missing for {sys.executable}."
            # Something else is wrong, which the compiler says best.
        return None


setup(
    packages=[*find_packages(include=["pyredisson", "pyredisson.*"]), "pyredisson.lua"],
    py_modules=["pyredisson_pytest"],
    package_dir={"pyredisson.lua": "lua"},
    package_data={
        "pyredisson": ["py.typed", "*.pyi"],
        "pyredisson.dashboard": ["page/*"],
        "pyredisson.lua": ["*.lua"],
    },
    cmdclass={"build": Build, "build_ext": BuildCore},
    ext_modules=cythonize(
        # Without -g0 the debug symbols that some interpreters ask for make the core ten times as large.
        [Extension("pyredisson._core", ["_core/core.pyx"], extra_compile_args=["-O3", "-g0"])],
        build_dir="build",
    ),
)
