"""The scripts that run on the server, read by name through `importlib.resources`.

A file that begins with a `#!lua` line is a script. The other files are included by scripts (`-- include: name`).
"""
