"""OpenAI's Responses interface, in terms of a chat: requests in, responses and their events out."""
