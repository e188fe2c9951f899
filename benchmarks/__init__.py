"""What is measured; CONTRIBUTING.md says how. Each module prints one table."""
