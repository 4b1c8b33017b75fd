// The official npm client against the server at argv[2]; prints one JSON object of what it saw.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const countries = ["France", "Japan", "Italy", "Peru", "Kenya", "Norway", "Spain", "Egypt"];
const question = country => ({
  model: "demo", temperature: 1, seed: 11, max_tokens: 32,
  messages: [{ role: "user", content: `What is the capital of ${country}?` }],
});
const prompt = country => ({ model: "demo", prompt: `The capital of ${country} is`, temperature: 1, seed: 5, max_tokens: 32 });

async function chatStream(country) {
  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...question(country), stream: true }))
    text += chunk.choices[0]?.delta?.content ?? "";
  return text;
}

async function completionStream(country) {
  let text = "";
  for await (const chunk of await client.completions.create({ ...prompt(country), stream: true }))
    text += chunk.choices[0]?.text ?? "";
  return text;
}

const whole = [], streamed = [];
for (const country of countries) {
  whole.push((await client.chat.completions.create(question(country))).choices[0].message.content);
  whole.push((await client.completions.create(prompt(country))).choices[0].text);
}
for (let i = 0; i < 64; i++) {
  const country = countries[(i >> 1) % countries.length];
  streamed.push(i % 2 ? completionStream(country) : chatStream(country));
}
const texts = await Promise.all(streamed);

const helper = client.chat.completions.stream({ ...question("France"), stream_options: { include_usage: true } });
const final = await helper.finalChatCompletion();

const aborted = await client.completions.create({ model: "demo", prompt: "a", max_tokens: 1500, ignore_eos: true, stream: true });
let chunksBeforeAbort = 0;
for await (const _ of aborted) if (++chunksBeforeAbort === 3) break;

let refusal;
try {
  await client.completions.create({ model: "demo", prompt: "a", max_tokens: -1 });
} catch (error) {
  refusal = { name: error.constructor.name, status: error.status, param: error.param, message: error.message };
}
const models = [];
for await (const model of client.models.list()) models.push(model.id);

console.log(JSON.stringify({
  whole, texts, models, refusal, chunksBeforeAbort, final: final.choices[0].message.content, usage: final.usage,
}));
