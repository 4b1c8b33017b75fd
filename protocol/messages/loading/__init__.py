"""What workers load and store beside the steps: LoRA adapters, and blocks of KV tiers. Open kv_tiers.py first."""
