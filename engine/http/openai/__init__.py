"""OpenAI's dialect: `/v1/chat/completions` and `/v1/completions`, read into requests and written from events."""
