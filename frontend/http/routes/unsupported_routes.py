"""Routes of other servers that this one does not have, with the reason or the route to use instead."""

_NO_MEDIA = "only text is served"
_PROFILE = "use py-spy or perf, which can profile every process of the server"
_NO_SLEEP = "the server keeps its weights and its cache while it runs; stop it to free them"
_NO_TRAINING = "weights cannot be changed while the server runs; start it with the new ones"
_NO_FILES = "files and batches are not stored; `paged-serve run-batch` answers a file of requests"
_NO_IMAGES = f"there is no image cache, because {_NO_MEDIA}; the operator's port accepts the request without effect"
_OLLAMA = "Ollama's API is not supported; use an OpenAI client with the base URL http://HOST:PORT/v1"
_GOOGLE = "Google's API is not supported; use an OpenAI client with the base URL http://HOST:PORT/v1"
_COHERE = "use /v1/chat/completions; of Cohere's API only /v2/embed and /v2/rerank are supported"
_NO_PAUSE = "requests are not held back on demand; a stop with SIGTERM lets those that run finish"
_NO_SCALING = "the number of ranks is fixed at the start, by --tensor-parallel-size"
_RENDER = "use /tokenize, whose tokens /inference/v1/generate takes, or /apply-template for the text"
_OPERATOR = "it is an operator's route; see --admin-port"

UNSUPPORTED_ROUTES = {
    **dict.fromkeys(("/embeddings", "/embedding", "/embed", "/v1/embed"), "use /v1/embeddings, or /v2/embed"),
    **dict.fromkeys(("/reranking", "/v1/reranking"), "use /v1/rerank"),
    **dict.fromkeys(("/encode", "/predict"), "use /pooling or /classify"),
    **dict.fromkeys(("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech"), _NO_MEDIA),
    **dict.fromkeys(("/v1/realtime", "/v1/images/generations", "/v1/images/edits"), _NO_MEDIA),
    "/lora-adapters": "the `model` of a request names its LoRA adapter; /v1/models lists them",
    **dict.fromkeys(("/start_profile", "/stop_profile"), _PROFILE),
    **dict.fromkeys(("/sleep", "/wake_up", "/is_sleeping", "/release_kv_cache_memory"), _NO_SLEEP),
    **dict.fromkeys(("/pause", "/resume", "/is_paused"), _NO_PAUSE),
    **dict.fromkeys(("/scale_elastic_ep", "/is_scaling_elastic_ep", "/get_world_size"), _NO_SCALING),
    **dict.fromkeys(("/v1/completions/render", "/v1/chat/completions/render"), _RENDER),
    **dict.fromkeys(("/v1/messages/render", "/v1/responses/render"), _RENDER),
    **dict.fromkeys(("/v1/completions/derender", "/v1/chat/completions/derender"), "use /detokenize"),
    **dict.fromkeys(("/fault_tolerance/apply", "/fault_tolerance/status"), "lost processes are replaced automatically"),
    "/v1/systemone": "use structured_outputs of /v1/chat/completions",
    "/generative_scoring": "use logprob_token_ids of /v1/completions, or /score",
    **dict.fromkeys(("/init_weight_transfer_engine", "/start_weight_update", "/update_weights"), _NO_TRAINING),
    **dict.fromkeys(("/finish_weight_update", "/update_weight_version", "/weight_info"), _NO_TRAINING),
    **dict.fromkeys(
        ("/shutdown_weight_transfer_engine", "/start_draft_weight_update", "/weight_checker"), _NO_TRAINING
    ),
    **dict.fromkeys(("/v1/files", "/v1/batches"), _NO_FILES),
    **dict.fromkeys(("/v1/chat", "/v2/chat", "/cohere/v2/chat"), _COHERE),
    "/v1/fim/completions": "use suffix of /v1/completions",
    **dict.fromkeys(("/reset_mm_cache", "/reset_encoder_cache"), _NO_IMAGES),
    "/redoc": "use /docs, or /openapi.json with any OpenAPI viewer",
    "/kv_event_sources": "--kv-events-endpoint names the address at which cache events are published",
    **dict.fromkeys(("/v1/requests", "/server_info", "/stats", "/state", "/check", "/reset_prefix_cache"), _OPERATOR),
    "/abort_requests": f"{_OPERATOR}; a request also ends when its client closes the connection",
    "/collective_rpc": "requests cannot run code",
    "/v1/responses/compact": (
        "there are no encrypted summaries; ask for a summary with /v1/responses, and continue from its text"
    ),
    "/v1/conversations": (
        "conversations are not stored; send the whole one as input of /v1/responses, or its previous_response_id with "
        "--store-responses"
    ),
    "/v1/moderations": "there is no moderation model",
    "/v1/assistants": "use /v1/chat/completions or /v1/responses, with the whole conversation in each request",
    "/v1/threads": "use /v1/chat/completions or /v1/responses, with the whole conversation in each request",
    "/completion": "use /v1/completions",
    "/infill": "use suffix of /v1/completions",
    "/generate": "use /v1/completions, or /inference/v1/generate for tokens",
    "/slots": "the operator's /state shows what is running",
    "/props": "use /v1/models and /tokenizer_info",
}
_COLLECTIONS = ("/v1/conversations", "/v1/files", "/v1/batches", "/v1/assistants", "/v1/threads")
UNSUPPORTED_BELOW = {  # all paths that begin so
    "/api/": _OLLAMA,
    "/v1beta/": _GOOGLE,
    **{f"{path}/": UNSUPPORTED_ROUTES[path] for path in _COLLECTIONS},
}


def reason_against(path: str) -> str | None:
    """Why `path`, or all that it is in, is not served; None if it is not known."""
    below = (reason for start, reason in UNSUPPORTED_BELOW.items() if path.startswith(start))
    return UNSUPPORTED_ROUTES.get(path) or next(below, None)
