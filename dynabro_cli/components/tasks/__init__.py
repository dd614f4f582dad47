"""Tasks, one file each: data or an objective, and the defaults that go with it."""
