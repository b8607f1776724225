"""Vercel's AI SDK: code with a tool loop."""

from services.cli.connect.client import library

CODE = """\
// A loop with one tool. Needs: npm install ai @ai-sdk/openai-compatible zod
import { readFile } from 'node:fs/promises';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, stepCountIs, tool } from 'ai';
import { z } from 'zod';

const turnwire = createOpenAICompatible({ name: 'turnwire', baseURL: $base, apiKey: $key });
const { text } = await generateText({
  model: turnwire($model),
  prompt: process.argv.slice(2).join(' '),
  stopWhen: stepCountIs(20),
  tools: {
    read_file: tool({
      description: 'Reads a file.',
      inputSchema: z.object({ path: z.string() }),
      execute: ({ path }) => readFile(path, 'utf8'),
    }),
  },
});
console.log(text);
"""

CLIENT = library("the AI SDK", CODE, start="node agent.mjs 'Read README.md'")
