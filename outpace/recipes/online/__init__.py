"""Methods whose drafters learn from what is decoded."""
