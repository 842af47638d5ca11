"""Layouts in which draft heads are stored, as other projects read and write them."""
