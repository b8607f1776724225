// One turn: why it computed tokens again, prompt, time line, calls, blocks.

import { clock, count, get, h, ms, percent, share, table, turnLink } from "/page/draw.js";

const MAX_LANES = 80;
const MAX_TOKENS = 4000;

export function turnView(turn, opened) {
  return [
    heading(turn),
    why(turn),
    prompt(turn),
    timeline(turn),
    deliveries(turn),
    blocks(turn, opened),
    marks(turn),
  ];
}

function expected(turn) {
  const missed = turn.cached === null ? 0 : turn.expected - turn.cached;
  return missed > 0 ? `${count(turn.expected)}, of which the engine lacked ${count(missed)}` : count(turn.expected);
}

function heading(turn) {
  const facts = [
    ["state", turn.finish && turn.finish !== turn.state ? `${turn.state}: ${turn.finish}` : turn.state],
    ["client", turn.client || "–"],
    ["prompt", `${count(turn.prompt)} tokens`],
    ["cached", `${count(turn.cached)} (${share(turn.cached, turn.prompt)})`],
    ["expected in the cache", expected(turn)],
    ["first token", ms(turn.ttft_ms)],
    ["output", `${count(turn.output)} tokens${turn.reasoning ? `, ${count(turn.reasoning)} reasoning` : ""}`],
    ["tool calls", count(turn.calls)],
    ["took", ms(turn.ms)],
    ["worker", turn.worker || "–"],
    ["parser", turn.parser || "–"],
    ["attempts", count(turn.attempt)],
  ];
  return h("section", null,
    h("h2", null, `Turn ${turn.number} · ${turn.model}`, h("small", null, ` ${clock(turn.time)}`)),
    h("p", { class: "ids" }, "request ", h("code", { id: "request" }, `req_${turn.id}`), " · ",
      h("a", { href: `#/session/${encodeURIComponent(turn.session)}`, id: "session" }, "session")),
    turn.incomplete && h("p", { class: "problem" }, "Messages of this turn were lost on the way to the inspector: its blocks are incomplete."),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value)))));
}

const estimate = (cost, tokens) => (cost.ms_per_token === null ? "" : `, about ${ms(tokens * cost.ms_per_token)}`);

