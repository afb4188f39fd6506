"""A study: from its TOML to its results."""
