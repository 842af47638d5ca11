"""`outpace audit --endpoint`: whether a server's speculative decoding changes what it generates."""
