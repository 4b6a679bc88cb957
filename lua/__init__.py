"""The server's side: one script a file, read by name through `importlib.resources`."""
