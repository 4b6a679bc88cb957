"""The Lua scripts, on real servers."""
