"""The line as a Prefect flow and as a command."""
