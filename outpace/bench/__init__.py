"""Side-by-side measurement: the same prompts, the same seeds, one process, methods taking turns."""
