"""Worker scripts that run in the Python environments of peer engines. They import no module of outpace, and
no module of outpace imports them."""
