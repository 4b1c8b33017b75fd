"""What a simulation plays, drawn from a seed: the engine and its faults, requests, tiers, adapters, drafts."""
