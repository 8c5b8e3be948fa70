"""Commands that have no room of their own."""
