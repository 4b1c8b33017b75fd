"""LangChain's OpenAIEmbeddings against the server at argv[1]."""

import asyncio
import sys

from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings
from vectors import TEXTS, vectors_of

URL = f"{sys.argv[1]}/v1"

# Without check_embedding_ctx_length=False it sends tokens of OpenAI's tokenizer, which are not the model's.
options = {"model": "demo", "base_url": URL, "api_key": "none", "max_retries": 0, "check_embedding_ctx_length": False}
embeddings = OpenAIEmbeddings(**options)
expected = vectors_of(URL, TEXTS)
assert embeddings.embed_documents(TEXTS) == expected
assert embeddings.embed_query(TEXTS[1]) == expected[1]
assert asyncio.run(embeddings.aembed_documents(TEXTS)) == expected
assert len(OpenAIEmbeddings(**options, dimensions=8).embed_query(TEXTS[0])) == 8
store = InMemoryVectorStore.from_texts(TEXTS, embeddings)
assert store.similarity_search(TEXTS[2], k=1)[0].page_content == TEXTS[2]
