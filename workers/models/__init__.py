"""From a Hugging Face folder to a model. Open loading.py first; families/ has one file per family."""
