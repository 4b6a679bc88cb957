"""Parses source files, also where Python 3.11 fails to."""

from __future__ import annotations

import ast

TRIES = 20


def parse(text: str) -> ast.Module:
    """The syntax tree of a module.

    Python before 3.13 counts the depth of the tree in a variable that all threads share (gh-106905). If a finalizer or
    another thread also parses meanwhile, this raises `SystemError`.
    """
    for _ in range(TRIES - 1):
        try:
            return ast.parse(text)
        except SystemError:
            continue
    return ast.parse(text)
