"""The command line, `pyredisson`. Needs the extra `pyredisson[cli]`."""
