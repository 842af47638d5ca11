"""Reports as self-contained HTML pages: what those of `outpace bench` and `outpace plan` share."""
