"""An HTTP server over the engine, compatible with OpenAI's API."""
