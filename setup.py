"""What pyproject.toml can't say: the compiled core, and the folders that install inside the package."""

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup

setup(
    packages=[*find_packages(include=["pyredisson", "pyredisson.*"]), "pyredisson.lua"],
    package_dir={"pyredisson.lua": "lua"},
    package_data={"pyredisson": ["py.typed", "*.pyi"], "pyredisson.lua": ["*.lua"]},
    ext_modules=cythonize(
        # Without -g0 the debug symbols that some interpreters ask for make the core ten times as large.
        [Extension("pyredisson._core", ["_core/core.pyx"], extra_compile_args=["-O3", "-g0"])],
        build_dir="build",
    ),
)
