"""Routes that other servers have and this one does not, with the reason and what to use."""

_NO_MEDIA = "the server reads and writes text alone"
_NO_ADAPTERS = "adapters are not served; merge them into the weights, and serve these"
_PROFILE = "profiles are taken from outside, of any process of the server, with py-spy or perf"
_NO_SLEEP = "the server keeps its weights and its cache while it runs; stop it to free them"
_NO_TRAINING = "weights do not change while the server runs; start it with the new ones"
_NO_FILES = "files and batches are not stored; `paged-serve run-batch` answers a file of requests"
_NO_IMAGES = f"there is no cache of images, as {_NO_MEDIA}; the operator's port takes it nevertheless"

ELSEWHERE = {
    **dict.fromkeys(("/embeddings", "/embedding", "/embed", "/v1/embed"), "use /v1/embeddings, or /v2/embed"),
    **dict.fromkeys(("/reranking", "/v1/reranking"), "use /v1/rerank"),
    **dict.fromkeys(("/encode", "/predict"), "use /pooling or /classify"),
    **dict.fromkeys(("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech"), _NO_MEDIA),
    **dict.fromkeys(("/v1/realtime", "/v1/images/generations", "/v1/images/edits"), _NO_MEDIA),
    **dict.fromkeys(("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/lora-adapters"), _NO_ADAPTERS),
    **dict.fromkeys(("/start_profile", "/stop_profile"), _PROFILE),
    **dict.fromkeys(("/sleep", "/wake_up", "/is_sleeping", "/release_kv_cache_memory"), _NO_SLEEP),
    **dict.fromkeys(("/init_weight_transfer_engine", "/start_weight_update", "/update_weights"), _NO_TRAINING),
    **dict.fromkeys(("/finish_weight_update", "/update_weight_version", "/weight_info"), _NO_TRAINING),
    **dict.fromkeys(("/v1/files", "/v1/batches"), _NO_FILES),
    **dict.fromkeys(("/reset_mm_cache", "/reset_encoder_cache"), _NO_IMAGES),
    **dict.fromkeys(("/docs", "/redoc"), "/openapi.json describes every route, for any viewer of such documents"),
    "/kv_event_sources": "events of the cache are not published",
    **dict.fromkeys(("/v1/requests", "/server_info"), "it is an operator's; see --admin-port"),
    "/collective_rpc": "code of requests is not run",
    "/v1/moderations": "there is no model that moderates",
    "/v1/assistants": "conversations are not stored; send all of one to /v1/chat/completions or /v1/responses",
    "/v1/threads": "conversations are not stored; send all of one to /v1/chat/completions or /v1/responses",
    "/completion": "use /v1/completions",
    "/infill": "use suffix of /v1/completions",
    "/generate": "use /v1/completions, or /inference/v1/generate for tokens",
    "/slots": "the operator's /state shows what is running",
    "/props": "use /v1/models and /tokenizer_info",
}
