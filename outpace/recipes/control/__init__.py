"""Methods that decide how much to draft, and with what."""
