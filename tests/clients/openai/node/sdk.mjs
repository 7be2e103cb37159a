// Vercel's AI SDK and OpenAI's client for Node: node sdk.mjs URL; prints what they got as one line of JSON.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateObject, generateText, streamText } from 'ai';
import OpenAI from 'openai';
import { z } from 'zod';

const [, , url] = process.argv;
const prompt = 'When was the bridge of Avignon built?';
const provider = createOpenAICompatible({
  name: 'armwise', baseURL: `${url}/v1`, apiKey: 'none', supportsStructuredOutputs: true,
});
const model = provider('auto');

const whole = await generateText({ model, prompt, maxOutputTokens: 8 });
let streamed = '';
for await (const part of streamText({ model, prompt, maxOutputTokens: 8 }).textStream) streamed += part;
const shaped = await generateObject({
  model, prompt, maxOutputTokens: 64, schema: z.object({ year: z.number().int() }),
});

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
const messages = [{ role: 'user', content: prompt }];
const chat = await client.chat.completions.create({ model: 'auto', messages, max_tokens: 8 });
let deltas = '';
const stream = await client.chat.completions.create({ model: 'auto', messages, max_tokens: 8, stream: true });
for await (const chunk of stream) deltas += chunk.choices[0]?.delta?.content ?? '';

console.log(JSON.stringify({
  whole: whole.text, streamed, shaped: shaped.object, chat: chat.choices[0].message.content, deltas,
  usage: whole.usage.outputTokens,
}));
