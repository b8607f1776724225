// Plays turns through the stream helpers of the TypeScript SDKs, each of which refuses what it does not understand:
//   node sdk_streams.mjs NODE_MODULES URL MODEL
// Prints what each helper has put together, as JSON.
import { createRequire } from 'node:module';

const [folder, url, model] = process.argv.slice(2);
const require = createRequire(`${folder}/x.js`);
const OpenAI = require('openai').default;
const Anthropic = require('@anthropic-ai/sdk').default;
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'any', maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: 'any', maxRetries: 0 });

const call = (command) =>
  `<tool_call>\n<function=shell>\n<parameter=command>\n${command}\n</parameter>\n</function>\n</tool_call>`;
const said = `One.\n</think>\n\nFirst.\n\n${call('ls')}\n<think>\nTwo.\n</think>\n\n${call('pwd')}\n\nLast.`;
const user = `[[say]]${said}[[/say]]`;
const parameters = { type: 'object', properties: { command: { type: 'string' } }, required: ['command'] };
const counted = {};
const count = (api, name) => { (counted[api] ??= {})[name] = (counted[api][name] ?? 0) + 1; };

const messages = anthropic.messages.stream({
  model, max_tokens: 4096, thinking: { type: 'enabled', budget_tokens: 2048 },
  messages: [{ role: 'user', content: user }],
  tools: [{ name: 'shell', description: 'Runs it.', input_schema: parameters }],
});
for (const name of ['thinking', 'signature', 'text', 'inputJson', 'contentBlock', 'message', 'finalMessage'])
  messages.on(name, () => count('messages', name));
const message = await messages.finalMessage();

const responses = openai.responses.stream({
  model, input: user, reasoning: { summary: 'auto' }, include: ['reasoning.encrypted_content'], store: false,
  tools: [{ type: 'function', name: 'shell', description: 'Runs it.', parameters, strict: false }],
});
responses.on('event', (event) => count('responses', event.type));
const response = await responses.finalResponse();

const chat = openai.chat.completions.stream({
  model, messages: [{ role: 'user', content: user }], stream_options: { include_usage: true },
  tools: [{ type: 'function', function: { name: 'shell', description: 'Runs it.', parameters } }],
});
for (const name of ['chunk', 'content', 'tool_calls.function.arguments.done', 'finalChatCompletion'])
  chat.on(name, () => count('chat', name));
const completion = await chat.finalChatCompletion();

console.log(JSON.stringify({ message, response, completion, counted }));
