"""A load test of servers with OpenAI's API, whose contenders are compared round by round."""
