"""Every setting of the configuration: its flags, its place in Config, its line in the help.

The command line's options, the environment variables and the keys of a configuration file all come from this table.
"""

from .lora_settings import LORA_SETTINGS
from .server_settings import SERVER_SETTINGS
from .setting import Setting
from .stored_settings import STORED_SETTINGS
from .web_settings import WEB_SETTINGS

SETTINGS = (
    Setting("Model", "model.model", ("--model",), "The same as the argument MODEL.", "MODEL"),
    Setting(
        "Model", "model.served_model_names", ("--served-model-name",), "Name that requests use; repeatable.", "NAME"
    ),
    Setting("Model", "model.tokenizer", ("--tokenizer",), "Folder of another tokenizer.", "FOLDER"),
    Setting("Model", "model.dtype", ("--dtype",), "Precision; auto is the checkpoint's."),
    Setting("Model", "model.device", ("--device",), "Where the model runs; auto takes CUDA if available."),
    Setting("Model", "model.platform", ("--platform",), "Plugin that computes, instead of CPU or CUDA.", "NAME"),
    Setting("Model", "model.plugins", ("--plugin",), "Plugin of an installed package to load; repeatable.", "NAME"),
    Setting(
        "Model",
        "model.quantization",
        ("--quantization", "-q"),
        "int8, int4 and (on CUDA devices) fp8 quantize a float checkpoint on load; auto keeps the checkpoint's form.",
    ),
    Setting(
        "Model",
        "model.quantization_group_size",
        ("--quantization-group-size",),
        "Inputs that share a scale in int4.",
    ),
    Setting(
        "Model",
        "model.quantize_lm_head",
        ("--quantize-lm-head",),
        "The output head as int8, or as fp8 with fp8; default: with --quantization int8 and int4.",
    ),
    Setting(
        "Model",
        "model.max_model_len",
        ("--max-model-len",),
        "Longest prompt plus output; default: the model's.",
        "TOKENS",
    ),
    Setting(
        "Model",
        "model.generation_config",
        ("--generation-config",),
        "Whether the model's generation_config.json fills what requests leave out.",
    ),
    Setting(
        "Model",
        "model.model_impl",
        ("--model-impl",),
        "Ours, or that of the transformers library; auto takes ours where there is one.",
    ),
    Setting(
        "Model",
        "model.trust_remote_code",
        ("--trust-remote-code",),
        "Run Python code that comes with a model, for --model-impl transformers.",
    ),
    Setting(
        "Model",
        "model.pooling",
        ("--pooling",),
        "Tokens of which embeddings are made: the last, the mean of all, or the first; auto is as the model says.",
    ),
    Setting("Model", "model.seed", ("--seed",), "Requests without a seed derive theirs from this one.", "N"),
    Setting("Model", "server.chat_template", ("--chat-template",), "Jinja file instead of the model's.", "FILE"),
    Setting(
        "Model",
        "server.tool_call_parser",
        ("--tool-call-parser",),
        "Format of tool calls; none: they stay text.",
        "FORMAT",
    ),
    Setting(
        "Model",
        "server.reasoning_parser",
        ("--reasoning-parser",),
        "Format of reasoning; none: it stays content.",
        "FORMAT",
    ),
    Setting(
        "Model",
        "server.allow_special_tokens",
        ("--allow-special-tokens",),
        "Whether text in requests may spell special tokens like <|im_end|>; default: in prompts, not in conversations.",
    ),
    Setting(
        "Memory",
        "cache.kv_cache_dtype",
        ("--kv-cache-dtype",),
        "int8 (on the CPU kernels, for models of 16 bits) and fp8 (on CUDA devices) halve the KV cache.",
    ),
    Setting(
        "Memory",
        "cache.block_size",
        ("--block-size",),
        "Tokens in a block of the KV cache; a model with states may need larger blocks, a multiple of it.",
    ),
    Setting(
        "Memory",
        "cache.gpu_memory_utilization",
        ("--gpu-memory-utilization",),
        "Share of a CUDA device's memory that weights, activations and KV cache may take.",
        "SHARE",
    ),
    Setting(
        "Memory",
        "cache.kv_cache_memory_bytes",
        ("--kv-cache-memory-bytes",),
        "KV cache of each rank, like 4G or 512M; default: a share of the free memory.",
        "BYTES",
    ),
    Setting(
        "Memory",
        "cache.num_blocks",
        ("--num-blocks", "--num-gpu-blocks-override"),
        "Blocks of the KV cache, instead of as many as fit.",
        "N",
    ),
    Setting(
        "Memory", "cache.enable_prefix_caching", ("--enable-prefix-caching",), "Reuse the KV cache of shared prefixes."
    ),
    Setting(
        "Memory",
        "cache.share_prefixes",
        ("--share-prefixes",),
        "Share prefixes between API keys too: faster, but response times reveal to one key what another has asked.",
    ),
    Setting(
        "KV events",
        "kv_events.endpoint",
        ("--kv-events-endpoint",),
        "Publish what enters and leaves the prefix cache there, for routers: tcp://ADDRESS:PORT or ipc://PATH.",
        "ADDRESS",
    ),
    Setting(
        "KV events",
        "kv_events.replay_endpoint",
        ("--kv-events-replay-endpoint",),
        "Answer requests for lost events there, or for a snapshot.",
        "ADDRESS",
    ),
    Setting("KV events", "kv_events.topic", ("--kv-events-topic",), "First frame of each message.", "TEXT"),
    Setting(
        "KV events",
        "kv_events.buffer_batches",
        ("--kv-events-buffer",),
        "Batches of events kept for replays.",
        "N",
    ),
    Setting(
        "KV tiers",
        "kv_tier.dir",
        ("--kv-tier-dir",),
        "Keep blocks of the prefix cache in this folder, and find them again after a restart.",
        "FOLDER",
    ),
    Setting(
        "KV tiers",
        "kv_tier.host_bytes",
        ("--kv-tier-host-bytes",),
        "Keep blocks in the host's memory, too, until the server stops: bytes of each rank, like 2G.",
        "BYTES",
    ),
    Setting("KV tiers", "kv_tier.max_bytes", ("--kv-tier-bytes",), "Disk space there of each rank, like 16G.", "BYTES"),
    Setting("Scheduling", "scheduler.max_num_seqs", ("--max-num-seqs",), "Sequences that run at once.", "N"),
    Setting(
        "Scheduling", "scheduler.max_num_batched_tokens", ("--max-num-batched-tokens",), "Tokens in one step.", "N"
    ),
    Setting("Scheduling", "scheduler.policy", ("--scheduling-policy",), "Which waiting request comes first."),
    Setting("Scheduling", "scheduler.pipeline_depth", ("--pipeline-depth",), "Steps in flight.", "N"),
    Setting(
        "Scheduling",
        "scheduler.max_num_queued_requests",
        ("--max-num-queued-requests",),
        "Waiting requests; more are rejected with Retry-After.",
        "N",
    ),
    Setting(
        "Scheduling",
        "scheduler.max_num_queued_tokens",
        ("--max-num-queued-tokens",),
        "Waiting prompt tokens; more are rejected with Retry-After.",
        "N",
    ),
    Setting(
        "Scheduling",
        "scheduler.max_unacknowledged_bytes",
        ("--max-unacknowledged-bytes",),
        "Bytes of output held for clients that do not acknowledge it.",
        "BYTES",
    ),
    Setting(
        "Speculation",
        "speculation.method",
        ("--speculative",),
        "Compute several tokens of a row in one step, after drafts from here: the same bytes, sooner, with any model. "
        "auto: suffix on the CPU, off elsewhere; draft:FOLDER or eagle3:FOLDER: the method, and its --draft-model; "
        "mtp: the checkpoint's own layer for multi-token prediction.",
    ),
    Setting(
        "Speculation",
        "speculation.num_drafts",
        ("--num-speculative-tokens",),
        "Drafts of a row in one step, at most.",
        "N",
    ),
    Setting(
        "Speculation",
        "speculation.adaptive",
        ("--speculative-adaptive",),
        "Only as many drafts as save time, by measured steps; otherwise as many as allowed in every step.",
    ),
    Setting(
        "Speculation",
        "speculation.history_tokens",
        ("--speculative-history-tokens",),
        "Tokens of earlier answers that drafts may come from, with suffix and auto. Rows find answers only where they "
        "may share prefixes: of the same API key and cache_salt.",
        "N",
    ),
    Setting(
        "Speculation",
        "speculation.draft_model",
        ("--draft-model",),
        "Folder of the model or head that makes drafts, with --speculative draft or eagle3; or give --speculative "
        "draft:FOLDER or eagle3:FOLDER.",
        "FOLDER",
    ),
    Setting(
        "Devices",
        "parallel.tensor_parallel_size",
        ("--tensor-parallel-size", "--tp", "-tp"),
        "Ranks that share the model, one process each.",
        "N",
    ),
    Setting(
        "Devices",
        "parallel.threads_per_rank",
        ("--threads",),
        "CPU threads of a rank; default: its share of the cores, one for a small model.",
        "N",
    ),
    Setting(
        "Devices",
        "parallel.pin_threads",
        ("--pin-threads",),
        "Whether threads are bound to cores; auto: if they take all cores.",
    ),
    Setting(
        "Devices",
        "model.cpu_isa",
        ("--cpu-isa",),
        "CPU kernels; auto takes the best that the machine supports, torch uses none.",
    ),
    Setting(
        "Devices",
        "model.summation",
        ("--summation",),
        "Order of bfloat16 sums on CPU: AMX's (tile) or AVX-512's (dot); the same gives the same bits anywhere.",
    ),
    Setting(
        "Devices",
        "model.cache_dir",
        ("--cache-dir",),
        "Folder for compiled CUDA kernels, in paged-serve/cubins; default: ~/.cache.",
        "FOLDER",
        "XDG_CACHE_HOME",
    ),
    Setting(
        "Devices",
        "model.packed_weights_dir",
        ("--packed-weights-dir",),
        "Folder for weights packed for the CPU kernels, so that later starts load faster.",
        "FOLDER",
    ),
    Setting(
        "Devices", "parallel.step_timeout_s", ("--step-timeout",), "A step that takes longer counts as hung.", "SECONDS"
    ),
    Setting(
        "Devices",
        "parallel.standby_workers",
        ("--standby-workers",),
        "Keep a started worker per rank, without a model, to replace one that dies.",
    ),
    *LORA_SETTINGS,
    *SERVER_SETTINGS,
    *STORED_SETTINGS,
    *WEB_SETTINGS,
)
BY_NAME = {flag.lstrip("-"): setting for setting in SETTINGS for flag in setting.flags}
BY_KEY = {setting.key: setting for setting in SETTINGS}
