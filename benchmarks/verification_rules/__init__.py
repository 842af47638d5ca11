"""The exact verification rules compared: what they accept, and how long they take."""
