"""Tests of the public API, on both backends."""
