"""What runs inside the Python environments of other engines. Nothing here imports outpace, or is imported by
it."""
