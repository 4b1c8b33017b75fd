"""OpenAI's completions and chat completions. Open endpoints.py first."""
