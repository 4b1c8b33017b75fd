"""OpenAI's two generating interfaces: schemas in, generations, answers out. Open endpoints.py first."""