function why(turn) {
  const { difference, cost, previous } = turn;
  if (!difference) {
    const text = turn.number === 1 ? "This is the first turn of its session." : "There is no earlier prompt to compare this one with.";
    return h("section", null, h("h3", null, "Difference to the previous prompt"), h("p", { id: "why" }, text));
  }
  const bad = cost.changed > 0 || cost.lost > 0;
  const lines = [h("p", { id: "cause" }, sentence(difference.reason))];
  if (difference.again) {
    lines.push(h("p", { id: "cost" }, `From token ${count(difference.at)} on, ${count(difference.again)} tokens of `, previous && turnLink(previous),
      ` and its answer could not be reused: ${count(cost.changed)} tokens were computed again${estimate(cost, cost.changed)}.`));
  }
  if (cost.lost) {
    lines.push(h("p", { id: "lost" }, `${count(cost.lost)} tokens that both have in common were not in the worker's cache${estimate(cost, cost.lost)}: ${cost.lost_reason}.`));
  }
  if (bad && cost.ms_per_token !== null) {
    lines.push(h("p", { class: "note" }, `Estimated from ${count(cost.turns)} turns: ${(1000 / cost.ms_per_token).toLocaleString("en-US", { maximumFractionDigits: 0 })} prompt tokens a second.`));
  }
  if (difference.changes.length) {
    const rows = difference.changes.map((change) => [change.where, h("del", null, change.was || "nothing"), h("ins", null, change.now || "nothing")]);
    lines.push(h("h4", null, "What the client changed"), table(["where", "before", "now"], rows, "changes"));
  }
  if (difference.was || difference.now) {
    lines.push(h("h4", null, "Tokens around the place"), h("pre", { class: "was" }, difference.was), h("pre", { class: "now" }, difference.now));
  }
  return h("section", { class: bad ? "why bad" : "why", id: "why" }, h("h3", null, "Difference to the previous prompt"), lines);
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (text.endsWith(".") ? "" : ".");

const KINDS = {
  cached: "cached at the worker",
  ledger: "from the ledger, computed",
  encoded: "newly encoded",
  unknown: "computed",
};

function prompt(turn) {
  const total = turn.prompt;
  if (!total) return null;
  const kindOf = (segment) => (segment.cached ? "cached" : segment.source || "unknown");
  const sums = {};
  let answers = 0;
  for (const segment of turn.segments) {
    sums[kindOf(segment)] = (sums[kindOf(segment)] ?? 0) + segment.end - segment.start;
    if (segment.answer !== null) answers += segment.end - segment.start;
  }
  const place = (segment) => ({ left: percent((100 * segment.start) / total), width: percent((100 * (segment.end - segment.start)) / total) });
  const text = (segment) => `tokens ${count(segment.start)} to ${count(segment.end)}: ${KINDS[kindOf(segment)]}${segment.answer === null ? "" : `, the answer of turn ${segment.answer} in its own tokens`}`;
  const parts = turn.segments.map((segment) => h("span", { class: `${kindOf(segment)}${segment.answer === null ? "" : " answer"}`, title: text(segment), at: place(segment) }));
  const at = turn.difference && !turn.difference.extends ? turn.difference.at : null;
  if (at !== null && turn.difference.again) parts.push(h("i", { title: `departs from the previous prompt at token ${count(at)}`, at: { left: percent((100 * at) / total) } }));
  const legend = Object.entries(sums).map(([kind, sum]) => h("li", null, h("b", { class: kind }), `${KINDS[kind]} `, h("strong", { id: `sum-${kind}` }, count(sum))));
  if (answers) legend.push(h("li", null, h("b", { class: "answer" }), "original tokens of earlier answers ", h("strong", null, count(answers))));
  if (turn.tools) legend.push(h("li", { id: "tools", title: "at the start of the prompt, about" }, "definitions of tools ", h("strong", null, `${count(turn.tools)} of ${count(total)}`)));
  const recall = { "": "", first: "", reused: "" }[turn.recall] ?? ` The ledger's outcome for the newest answer: ${turn.recall}.`;
  return h("section", null,
    h("h3", null, `Prompt, ${count(total)} tokens`),
    h("div", { class: "strip", role: "img", "aria-label": legend.map((item) => item.textContent).join(", ") }, parts),
    h("ul", { class: "legend" }, legend),
    recall && h("p", { class: "note" }, recall.trim()));
}

function timeline(turn) {
  const end = Math.max(turn.ms ?? 0, turn.marks.at(-1)?.ms ?? 0, 0.1);
  const placed = turn.marks.find((mark) => mark.kind === "placed");
  const lanes = [];
  const held = turn.marks.find((mark) => mark.kind === "held");
  if (placed) lanes.push(["prompt prepared", "prepare", 0, (held ?? placed).ms]);
  if (held) lanes.push([`held: ${held.text}`, "prepare", held.ms, placed.ms]);
  if (placed && turn.ttft_ms !== null) lanes.push(["queue and prefill", "prefill", placed.ms, turn.ttft_ms]);
  turn.blocks.slice(0, MAX_LANES).forEach((block, at) => {
    lanes.push([`${at + 1}. ${block.kind === "tool_use" ? block.name : block.kind}`, block.kind, block.start_ms, block.end_ms ?? end, dispatched(block)]);
  });
  const x = (time) => percent((100 * time) / end);
  const trouble = turn.marks.filter((mark) => mark.trouble);
  const ticks = (mark) => h("i", { class: "trouble", title: `${mark.kind}: ${mark.text}`, at: { left: x(mark.ms) } });
  const lane = ([name, kind, from, to, sent]) => h("div", { class: "lane" },
    h("span", null, name),
    h("div", { class: "track" },
      h("b", { class: kind, title: `${ms(from)} to ${ms(to)}`, at: { left: x(from), width: x(to - from) } }),
      sent && h("i", { class: "dispatch", title: `dispatched at ${ms(sent)}`, at: { left: x(sent) } }),
      trouble.map(ticks)),
    h("span", { class: "took" }, ms(to - from)));
  const more = turn.blocks.length - MAX_LANES;
  return h("section", { id: "timeline" },
    h("h3", null, `Time line, ${ms(turn.ms ?? end)}`),
    lanes.map(lane),
    more > 0 && h("p", { class: "note" }, `${count(more)} more blocks`));
}

// When a client could run a complete call at the earliest; null for any other block.
const dispatched = (block) => (block.kind === "tool_use" && block.complete ? block.dispatch_ms ?? block.end_ms : null);

function deliveries(turn) {
  const rows = turn.blocks.flatMap((block, at) => {
    const sent = dispatched(block);
    if (sent === null) return [];
    const next = turn.blocks[at + 1];
    return [[block.name, ms(turn.ms), ms(next ? next.start_ms : turn.ms), ms(sent), turn.ms === null ? "–" : ms(turn.ms - sent)]];
  });
  if (!rows.length) return null;
  return h("section", null,
    h("h3", null, "When each call could run"),
    table(["call", "buffered", "streamed", "dispatched", "dispatch saves"], rows, "deliveries"),
    h("p", { class: "note" }, "Buffered: with the whole answer. Streamed: in pieces without an end, so when the next block begins or the answer ends. Dispatched: at the call's own last token, as here."));
}

function blocks(turn, opened) {
  if (!turn.blocks.length) return null;
  let fetched; // the tokens are the same for all blocks
  const show = async (at, into) => {
    into.replaceChildren(h("p", { class: "note" }, "loading"));
    try {
      fetched ??= get(`/api/turns/${encodeURIComponent(turn.id)}/tokens`);
      into.replaceChildren(...tokens(await fetched, at));
    } catch (error) {
      into.replaceChildren(h("p", { class: "problem" }, error.message));
    }
  };
  const item = (block, at) => {
    const into = h("div", { class: "tokens" });
    const button = turn.tokens && h("button", { type: "button", onclick: () => { opened.add(`tokens ${at}`); show(at, into); } }, "Tokens");
    if (opened.has(`tokens ${at}`)) show(at, into);
    const cut = block.complete ? "" : " · cut off";
    const title = `${at + 1}. ${block.kind}${block.name ? ` ${block.name}` : ""} · ${count(block.length)} characters · ${ms(block.start_ms)} to ${ms(block.end_ms)}${cut}`;
    const toggled = (event) => (event.target.open ? opened.delete(`shut ${at}`) : opened.add(`shut ${at}`));
    return h("details", { class: block.kind, open: !opened.has(`shut ${at}`), ontoggle: toggled },
      h("summary", null, title), h("pre", null, block.text),
      block.length > block.text.length && h("p", { class: "note" }, `${count(block.length - block.text.length)} more characters`), button, into);
  };
  return h("section", { id: "blocks" }, h("h3", null, "Answer"), turn.blocks.map(item));
}

function tokens(found, at) {
  const [start, end] = found.blocks[at] ?? [0, found.ids.length];
  const chip = (id, index) => h("span", { title: `token ${start + index}: ${id}` }, found.texts[start + index] ?? String(id));
  const shown = found.ids.slice(start, Math.min(end, start + MAX_TOKENS)).map(chip);
  const which = found.blocks.length ? "" : " (of the whole answer: without a tokenizer the blocks' own are unknown)";
  return [h("p", { class: "note" }, `${count(end - start)} tokens${which}`), h("p", { class: "chips" }, shown)];
}

function marks(turn) {
  const rows = turn.marks.map((mark) => [ms(mark.ms), mark.trouble ? h("strong", { class: "trouble" }, mark.kind) : mark.kind, mark.text]);
  if (turn.ms !== null) rows.push([ms(turn.ms), turn.state, turn.finish]);
  return h("section", null, h("h3", null, "Events"), table(["after", "event", ""], rows, "marks"));
}
