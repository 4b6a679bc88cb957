"""Tests with several servers: clusters, sentinels, replicas."""
