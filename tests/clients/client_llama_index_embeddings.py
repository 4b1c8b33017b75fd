"""LlamaIndex's OpenAILikeEmbedding against the server at argv[1]."""

import asyncio
import sys

from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from vectors import TEXTS, vectors_of

URL = f"{sys.argv[1]}/v1"

model = OpenAILikeEmbedding(model_name="demo", api_base=URL, api_key="none", max_retries=0, embed_batch_size=2)
expected = vectors_of(URL, TEXTS)
assert model.get_text_embedding_batch(TEXTS) == expected
assert model.get_query_embedding(TEXTS[1]) == expected[1]
assert asyncio.run(model.aget_text_embedding(TEXTS[2])) == expected[2]
assert model.similarity(expected[0], expected[0]) > 0.999
