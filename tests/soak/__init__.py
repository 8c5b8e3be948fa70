"""What takes long and is started by hand: python -m tests.soak.NAME."""
