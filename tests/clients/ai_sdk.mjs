// The AI SDK, over chats, OpenAI's responses and Anthropic's messages, against the server at argv[2].
import assert from "node:assert";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const baseURL = `${process.argv[2]}/v1`;
const prompt = "What is the capital of France?";
const City = z.object({ name: z.string().max(12), is_capital: z.boolean() });
const models = [
  createOpenAICompatible({ name: "paged-serve", baseURL, apiKey: "none", supportsStructuredOutputs: true })("demo"),
  createOpenAI({ baseURL, apiKey: "none" }).responses("demo"),
  createOpenAI({ baseURL, apiKey: "none" }).chat("demo"),
  createAnthropic({ baseURL, apiKey: "none" })("demo"),
];

for (const model of models) {
  const ask = { model, temperature: 0, maxOutputTokens: 200, maxRetries: 0 };  // to responses it sends ids of stored items
  const whole = await generateText({ ...ask, prompt });
  assert.match(whole.text, /Paris/);
  let streamed = "";
  for await (const text of streamText({ ...ask, prompt }).textStream) streamed += text;
  assert.equal(streamed, whole.text);

  const again = await generateText({
    ...ask,
    messages: [{ role: "user", content: prompt }, ...whole.response.messages, { role: "user", content: "And of Italy?" }],
  });
  assert.equal(typeof again.text, "string");

  const formed = await generateText({ ...ask, prompt, output: Output.object({ schema: City }) });
  City.parse(formed.output);

  const asked = [];
  const weather = tool({
    description: "The weather of a city",
    inputSchema: z.object({ city: z.enum(["Paris", "Rome"]), days: z.boolean() }),
    execute: async input => { asked.push(input); return "sunny"; },
  });
  await generateText({
    ...ask, prompt, tools: { weather }, stopWhen: stepCountIs(2),
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
  });
  assert.ok(asked.length >= 1);
  assert.ok(["Paris", "Rome"].includes(asked[0].city));
}
