"""Methods for batches of requests and for servers."""
