"""Small networks that predict which draft tokens the target will accept, or how many."""
