// Anthropic's client for Node: node anthropic.mjs URL; prints what it got as one line of JSON.
import Anthropic, { NotFoundError } from '@anthropic-ai/sdk';

const [, , url] = process.argv;
const client = new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0 });
const question = 'How warm is it in Oslo?';
const messages = [{ role: 'user', content: question }];
const schema = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
const tools = [{ name: 'weather', description: 'The weather of a city.', input_schema: schema }];
const body = { model: 'claude-opus-5', max_tokens: 64, messages, tools };

const called = await client.messages.stream(body).finalMessage();
const { data: whole, response } = await client.messages.create(body).withResponse();
const [use] = called.content.filter((block) => block.type === 'tool_use');
const results = [{ type: 'tool_result', tool_use_id: use.id, content: '7 degrees' }];
const told = [...messages, { role: 'assistant', content: called.content }, { role: 'user', content: results }];
let deltas = '';
const answered = client.messages.stream({ ...body, messages: told }).on('text', (text) => { deltas += text; });
const answer = await answered.finalMessage();
const counted = await client.messages.countTokens({ model: 'claude-opus-5', messages, tools });
const missing = await client.messages.create({ ...body, model: 'gone' }).catch((error) => error);

console.log(JSON.stringify({
  input: use.input, stop: [called.stop_reason, answer.stop_reason], same: whole.content[0].input, deltas,
  text: answer.content[0].text, kept: [called.model, answer.model], usage: answer.usage,
  decision: response.headers.get('x-decision-id'), id: whole.id, request: whole._request_id,
  counted: counted.input_tokens, missing: [missing instanceof NotFoundError, missing.type, missing.status],
}));
