"""What talks to an engine: its API, the HTTP client, and one session an engine."""
