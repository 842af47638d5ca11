"""What decoding steps cost and what drafts are worth: arithmetic without models, which controllers, `outpace
bench` and `outpace plan` share."""
