"""What the fixtures of the pytest plugin `pyredisson_pytest` import when they are used."""
