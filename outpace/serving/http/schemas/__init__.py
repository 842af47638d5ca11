"""Request bodies as pydantic models. Fields without a comment mean what they mean in OpenAI's API."""
