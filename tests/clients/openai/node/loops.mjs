// Clients for Node in a loop of tools: node loops.mjs CLIENT URL; prints a title in a shape, and the last text.
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import Anthropic from '@anthropic-ai/sdk';
import { generateObject, generateText, isStepCount, streamText, tool } from 'ai';
import OpenAI from 'openai';
import { z } from 'zod';

const [, , name, url] = process.argv;
const prompt = 'Look at both files.';
const parameters = {
  type: 'object', properties: { path: { type: 'string' } }, required: ['path'], additionalProperties: false,
};
const titled = {
  type: 'object', properties: { title: { type: 'string' } }, required: ['title'], additionalProperties: false,
};
const look = { name: 'look', description: 'Look at a file.' };

// The client's own `finalChatCompletion` keeps the last piece of reasoning alone.
async function gathered(stream) {
  const message = { role: 'assistant', content: '', reasoning_content: '', tool_calls: [] };
  for await (const { choices: [choice] } of stream) {
    message.content += choice?.delta.content ?? '';
    message.reasoning_content += choice?.delta.reasoning_content ?? '';
    for (const { index, ...call } of choice?.delta.tool_calls ?? []) {
      if (call.id) message.tool_calls[index] = call;
      else message.tool_calls[index].function.arguments += call.function.arguments;
    }
  }
  return message;
}

async function chat() {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
  const asked = [{ role: 'user', content: prompt }];
  const shape = { type: 'json_schema', json_schema: { name: 'titled', strict: true, schema: titled } };
  const shaped = await client.chat.completions.parse({ model: 'auto', messages: asked, response_format: shape });
  const messages = [...asked];
  const tools = [{ type: 'function', function: { ...look, parameters } }];
  for (let turn = 0; ; turn += 1) {
    const request = { model: 'auto', messages, tools };
    const message = turn % 2 // one turn whole, one streamed
      ? await gathered(await client.chat.completions.create({ ...request, stream: true }))
      : (await client.chat.completions.create(request)).choices[0].message;
    if (!message.tool_calls?.length) return [shaped.choices[0].message.parsed, message.content];
    messages.push(message, { role: 'tool', tool_call_id: message.tool_calls[0].id, content: 'seen' });
  }
}

async function responses() {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
  const format = { type: 'json_schema', name: 'titled', strict: true, schema: titled };
  const shaped = await client.responses.parse({ model: 'auto', input: prompt, text: { format } });
  const input = [{ role: 'user', content: prompt }];
  const tools = [{ type: 'function', ...look, parameters, strict: true }];
  for (let turn = 0; ; turn += 1) {
    const request = { model: 'auto', input, tools, store: false, include: ['reasoning.encrypted_content'] };
    const answer = turn % 2
      ? await client.responses.stream(request).finalResponse()
      : await client.responses.create(request);
    const call = answer.output.find((item) => item.type === 'function_call');
    if (!call) return [shaped.output_parsed, answer.output_text];
    input.push(...answer.output.map(({ parsed_arguments: _, ...item }) => item));
    input.push({ type: 'function_call_output', call_id: call.call_id, output: 'seen' });
  }
}

async function messages() {
  const client = new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0 });
  const base = { model: 'auto', max_tokens: 4096 };
  const asked = [{ role: 'user', content: prompt }];
  const shape = { format: { type: 'json_schema', schema: titled } };
  const shaped = await client.messages.create({ ...base, messages: asked, output_config: shape });
  const history = [...asked];
  const tools = [{ ...look, input_schema: parameters }];
  for (let turn = 0; ; turn += 1) {
    const request = { ...base, messages: history, tools, thinking: { type: 'adaptive' } };
    const answer = turn % 2
      ? await client.messages.stream(request).finalMessage() : await client.messages.create(request);
    const use = answer.content.find((block) => block.type === 'tool_use');
    if (!use) return [JSON.parse(shaped.content[0].text), answer.content[0].text];
    const result = { type: 'tool_result', tool_use_id: use.id, content: 'seen' };
    history.push({ role: 'assistant', content: answer.content }, { role: 'user', content: [result] });
  }
}

async function vercel(model, providerOptions) {
  const { object } = await generateObject({ model, prompt, schema: z.object({ title: z.string() }) });
  const tools = {
    look: tool({
      description: look.description, inputSchema: z.object({ path: z.string() }), execute: async () => 'seen',
    }),
  };
  const request = { model, prompt, tools, stopWhen: isStepCount(5), providerOptions };
  const { text } = name.endsWith('-whole') ? await generateText(request) : await streamText(request);
  return [object, await text];
}

const compatible = { name: 'armwise', baseURL: `${url}/v1`, apiKey: 'none', supportsStructuredOutputs: true };
const stateless = { openai: { store: false, include: ['reasoning.encrypted_content'], forceReasoning: true } };
const clients = {
  chat,
  responses,
  messages,
  'vercel-chat': () => vercel(createOpenAICompatible(compatible)('auto')),
  'vercel-responses': () => vercel(
    createOpenAI({ baseURL: `${url}/v1`, apiKey: 'none' }).responses('auto'), stateless,
  ),
  'vercel-messages': () => vercel(createAnthropic({ baseURL: `${url}/v1`, apiKey: 'none' })('claude-sonnet-4-5')),
};
const [shaped, text] = await clients[name.replace('-whole', '')]();
console.log(JSON.stringify({ title: shaped.title, text }));
