"""Formats of reasoning between two tags."""

from ..formats import ReasoningFormat

THINK = ReasoningFormat("think", "<think>", "</think>")  # DeepSeek R1, Qwen 3, QwQ, GLM 4.5, Kimi K2 and many others
THINK_THEN_RESPONSE = ReasoningFormat("ernie45", "<think>", "</think>", around_answer=("<response>", "</response>"))
THINK_THEN_ANSWER = ReasoningFormat("hunyuan_a13b", "<think>", "</think>", around_answer=("<answer>", "</answer>"))
THINK_IN_BRACKETS = ReasoningFormat("mistral", "[THINK]", "[/THINK]")  # Magistral
THOUGHT_CHANNEL = ReasoningFormat("gemma4", "<|channel>", "<channel|>", label="thought\n")  # Gemma 4
THINK_OF_SEED = ReasoningFormat("seed_oss", "<seed:think>", "</seed:think>")
THINK_OF_COHERE = ReasoningFormat(  # Command R7B and A
    *("cohere", "<|START_THINKING|>", "<|END_THINKING|>"),
    around_answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)
REASONING_STEPS = ReasoningFormat(
    *("apriel", "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"), around_answer=("[END FINAL RESPONSE]",)
)
THOUGHT_PROCESS = ReasoningFormat("granite", "Here is my thought process:", "Here is my response:")  # Granite 3.2
THINK_OF_LONGCAT = ReasoningFormat("longcat", "<longcat_think>", "</longcat_think>")
THINK_OF_HY = ReasoningFormat("hy_v3", "<think:opensource>", "</think:opensource>")
THINK_OF_APERTUS = ReasoningFormat("apertus", "<|inner_prefix|>", "<|inner_suffix|>")
