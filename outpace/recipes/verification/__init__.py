"""Methods that verify the drafts of a draft model with another exact rule or tree."""
