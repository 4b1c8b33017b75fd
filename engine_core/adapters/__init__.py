"""LoRA adapters: which of them are in the workers' places, and the requests that wait for one. Open places.py first."""
