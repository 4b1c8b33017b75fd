"""Where torch lives: model runner, models, attention, sampling, tensor parallelism."""
