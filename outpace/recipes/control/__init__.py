"""Methods that control what is drafted, how much, and with what."""
