"""Configuration: the schema, what a user wrote, the layers of a run's values, and what is said of each setting."""
