"""Options of vLLM that are accepted with the values that have no effect here, and what to use instead of others.

Their names are those of the keyword arguments; a flag has dashes in place of underscores.
"""

from typing import Any

ANY: tuple[Any, ...] = ()  # no value has an effect
NO_EFFECT: dict[str, tuple[Any, ...]] = {  # of LLM and of `serve`: the values that have no effect
    "allowed_local_media_path": ("",),
    "async_scheduling": (True, False),
    "convert": ("auto", "none", "embed"),
    "cpu_offload_gb": (0,),
    "data_parallel_size": (1,),
    "disable_custom_all_reduce": (True, False),
    "disable_log_stats": (True, False),
    "distributed_executor_backend": ("mp",),
    "enable_chunked_prefill": (True,),
    "enforce_eager": (True, False),
    "hf_overrides": ({},),
    "limit_mm_per_prompt": ({},),
    "load_format": ("auto", "safetensors", "gguf"),
    "logits_processors": ([], ()),
    "mm_processor_kwargs": ({},),
    "pipeline_parallel_size": (1,),
    "runner": ("auto", "generate", "pooling"),
    "skip_tokenizer_init": (False,),
    "tokenizer_mode": ("auto",),
}
OF_SERVER: dict[str, tuple[Any, ...]] = {  # of `serve` alone
    "chat_template_content_format": ("auto",),
    "compilation_config": ANY,
    "disable_log_requests": (True, False),
    "enable_auto_tool_choice": (True, False),
    "enable_log_requests": (False,),
    "enable_prompt_tokens_details": (True, False),
    "enable_request_id_headers": (True, False),
    "enable_server_load_tracking": (True, False),
    "guided_decoding_backend": ANY,
    "optimization_level": ANY,
    "response_role": ("assistant",),
    "structured_outputs_config": ANY,
    "task": ("auto", "generate", "embed", "embedding", "classify", "score", "reward"),
    "uvicorn_log_level": ANY,
}
INSTEAD = {
    "cpu_offload_gb": "weights are not offloaded",
    "data_parallel_size": "start one engine for each group of devices",
    "enable_chunked_prefill": "long prompts are always split into chunks",
    "logits_processors": "use plugin=[...] here, and SamplingParams(logits_processors=[...]) per request",
    "pipeline_parallel_size": "layers are not split among devices; use tensor_parallel_size",
    "runner": "the files of a model determine its tasks",
    "swap_space": "preempted requests are computed again, not swapped",
}
INSTEAD_OF_FLAG = {
    **INSTEAD,
    "download_dir": "set the variable HF_HOME",
    "enable_log_requests": "prompts are not logged; --access-log logs one line per request",
    "kv_transfer_config": "blocks are kept on disk or by the host with --kv-tier-dir",
    "logits_processors": "use --plugin",
    "pipeline_parallel_size": "layers are not split among devices; use --tensor-parallel-size",
    "speculative_config": "use --speculative, --draft-model and --num-speculative-tokens",
    "ssl_certfile": "HTTPS needs a proxy in front of the server",
    "ssl_keyfile": "HTTPS needs a proxy in front of the server",
}
