"""Each script of the fair lock, on old and new servers."""
